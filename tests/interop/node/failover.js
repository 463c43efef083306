// What a user of stompit writes to go through the death of a master, with its own failover: confirmed sends, single
// acknowledgements, transactions, a durable subscription.
//
//   node failover.js NAME COUNT PORT PORT     COUNT messages of each kind, to destinations that begin with NAME
//
// Prints {"sent": number} for each confirmed send to the queue, and at the end {"queue": […], "durable": […]}: what its
// consumers received, in order, also what came twice. What the transactions did is in the queue NAME.out.
'use strict';

const stompit = require('stompit');

const [name, count, ...ports] = process.argv.slice(2);
const COUNT = Number(count);
let numbers = 0;

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

function channel(clientId) {
  return new stompit.Channel(failover(clientId), {alwaysConnected: true});
}

// A channel sends again what was not confirmed: the id makes the broker store it once.
function send(from, destination, body) {
  const headers = {destination, persistent: 'true', _AMQ_DUPL_ID: `${name}.${numbers++}`};
  return new Promise((resolve, reject) => from.send(headers, body, (error) => (error ? reject(error) : resolve())));
}

// Receive and acknowledge until COUNT different messages are confirmed to be done; all that came, in order.
function consume(from, headers) {
  const came = [];
  const done = new Set();
  return new Promise((resolve, reject) => {
    const subscription = from.subscribe({ack: 'client-individual', ...headers}, (error, message) => {
      if (error) {
        reject(error);
        return;
      }
      message.readString('utf-8', (failure, body) => {
        if (failure) {
          return; // the connection broke in the middle of it: it comes again
        }
        came.push(body);
        from.ack(message, {}, {onReceipt: () => {
          done.add(body);
          if (done.size === COUNT) {
            subscription.unsubscribe();
            resolve(came);
          }
        }});
      });
    });
  });
}

// One transaction on one connection: true = it took place. Where the answer is lost its COMMIT asks the next master.
function transact(connector, outcomeId, bodies) {
  return new Promise((resolve) => {
    let asking = false;
    let finished = false;
    connector.connect((error, client, reconnect) => {
      if (error) {
        throw error;
      }
      client.on('error', (failure) => {
        if (failure.isApplicationError?.()) {
          resolve(false); // TRANSACTION_ROLLED_BACK
        } else if (!finished) {
          asking = true;
          reconnect();
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

async function main() {
  const [producer, consumer, publisher, subscriber] = [channel(), channel(), channel(), channel(`${name}.client`)];
  const topic = `/topic/${name}`;
  const subscription = {destination: topic, 'activemq.subscriptionName': 's'};
  const queue = consume(consumer, {destination: `/queue/${name}`});
  const durable = consume(subscriber, subscription);
  await send(subscriber, `/queue/${name}.other`, 'its receipt says that the SUBSCRIBE before it was carried out');
  const all = [...Array(COUNT).keys()].map(String);
  const transactions = (async () => {
    const connector = failover();
    for (const body of all) {
      for (let attempt = 0; !await transact(connector, `${name}.${body}.${attempt}`, [body, `${body}!`]);) {
        attempt += 1;
      }
    }
  })();
  const published = (async () => {
    for (const body of all) {
      await send(publisher, topic, body);
    }
  })();
  for (const body of all) {
    await send(producer, `/queue/${name}`, body);
    process.stdout.write(`{"sent": ${body}}\n`);
  }
  await Promise.all([published, transactions]);
  process.stdout.write(JSON.stringify({queue: await queue, durable: await durable}) + '\n', () => process.exit(0));
}

main();
