"""HTTP: publishing and following beside the Durable Streams protocol's own server, in one run.

The peer is ``@durable-streams/server`` (Node, in memory), from npm if that can be reached; Headrace writes every
message to its log and numbers it. Load comes from raw sockets, the same requests for both: appends to a stream of
bytes, one at a time on each connection, and a reader of server-sent events.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bench
from headrace.config import DOORS

INSTALLED = Path(__file__).parents[1] / ".durable-streams" / "server"
PACKAGE = "@durable-streams/server@0.3.7"
SERVE = """
import { DurableStreamTestServer } from "@durable-streams/server";
const server = new DurableStreamTestServer({ port: 0, host: "127.0.0.1" });
console.log(await server.start());
"""
BODY = b"x" * 128
DEADLINE = 30.0


def main(argv: Sequence[str]) -> int:
    return bench.run("http_streams", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure Headrace, and the protocol's own server if it can be had."""
    appended = bench.Table(
        "appended messages/s over HTTP, 128 bytes", ("messages/s",), note="one at a time on each connection"
    )
    followed = bench.Table("latency from an append to its event, µs", ("p50", "p99"), less_is_better=True)
    count = 50 if quick else 2_000
    # What a run that means nothing would take longest for is fetching a peer.
    peer = None if quick else _peer()
    servers = [("headrace", _headrace), *([] if peer is None else [("durable-streams", peer)])]
    base = servers[-1][0] if peer is not None else None
    for name, start in reversed(servers):
        with start() as port:
            _answered(port, b"PUT", b"", 201)
            for connections in (1, 8):
                rate = _appended(port, connections, count)
                other = None if name == base or base is None else f"{base} x{connections}"
                appended.add(f"{name} x{connections}", rate, base=other)
            samples = sorted(_latencies(port, count // 4))
            p50, p99 = (samples[int(len(samples) * part)] * 1e6 for part in (0.5, 0.99))
            followed.add(name, p50, p99, base=None if name == base else base)
    return [appended, followed]


def _appended(port: int, connections: int, count: int) -> float:
    """Append from several connections at once; return messages a second."""
    begin = time.perf_counter()
    workers = [threading.Thread(target=_append, args=(port, count)) for _ in range(connections)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return connections * count / (time.perf_counter() - begin)


def _append(port: int, count: int) -> None:
    with _connected(port) as sock:
        for _ in range(count):
            answer = _ask(sock, b"POST", BODY)
            if not answer.startswith(b"HTTP/1.1 20"):
                raise RuntimeError(f"the server answered {answer[:200]!r}")


def _latencies(port: int, count: int) -> list[float]:
    """Append one message at a time, each when the one before has come as an event; return the seconds of each."""
    found = []
    with _connected(port) as reader, _connected(port) as writer:
        reader.sendall(b"GET /v1/stream/bench?offset=now&live=sse HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        _read_until(reader, b"upToDate")
        for _ in range(count):
            begin = time.perf_counter()
            writer.sendall(_request(b"POST", BODY))
            # It stands in the event after the message's own, which is sent with it.
            _read_until(reader, b"upToDate")
            found.append(time.perf_counter() - begin)
            _read_answer(writer)
    return found


def _answered(port: int, method: bytes, body: bytes, status: int) -> None:
    with _connected(port) as sock:
        answer = _ask(sock, method, body)
    if not answer.startswith(b"HTTP/1.1 %d" % status):
        raise RuntimeError(f"the server answered {answer[:200]!r}")


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _request(method: bytes, body: bytes) -> bytes:
    head = (
        b"%s /v1/stream/bench HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
        % method
    )
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _ask(sock: socket.socket, method: bytes, body: bytes) -> bytes:
    sock.sendall(_request(method, body))
    return _read_answer(sock)


def _read_answer(sock: socket.socket) -> bytes:
    # An append is answered without a body.
    return _read_until(sock, b"\r\n\r\n")


def _read_until(sock: socket.socket, mark: bytes) -> bytes:
    read = b""
    while mark not in read:
        some = sock.recv(1 << 16)
        if not some:
            raise RuntimeError(f"the server hung up after {read[-200:]!r}")
        read += some
    return read


@contextlib.contextmanager
def _headrace() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        sets = [f"--set=listen.{door}={'127.0.0.1:0' if door == 'http' else 'off'}" for door in DOORS]
        command = [
            sys.executable,
            "-m",
            "headrace",
            "serve",
            "--data",
            folder,
            "--ready-file",
            str(ready),
            *sets,
        ]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + DEADLINE
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the hub does not start")
                time.sleep(0.02)
            yield int(json.loads(ready.read_text())["http"].rpartition(":")[2])
        finally:
            process.terminate()
            process.wait()


def _peer() -> Any:
    """Return what starts the protocol's own server; ``None`` if it cannot be installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    if not (INSTALLED / "node_modules").exists():
        INSTALLED.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(INSTALLED), PACKAGE]
        if subprocess.run(install, capture_output=True, timeout=200, check=False).returncode:
            return None
    (INSTALLED / "serve.mjs").write_text(SERVE)

    @contextlib.contextmanager
    def start() -> Iterator[int]:
        process = subprocess.Popen([node, "serve.mjs"], cwd=INSTALLED, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().strip().rpartition(":")[2])
        finally:
            process.terminate()
            process.wait()

    return start


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
