// What a user of stompit writes to go through the death of a master, with its own failover: confirmed sends, single
// acknowledgements, transactions, a durable subscription.
//
//   node failover.js NAME COUNT PORT PORT     COUNT messages of each kind, to destinations that begin with NAME
//
// Prints {"sent": number}, {"published": number} and {"transacted": number} for each that is confirmed, and at the end
// {"queue": {"came": […], "acknowledged": […]}, "durable": …}: what its consumers received, in order, also what came
// twice, and of what the ACK was confirmed. What the transactions did is in the queue NAME.out.
'use strict';

const stompit = require('stompit');

const [name, count, ...ports] = process.argv.slice(2);
const COUNT = Number(count);
let numbers = 0;

function tell(line) {
  return new Promise((resolve) => process.stdout.write(JSON.stringify(line) + '\n', resolve));
}

// stompit 1.0.0 means to destroy the client when an ERROR with a text has come, and destroys the frame: that throws.
function connect(options, connected) {
  return stompit.connect(options, (error, client) => {
    if (!error) {
      client.setCommandHandler('ERROR', (frame) => frame.readString('utf-8', (_, text) => {
        client.destroy(client.createApplicationError(`${frame.headers.code}: ${text}`));
      }));
    }
    connected(error, client);
  });
}

function failover(clientId) {
  const connectHeaders = {host: '/', 'accept-version': '1.2', 'heart-beat': '0,0'};
  if (clientId) {
    connectHeaders['client-id'] = clientId;
  }
  const servers = ports.map((port) => ({host: '127.0.0.1', port: Number(port), connectHeaders}));
  return new stompit.ConnectFailover(servers, {
    connectFunction: connect, initialReconnectDelay: 10, maxReconnectDelay: 200, randomize: false,
  });
}

// A channel sends again what was not confirmed: the id makes the broker store it once.
function send(from, destination, body) {
  const headers = {destination, persistent: 'true', _AMQ_DUPL_ID: `${name}.${numbers++}`};
  return new Promise((resolve, reject) => from.send(headers, body, (error) => (error ? reject(error) : resolve())));
}

// Receive and acknowledge until COUNT different messages came and no ACK waits for its receipt on the connection that
// there is. The ACK whose receipt went with the old master was stored, and the message never comes again, or was not,
// and it may. Not with a channel: that would acknowledge on the new connection what came on the old one.
function consume(connector, headers, subscribed) {
  const came = [];
  const acknowledged = new Set();
  return new Promise((resolve, reject) => {
    connector.connect((error, client, reconnect) => {
      if (error) {
        reject(error);
        return;
      }
      let alive = true;
      let unconfirmed = 0;
      const finish = () => {
        if (alive && !unconfirmed && new Set(came).size === COUNT) {
          alive = false;
          client.disconnect();
          resolve({came, acknowledged: [...acknowledged]});
        }
      };
      client.on('error', (failure) => {
        if (alive) {
          alive = false;
          failure.isApplicationError?.() ? reject(failure) : reconnect();
        }
      });
      client.setImplicitSubscription('1', 'client-individual', (broken, message) => {
        if (broken) {
          return; // told by the client's own event
        }
        message.readString('utf-8', (failure, body) => {
          if (failure || !alive) {
            return; // it comes again
          }
          came.push(body);
          unconfirmed += 1;
          client.ack(message, {}, {onReceipt: () => {
            acknowledged.add(body);
            unconfirmed -= 1;
            finish();
          }});
        });
      });
      client.sendFrame('SUBSCRIBE', {id: '1', ack: 'client-individual', ...headers}, {onReceipt: () => {
        subscribed();
        finish();
      }}).end();
    });
  });
}

// One transaction on one connection: true = it took place. Where the answer is lost its COMMIT asks the next master.
function transact(connector, outcomeId, bodies) {
  return new Promise((resolve, reject) => {
    let asking = false;
    let finished = false;
    connector.connect((error, client, reconnect) => {
      if (error) {
        reject(error);
        return;
      }
      client.on('error', (failure) => {
        if (finished) {
          return; // of the DISCONNECT
        }
        if (!failure.isApplicationError?.()) {
          asking = true;
          reconnect();
        } else if (failure.message.startsWith('TRANSACTION_ROLLED_BACK')) {
          resolve(false);
        } else {
          reject(failure);
        }
      });
      if (!asking) {
        const transaction = client.begin({transaction: outcomeId});
        for (const body of bodies) {
          transaction.send({destination: `/queue/${name}.out`, persistent: 'true'}).end(body);
        }
      }
      const headers = {transaction: outcomeId, 'amq-outcome-id': outcomeId};
      client.sendFrame('COMMIT', headers, {onReceipt: () => {
        finished = true;
        client.disconnect();
        resolve(true);
      }}).end();
    });
  });
}

async function transactAll(bodies) {
  const connector = failover();
  for (const body of bodies) {
    for (let attempt = 0; !await transact(connector, `${name}.${body}.${attempt}`, [body, `${body}!`]);) {
      attempt += 1;
    }
    await tell({transacted: Number(body)});
  }
}

async function sendAll(bodies, destination, what) {
  const channel = new stompit.Channel(failover(), {alwaysConnected: true});
  for (const body of bodies) {
    await send(channel, destination, body);
    await tell({[what]: Number(body)});
  }
}

async function main() {
  const topic = `/topic/${name}`;
  const all = [...Array(COUNT).keys()].map(String);
  const queue = consume(failover(), {destination: `/queue/${name}`}, () => {});
  let durable;
  await new Promise((subscribed, failed) => {
    const headers = {destination: topic, 'activemq.subscriptionName': 's'};
    durable = consume(failover(`${name}.client`), headers, subscribed);
    durable.catch(failed);
  });
  const [fromQueue, fromTopic] = await Promise.all([
    queue, durable, sendAll(all, `/queue/${name}`, 'sent'), sendAll(all, topic, 'published'), transactAll(all),
  ]);
  await tell({queue: fromQueue, durable: fromTopic});
  process.exit(0);
}

main();
