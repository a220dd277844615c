// A node of the parcel document, from that document alone:
//   node parcel.js join HOST PORT
// It listens, introduces itself, asks for the sequence number, and waits for a heartbeat, which it answers. It prints
// the modes it was told, the number, and "heartbeat".
"use strict";

const { dial, listen, say } = require("./stream.js");

const NODE = 4242;

// CBOR, as much as parcels need.
function encode(value) {
  if (typeof value === "boolean") return Buffer.from([value ? 0xf5 : 0xf4]);
  if (typeof value === "number") return head(0, value);
  if (typeof value === "string") return Buffer.concat([head(3, Buffer.byteLength(value)), Buffer.from(value)]);
  if (Array.isArray(value)) return Buffer.concat([head(4, value.length), ...value.map(encode)]);
  const pairs = Object.entries(value);
  return Buffer.concat([head(5, pairs.length), ...pairs.flatMap(([key, each]) => [encode(key), encode(each)])]);
}

function head(major, value) {
  if (value < 24) return Buffer.from([(major << 5) | value]);
  if (value < 256) return Buffer.from([(major << 5) | 24, value]);
  return Buffer.from([(major << 5) | 25, value >> 8, value & 0xff]);
}

function decode(data) {
  let at = 0;
  const next = () => {
    const [major, low] = [data[at] >> 5, data[at] & 0x1f];
    at += 1;
    if (major === 7) return low === 21;
    let value = low;
    if (low >= 24) {
      const size = 1 << (low - 24);
      value = Number(BigInt(`0x${data.subarray(at, at + size).toString("hex")}`));
      at += size;
    }
    if (major === 0) return value;
    if (major === 3) return data.subarray(at, (at += value)).toString();
    if (major === 4) return Array.from({ length: value }, next);
    return Object.fromEntries(Array.from({ length: value }, () => [next(), next()]));
  };
  return next();
}

function parcel(type, body, isResponse) {
  const encoded = encode({
    is_response: isResponse,
    parcel_type: type,
    id: NODE,
    size: encode(body).length,
    body,
  });
  return Buffer.concat([Buffer.from([encoded.length]), encoded]);
}

async function nextParcel(stream) {
  const size = await stream.take(1);
  return size === null ? null : decode(Buffer.from(await stream.take(size[0])));
}

async function join(host, port, own) {
  const identity = { id: NODE, mode: "DSC", name: "Iris", host: own };
  const stream = await dial(host, port);
  stream.write(parcel("DscReq", { DscReq: { identity } }, false));
  const discovered = await nextParcel(stream);
  say(discovered.body.DscRes.neighbours.map((each) => each.mode).join(" "));
  // The document's own words: "Ivan can send a SeqRes".
  stream.write(parcel("SeqRes", "Empty", false));
  say(String((await nextParcel(stream)).body.SeqRes.seq_number));
}

async function answer(stream) {
  for (let came = await nextParcel(stream); came !== null; came = await nextParcel(stream)) {
    if (came.parcel_type !== "DscReq") throw new Error(`not of the document: ${came.parcel_type}`);
    stream.write(parcel("DscRes", { DscRes: { neighbours: [] } }, true));
    say("heartbeat");
  }
}

const [, hubHost, hubPort] = process.argv.slice(2);
void listen(answer).then((port) => join(hubHost, hubPort, `127.0.0.1:${port}`));
