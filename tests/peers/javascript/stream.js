// A TCP connection that is read by the byte, and a server that says which port it got.
"use strict";

const net = require("node:net");

class Stream {
  constructor(socket) {
    this.socket = socket;
    this.ahead = Buffer.alloc(0);
    this.ended = false;
    this.wake = null;
    socket.setNoDelay(true);
    socket.on("data", (data) => {
      this.ahead = Buffer.concat([this.ahead, data]);
      this.#woken();
    });
    for (const event of ["end", "close", "error"]) {
      socket.on(event, () => {
        this.ended = true;
        this.#woken();
      });
    }
  }

  #woken() {
    const wake = this.wake;
    this.wake = null;
    if (wake) wake();
  }

  // The next n bytes; null if the connection ends before them.
  async take(n) {
    while (this.ahead.length < n) {
      if (this.ended) return null;
      await new Promise((resolve) => (this.wake = resolve));
    }
    const taken = this.ahead.subarray(0, n);
    this.ahead = this.ahead.subarray(n);
    return taken;
  }

  // The next line, without its CR LF; null at the end.
  async line() {
    let text = "";
    for (;;) {
      const byte = await this.take(1);
      if (byte === null) return null;
      text += byte.toString("latin1");
      if (text.endsWith("\r\n")) return text.slice(0, -2);
    }
  }

  write(...pieces) {
    this.socket.write(Buffer.concat(pieces.map((piece) => Buffer.from(piece))));
  }

  // Say that nothing more follows, and wait until the other side has ended too.
  async finish() {
    this.socket.end();
    while (!this.ended) await new Promise((resolve) => (this.wake = resolve));
    this.socket.destroy();
  }
}

function dial(host, port) {
  return new Promise((resolve, reject) => {
    const socket = net.createConnection({ host, port: Number(port) }, () => resolve(new Stream(socket)));
    socket.once("error", reject);
  });
}

// Listen on a free port of this machine, print it, and serve each connection; gives the port.
function listen(serve) {
  const server = net.createServer((socket) => void serve(new Stream(socket)));
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => {
      say(`port ${server.address().port}`);
      resolve(server.address().port);
    });
  });
}

function say(line) {
  process.stdout.write(`${line}\n`);
}

module.exports = { Stream, dial, listen, say };
