// The SDK protocol and the publisher of the attribute family, from their document alone:
//   node sdk.js watch HOST PORT CITY COUNT
//   node sdk.js publish HOST PORT CITY MESSAGE...
//   node sdk.js serve MESSAGE...
// A watcher prints "ready" once it is subscribed to CITY and degrees from -40 to 0, then each payload. A server is a
// connector: it pushes its messages, without sequence numbers, to whoever subscribes.
"use strict";

const { dial, listen, say } = require("./stream.js");

function command(...elements) {
  let body = `*${elements.length}\r\n`;
  for (const element of elements) body += `$${Buffer.byteLength(element)}\r\n${element}\r\n`;
  return `#${Buffer.byteLength(body)}\r\n${body}`;
}

function pushMessage(content) {
  const text = `${JSON.stringify(content)}\r\n`;
  return `#${Buffer.byteLength(text)}\r\n${text}`;
}

async function watch(host, port, city, count) {
  const stream = await dial(host, port);
  const claim = { client_id: "5f3c0a10b1e24d7780c1a2aa", timestamp: "1700000000", token: "none" };
  const cityField = { use: 1, strval: city, low: 0, high: 0, extra: "" };
  const degreesField = { use: 2, strval: "", low: -40, high: 0, extra: "" };
  stream.write(command("auth", JSON.stringify(claim)));
  if ((await stream.line()) !== "+authsuccess") throw new Error("auth was refused");
  stream.write(command("sub", "city", JSON.stringify(cityField), "degrees", JSON.stringify(degreesField)));
  stream.write(command("hb"));
  if ((await stream.line()) !== "+h") throw new Error("no heartbeat reply");
  say("ready");
  for (let left = Number(count); left > 0; left -= 1) {
    const line = await stream.line();
    if (line[0] !== "#") throw new Error(`no push: ${line}`);
    const text = (await stream.take(Number(line.slice(1)))).toString();
    if (!text.endsWith("\r\n")) throw new Error("the length does not count the last CR LF");
    const content = JSON.parse(text);
    say(content.type === 2 ? Buffer.from(content.payload, "base64").toString("latin1") : content.payload);
  }
  stream.socket.destroy();
}

function item(id, content) {
  const head = Buffer.alloc(3);
  head.writeUInt8(id, 0);
  head.writeUInt16BE(content.length, 1);
  return Buffer.concat([head, content]);
}

function publishMessage(attributes, payload) {
  const body = Buffer.concat([item(1, Buffer.from(JSON.stringify(attributes))), item(2, Buffer.from(payload))]);
  const head = Buffer.alloc(4);
  head.writeUInt8(1, 0);
  head.writeUInt16BE(body.length, 1);
  return Buffer.concat([head, body]);
}

async function publish(host, port, city, messages) {
  const stream = await dial(host, port);
  for (const message of messages) {
    stream.write(publishMessage({ city: "elsewhere", degrees: -1 }, "not for anybody"));
    stream.write(publishMessage({ city, degrees: 0.5 }, "too warm"));
    stream.write(publishMessage({ city, degrees: -1 }, message));
  }
  await stream.finish();
}

// The elements of the next command; null at the end.
async function nextCommand(stream) {
  const line = await stream.line();
  if (line === null) return null;
  await stream.line();
  const elements = [];
  for (let left = Number(line.slice(1)) - 4; left > 0; ) {
    const size = await stream.line();
    const data = await stream.take(Number(size.slice(1)) + 2);
    elements.push(data.subarray(0, -2).toString());
    left -= size.length + 2 + data.length;
  }
  return elements;
}

function serve(messages) {
  void listen(async (stream) => {
    for (let came = await nextCommand(stream); came !== null; came = await nextCommand(stream)) {
      if (came[0] === "auth") stream.write("+authsuccess\r\n");
      else if (came[0] === "hb") stream.write("+h\r\n");
      else if (came[0] === "sub" && came.length > 1) {
        for (const payload of messages) stream.write(pushMessage({ payload, type: 1 }));
      }
    }
  });
}

const [name, ...rest] = process.argv.slice(2);
if (name === "watch") void watch(...rest);
else if (name === "publish") void publish(rest[0], rest[1], rest[2], rest.slice(3));
else serve(rest);
