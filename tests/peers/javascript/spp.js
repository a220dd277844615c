// SPP, from its document alone:
//   node spp.js watch HOST PORT SERVICE COUNT
//   node spp.js serve SERVICE MESSAGE...
// A watcher waits for the service's offer, subscribes, and prints each message about it. A server offers one service,
// and sends its messages to whoever subscribes: the object first, then the changes.
"use strict";

const { dial, listen, say } = require("./stream.js");

const OFFER = 1;
const SUBSCRIBE = 1;
const UNSUBSCRIBE = 2;
const INFO = 16;

function integer(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value, 0);
  return bytes;
}

function string(text) {
  const bytes = Buffer.from(text);
  return Buffer.concat([integer(bytes.length), bytes]);
}

function packet(msgtype, data) {
  return Buffer.concat([integer(msgtype), integer(data.length), data]);
}

async function nextPacket(stream) {
  const head = await stream.take(8);
  if (head === null) return null;
  return { msgtype: head.readUInt32BE(0), data: Buffer.from(await stream.take(head.readUInt32BE(4))) };
}

function strings(data) {
  const found = [];
  for (let at = 0; at < data.length; ) {
    const end = at + 4 + data.readUInt32BE(at);
    found.push(data.subarray(at + 4, end).toString());
    at = end;
  }
  return found;
}

async function watch(host, port, service, count) {
  const stream = await dial(host, port);
  // Of another application: "should be ignored by the protocol".
  stream.write(packet(0, Buffer.from("test")), packet(33, Buffer.concat([string("anna"), string("cat8dog9!")])));
  let left = Number(count);
  while (left > 0) {
    const { msgtype, data } = await nextPacket(stream);
    if (msgtype === OFFER && strings(data)[0] === service) {
      stream.write(packet(SUBSCRIBE, string(service)));
    } else if (msgtype === INFO && strings(data)[0] === service) {
      say(strings(data)[1]);
      left -= 1;
    }
  }
  stream.write(packet(UNSUBSCRIBE, string(service)));
  await stream.finish();
}

function serve(service, messages) {
  void listen(async (stream) => {
    stream.write(packet(0, Buffer.from("test")), packet(OFFER, string(service)), packet(40, Buffer.alloc(100)));
    for (let came = await nextPacket(stream); came !== null; came = await nextPacket(stream)) {
      if (came.msgtype === SUBSCRIBE && strings(came.data)[0] === service) {
        for (const message of messages) {
          stream.write(packet(INFO, Buffer.concat([string("nobody asked"), string("x")])));
          stream.write(packet(INFO, Buffer.concat([string(service), string(message)])));
        }
      }
    }
  });
}

const [command, ...rest] = process.argv.slice(2);
if (command === "watch") void watch(...rest);
else serve(rest[0], rest.slice(1));
