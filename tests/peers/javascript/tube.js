// The tube over TCP, from its document alone:
//   node tube.js talk HOST PORT MESSAGE...
//   node tube.js serve
// A client sends each message in fragments of the server's size or three bytes, and compressed, and prints what comes
// back. A server sends every message back, compressed if it came so, and says so ("compressed N" or "plain N").
"use strict";

const zlib = require("node:zlib");
const { dial, listen, say } = require("./stream.js");

const DEFLATE = 1;
const PING = 16;
const PONG = 17;
const WANTED = 1000;

function varint(value) {
  const bytes = [];
  let left = BigInt.asUintN(32, (BigInt(value) << 1n) ^ (BigInt(value) >> 31n));
  while (left > 0x7fn) {
    bytes.push(Number(left & 0x7fn) | 0x80);
    left >>= 7n;
  }
  bytes.push(Number(left));
  return Buffer.from(bytes);
}

async function readVarint(stream) {
  let value = 0n;
  for (let at = 0n; at < 5n; at += 1n) {
    const byte = await stream.take(1);
    if (byte === null) return null;
    value |= BigInt(byte[0] & 0x7f) << (7n * at);
    if (byte[0] < 0x80) return Number((value >> 1n) ^ -(value & 1n));
  }
  throw new Error("a number of more than five bytes");
}

function message(data, size, compression = 0) {
  const body = compression === DEFLATE ? zlib.deflateSync(data) : data;
  const fragments = [];
  for (let at = 0; at < body.length || at === 0; at += size) {
    const fragment = body.subarray(at, at + size);
    fragments.push(varint(fragment.length), fragment);
  }
  const count = fragments.length / 2;
  const head = count < 8 ? Buffer.from([(compression << 3) | count]) : Buffer.concat([Buffer.from([compression << 3]), varint(count)]);
  return Buffer.concat([head, ...fragments]);
}

// The next message, with its compression; Pings are answered, other control codes returned; null at the end.
async function hear(stream, longest) {
  for (;;) {
    const head = await stream.take(1);
    if (head === null) return null;
    const code = head[0] >> 3;
    if (code === PING) {
      stream.write([PONG << 3]);
      continue;
    }
    if (code >= 8) return { code };
    let count = head[0] & 7;
    if (count === 0) count = await readVarint(stream);
    const fragments = [];
    for (; count > 0; count -= 1) {
      const length = await readVarint(stream);
      if (length > longest) throw new Error(`a fragment of ${length} bytes, where ${longest} were asked for`);
      fragments.push(await stream.take(length));
    }
    const body = Buffer.concat(fragments);
    return { code, data: code === DEFLATE ? zlib.inflateSync(body) : body };
  }
}

async function talk(host, port, messages) {
  const stream = await dial(host, port);
  stream.write(varint(WANTED));
  const theirs = await readVarint(stream);
  for (const text of messages) {
    const data = Buffer.from(text);
    for (const wire of [message(data, theirs), message(data, 3), message(data, theirs, DEFLATE)]) {
      stream.write(wire);
      say((await hear(stream, WANTED)).data.toString());
    }
  }
  stream.write([PING << 3]);
  if ((await hear(stream, WANTED)).code !== PONG) throw new Error("no Pong");
  say("pong");
  await stream.finish();
}

function serve() {
  void listen(async (stream) => {
    const theirs = await readVarint(stream);
    stream.write(varint(WANTED));
    for (let came = await hear(stream, WANTED); came !== null; came = await hear(stream, WANTED)) {
      if (came.code >= 8) continue;
      say(`${came.code === DEFLATE ? "compressed" : "plain"} ${came.data.length}`);
      stream.write(message(came.data, theirs, came.code));
    }
    stream.socket.end();
  });
}

const [command, ...rest] = process.argv.slice(2);
if (command === "talk") void talk(rest[0], rest[1], rest.slice(2));
else serve();
