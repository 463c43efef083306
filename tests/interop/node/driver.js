// stompit, a STOMP client for Node, driven from outside: a line of JSON in, a line of JSON out.
//
//   {"wire": 1, "open": 61613, "headers": {…}}                          connect to that port
//   {"wire": 1, "command": "SEND", "headers": {…}, "body": "…", "receipt": "r7"}
//   {"wire": 1, "close": true}                                          DISCONNECT
//
// Back come {"wire": 1, "event": …}: "open", "receipt" (id), "message" (headers, body), "error" (why: the broker's
// ERROR), "lost" (why: the connection is gone). It ends when its input does.
'use strict';

const readline = require('readline');
const stompit = require('stompit');

const wires = new Map(); // number → {client, messages: those that may be acknowledged, by their `ack`}

function tell(wire, event, more) {
  process.stdout.write(JSON.stringify({wire, event, ...more}) + '\n');
}

function open(wire, port, headers) {
  const connectHeaders = {host: '/', 'accept-version': '1.2', 'heart-beat': '0,0', ...headers};
  stompit.connect({host: '127.0.0.1', port, connectHeaders}, (error, client) => {
    if (error) {
      tell(wire, 'lost', {why: error.message});
      return;
    }
    // stompit 1.0.0 means to destroy the client when an ERROR with a text has come, and destroys the frame: that throws.
    client.setCommandHandler('ERROR', (frame) => frame.readString('utf-8', (_, text) => {
      client.destroy(client.createApplicationError(`${frame.headers.code}: ${text}`));
    }));
    client.on('error', (failure) => { // of a write that failed it is Node's own, which knows nothing of applications
      tell(wire, failure.isApplicationError?.() ? 'error' : 'lost', {why: failure.message});
    });
    client.on('end', () => tell(wire, 'lost', {why: 'closed'}));
    wires.set(wire, {client, messages: new Map()});
    tell(wire, 'open');
  });
}

function onMessage(wire, message) {
  const {messages} = wires.get(wire);
  message.readString('utf-8', (error, body) => {
    if (error) {
      tell(wire, 'lost', {why: error.message});
      return;
    }
    if (message.headers.ack !== undefined) {
      messages.set(message.headers.ack, message);
    }
    tell(wire, 'message', {headers: message.headers, body});
  });
}

function write({wire, command, headers, body, receipt}) {
  const {client, messages} = wires.get(wire);
  const confirmed = {onReceipt: () => tell(wire, 'receipt', {id: receipt})};
  switch (command) {
    case 'SEND':
      client.sendString(headers, body, confirmed);
      break;
    case 'ACK':
    case 'NACK': {
      const {id, ...others} = headers;
      client[command.toLowerCase()](messages.get(id), others, confirmed);
      messages.delete(id);
      break;
    }
    case 'SUBSCRIBE': // `client.subscribe` asks for no receipt
      client.setImplicitSubscription(headers.id, headers.ack, (error, message) => {
        if (!error) {
          onMessage(wire, message); // an error of the connection is told by its own event
        }
      });
      client.sendFrame('SUBSCRIBE', headers, confirmed).end();
      break;
    default:
      client.sendFrame(command, headers, confirmed).end();
  }
}

function close(wire) {
  const {client} = wires.get(wire);
  wires.delete(wire);
  client.disconnect(() => tell(wire, 'lost', {why: 'closed'}));
}

readline.createInterface({input: process.stdin}).on('line', (line) => {
  const order = JSON.parse(line);
  if (order.open !== undefined) {
    open(order.wire, order.open, order.headers);
  } else if (order.close) {
    close(order.wire);
  } else {
    write(order);
  }
}).on('close', () => process.exit(0));
