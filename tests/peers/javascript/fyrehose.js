// fyrehose, from its document alone:
//   node fyrehose.js publish tcp|udp HOST PORT MESSAGE...
//   node fyrehose.js subscribe tcp|udp HOST PORT COUNT LOSE
//   node fyrehose.js serve LOSE
// A subscriber prints "ready", then "SEQUENCE DATA" in order. LOSE n throws away each n-th DELIVER when it first comes,
// as a bad network would; what is missing is requested. The backbone (serve, UDP) loses what it sends in the same way.
"use strict";

const dgram = require("node:dgram");
const { dial, say } = require("./stream.js");

const DELIVER = 0x01;
const PUSH = 0x02;
const REQUEST = 0x04;
const KEEPALIVE = 0x10;
const KEEPALIVE_ACK = 0x20;

function push(data) {
  const head = Buffer.alloc(3);
  head.writeUInt8(PUSH, 0);
  head.writeUInt16BE(data.length, 1);
  return Buffer.concat([head, data]);
}

function deliver(sequence, data) {
  const head = Buffer.alloc(9);
  head.writeUInt8(DELIVER, 0);
  head.writeUInt16BE(data.length, 1);
  head.writeUIntBE(sequence, 3, 6);
  return Buffer.concat([head, data]);
}

function addressed(type, { address, port }) {
  const packet = Buffer.alloc(7);
  packet.writeUInt8(type, 0);
  address.split(".").forEach((part, at) => packet.writeUInt8(Number(part), 1 + at));
  packet.writeUInt16BE(port, 5);
  return packet;
}

function request(own, first, last) {
  const range = Buffer.alloc(12);
  range.writeUIntBE(first, 0, 6);
  range.writeUIntBE(last, 6, 6);
  return Buffer.concat([addressed(REQUEST, own), range]);
}

// Puts messages in order, prints them, and asks for those that are missing.
class Subscriber {
  constructor(send, own, count, lose) {
    this.send = send;
    this.own = own;
    this.left = count;
    this.lose = lose;
    this.seen = new Set();
    this.held = new Map();
    this.next = 0;
    this.keepalive();
    this.timers = [setInterval(() => this.keepalive(), 1000), setInterval(() => this.repair(), 100)];
  }

  keepalive() {
    this.send(addressed(KEEPALIVE, this.own));
  }

  repair() {
    if (this.held.size > 0) this.send(request(this.own, this.next, Math.min(...this.held.keys()) - 1));
  }

  acknowledged(packet) {
    if (!packet.equals(addressed(KEEPALIVE_ACK, this.own))) throw new Error(`no ACK of ours: ${packet.toString("hex")}`);
    if (this.next === 0 && this.seen.size === 0) say("ready");
  }

  delivered(sequence, data) {
    if (this.left === 0) return;
    const first = !this.seen.has(sequence);
    this.seen.add(sequence);
    if (this.next === 0) this.next = sequence;
    else if (first && this.lose > 0 && this.seen.size % this.lose === 0) return;
    if (sequence < this.next) return;
    this.held.set(sequence, data);
    while (this.held.has(this.next) && this.left > 0) {
      say(`${this.next} ${this.held.get(this.next).toString()}`);
      this.held.delete(this.next);
      this.next += 1;
      this.left -= 1;
    }
    if (this.left === 0) this.timers.forEach(clearInterval);
    else this.repair();
  }
}

async function subscribeTcp(host, port, count, lose) {
  const stream = await dial(host, port);
  const { localAddress, localPort } = stream.socket;
  const own = { address: localAddress, port: localPort };
  const subscriber = new Subscriber((packet) => stream.write(packet), own, count, lose);
  while (subscriber.left > 0) {
    const type = (await stream.take(1)).readUInt8(0);
    if (type === KEEPALIVE_ACK) {
      subscriber.acknowledged(Buffer.concat([Buffer.from([type]), await stream.take(6)]));
    } else if (type === DELIVER) {
      const head = await stream.take(8);
      const data = await stream.take(head.readUInt16BE(0));
      subscriber.delivered(head.readUIntBE(2, 6), Buffer.from(data));
    } else {
      throw new Error(`a packet of type ${type}`);
    }
  }
  stream.socket.destroy();
}

function subscribeUdp(host, port, count, lose) {
  const socket = dgram.createSocket({ type: "udp4", recvBufferSize: 1 << 20 });
  socket.connect(Number(port), host, () => {
    const subscriber = new Subscriber((packet) => socket.send(packet), socket.address(), count, lose);
    socket.on("message", (datagram) => {
      if (datagram[0] === KEEPALIVE_ACK) subscriber.acknowledged(datagram);
      else if (datagram[0] === DELIVER) {
        const length = datagram.readUInt16BE(1);
        if (datagram.length !== 9 + length) throw new Error("not one whole DELIVER in a datagram");
        subscriber.delivered(datagram.readUIntBE(3, 6), datagram.subarray(9));
      } else throw new Error(`a packet of type ${datagram[0]}`);
      if (subscriber.left === 0) socket.close();
    });
  });
}

async function publish(transport, host, port, messages) {
  const packets = messages.map((message) => push(Buffer.from(message)));
  if (transport === "tcp") {
    const stream = await dial(host, port);
    stream.write(...packets);
    await stream.finish();
    return;
  }
  const socket = dgram.createSocket("udp4");
  for (const packet of packets) {
    await new Promise((resolve) => socket.send(packet, Number(port), host, resolve));
  }
  socket.close();
}

// A backbone that knows clients by the ADDR and PORT they state, and by nothing else.
function serve(lose) {
  const socket = dgram.createSocket("udp4");
  const messages = [];
  const clients = new Map();
  let sent = 0;
  const stated = (packet) => ({ address: [...packet.subarray(1, 5)].join("."), port: packet.readUInt16BE(5) });
  const send = (packet, to) => socket.send(packet, to.port, to.address);
  socket.on("message", (datagram) => {
    const type = datagram[0];
    if (type === KEEPALIVE) {
      const client = stated(datagram);
      clients.set(`${client.address}:${client.port}`, client);
      send(addressed(KEEPALIVE_ACK, client), client);
    } else if (type === REQUEST) {
      const last = Math.min(datagram.readUIntBE(13, 6), messages.length);
      for (let at = Math.max(datagram.readUIntBE(7, 6), 1); at <= last; at += 1) {
        send(deliver(at, messages[at - 1]), stated(datagram));
      }
    } else if (type === PUSH) {
      for (let at = 0; at < datagram.length; ) {
        const end = at + 3 + datagram.readUInt16BE(at + 1);
        messages.push(Buffer.from(datagram.subarray(at + 3, end)));
        at = end;
        for (const client of clients.values()) {
          sent += 1;
          if (lose === 0 || sent % lose !== 0) send(deliver(messages.length, messages.at(-1)), client);
        }
      }
    }
  });
  socket.bind(0, "127.0.0.1", () => say(`port ${socket.address().port}`));
}

const [command, ...rest] = process.argv.slice(2);
if (command === "publish") {
  const [transport, host, port, ...messages] = rest;
  void publish(transport, host, port, messages);
} else if (command === "subscribe") {
  const [transport, host, port, count, lose] = rest;
  const subscribe = transport === "udp" ? subscribeUdp : subscribeTcp;
  void subscribe(host, port, Number(count), Number(lose));
} else {
  serve(Number(rest[0]));
}
