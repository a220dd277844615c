"""A client of content routing in a process of its own: ``python sdk_client.py HOST PORT CLIENT LOW HIGH``.

It subscribes ``x`` from LOW to HIGH, writes each message it gets to stdout as ``SEQ PAYLOAD``, and comes back, behind
the last it got, whenever its connection is lost. It ends when its stdin does. Bytes are built here from the protocol's
drawings, by nothing of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time


def command(*elements: bytes) -> bytes:
    body = b"*%d\r\n" % len(elements)
    for element in elements:
        body += b"$%d\r\n%b\r\n" % (len(element), element)
    return b"#%d\r\n%b" % (len(body), body)


last = 0
"""The number of the last message that came: what is known of it outlives any connection, however that ends."""


def converse(sock: socket.socket, client: str, field: bytes) -> None:
    """Take messages until the connection or stdin ends."""
    global last
    claim = {"client_id": client, "timestamp": "1700000000", "token": "", "after": last}
    sock.sendall(command(b"auth", json.dumps(claim).encode()) + command(b"sub", b"x", field))
    data = b""
    while True:
        readable, _, _ = select.select([sock, sys.stdin], [], [], 1.0)
        if sys.stdin in readable and not os.read(sys.stdin.fileno(), 1):
            sys.exit(0)
        if not readable:
            sock.sendall(command(b"hb"))
        if sock not in readable:
            continue
        more = sock.recv(1 << 16)
        if not more:
            return
        data += more
        while True:
            line, found, rest = data.partition(b"\r\n")
            if not found:
                break
            if not line.startswith(b"#"):
                if line not in (b"+authsuccess", b"+h"):
                    return
                data = rest
                continue
            length = int(line[1:])
            if len(rest) < length:
                break
            content = json.loads(rest[:length])
            data = rest[length:]
            # A client trusts what it is sent: repeats and disorder show in what it writes.
            last = content["seq"]
            print(last, content["payload"], flush=True)


def main() -> None:
    host, port, client, low, high = sys.argv[1:]
    field = json.dumps({"use": 2, "low": float(low), "high": float(high)}).encode()
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as sock:
            converse(sock, client, field)
        time.sleep(0.05)  # Not to wait for something: not to dial in a tight loop.
        if select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
            return


if __name__ == "__main__":
    main()
