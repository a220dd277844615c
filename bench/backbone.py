"""The backbone against NATS and Redis: delivery, latency, persisted publishing, replay, in one run.

Every server runs on this machine in turn; Headrace always with its log on (``fsync=interval``), the others with their
stores where persistence is measured. Publishers and subscribers are raw sockets in processes of their own. A figure is
the median of its rounds.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import statistics
import struct
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np

import bench
from bench._peers import (
    Headrace,
    Mosquitto,
    Nats,
    Peer,
    Redis,
    Subscribing,
    available,
    disk_speed,
    receive_bytes,
    receive_until,
    running,
    versions,
)
from headrace.client.udp_offload import MAX_SEGMENTS, UDP_SEGMENT, enable_segments, enlarge
from headrace.message import Run
from headrace.wire.fyrehose.stream import MAX_DATA, MAX_DATAGRAM, deliver_packets

PEERS: tuple[type[Peer], ...] = (Headrace, Nats, Redis, Mosquitto)
SIZES = (16, 128, 1024, MAX_DATA)
"""The last is all that a message of fyrehose takes: a little less than 64 KiB."""
CHUNK = 64 << 10
_EVERY_128 = np.arange(513, dtype=np.int32) * 128


@dataclass(frozen=True, slots=True)
class Load:
    """What a publisher sends: a chunk of messages so many times, then the rest."""

    chunk: bytes
    per_chunk: int
    chunks: int
    rest: bytes
    in_rest: int


_spawn = multiprocessing.get_context("spawn")


def main(argv: Sequence[str]) -> int:
    return bench.run("backbone", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure Headrace and whichever of nats-server and redis-server are installed."""
    peers = [peer for peer in PEERS if available(peer)]
    rounds = 1 if quick else 3
    tables = [delivered(peers, rounds, quick), latency(peers, rounds, quick), persisted(peers, rounds, quick)]
    return [*tables, replayed(quick), datagrams(quick), ceilings(quick)]


def delivered(peers: list[type[Peer]], rounds: int, quick: bool) -> bench.Table:
    table = bench.Table(
        "delivered messages/s, all subscribers together",
        ("messages/s", "MB/s", "lowest", "highest"),
        note=f"one publisher as fast as it can; until every subscriber has every message; {versions(peers)}",
    )
    for size in (128,) if quick else SIZES:
        for subscribers in (1,) if quick else (1, 8):
            total = 2_000 if quick else (256 << 20) // (size + 100) // subscribers * 2
            case = f"{size} B x{subscribers}"

            def once(peer: type[Peer], size: int = size, to: int = subscribers, total: int = total) -> float:
                # Who is slower than this by far is measured with less.
                part = total // 4 if peer is Mosquitto else total
                with running(peer) as server:
                    return delivery(server, size, to, part)

            for peer, rates in bench.in_turns(peers, once, rounds).items():
                rate = statistics.median(rates)
                figures = rate, rate * size / 1e6, min(rates), max(rates)
                key = peer is Headrace
                table.add(f"{peer.name} {case}", *figures, base=_base(peer, peers, case), key=key)
    return table


def latency(peers: list[type[Peer]], rounds: int, quick: bool) -> bench.Table:
    table = bench.Table(
        "latency of one 128-byte message at a time, µs",
        ("p99", "p50", "p99.9"),
        note=f"publish to delivery, one process; {versions(peers)}",
        less_is_better=True,
    )
    count = 200 if quick else 10_000

    def once(peer: type[Peer]) -> list[float]:
        with running(peer) as server:
            round_trips(server, 128, count // 10)
            return round_trips(server, 128, count)

    samples = bench.in_turns(peers, once, rounds)
    for peer in peers:
        p50, p99, p999 = (
            statistics.median(sorted(sample)[int(len(sample) * part)] for sample in samples[peer]) * 1e6
            for part in (0.5, 0.99, 0.999)
        )
        table.add(peer.name, p99, p50, p999, base=_base(peer, peers), key=peer is Headrace)
    return table


def persisted(peers: list[type[Peer]], rounds: int, quick: bool) -> bench.Table:
    table = bench.Table(
        "persisted 128-byte messages/s",
        ("messages/s", "MB/s"),
        note="to the log's head, to JetStream's acknowledgement (file), to XADD's answer (append-only file, everysec); "
        + versions(peers),
    )
    total = 2_000 if quick else 1_000_000
    ways: dict[type[Peer], tuple[str, Callable[[Any, int, int], float]]] = {
        Headrace: ("headrace", _persist_headrace),
        Nats: ("nats JetStream", _persist_jetstream),
        Redis: ("redis Streams", _persist_streams),
    }

    def once(peer: type[Peer]) -> float:
        with running(peer, **({"persist": True} if peer is Redis else {})) as server:
            return ways[peer][1](server, 128, total if peer is Headrace else total // 5)

    keeping = [peer for peer in peers if peer in ways]
    for peer, rates in bench.in_turns(keeping, once, rounds).items():
        rate = statistics.median(rates)
        table.add(
            ways[peer][0], rate, rate * 128 / 1e6, base=_base(peer, peers, "JetStream"), key=peer is Headrace
        )
    return table


def replayed(quick: bool) -> bench.Table:
    """REQUEST of everything over TCP, from the open tail and from a sealed segment."""
    table = bench.Table("replay of 128-byte messages as DELIVER to a raw reader", ("messages/s", "MB/s"))
    total = 2_000 if quick else 2_000_000
    with running(Headrace) as server:
        assert isinstance(server, Headrace)
        _persist_headrace(server, 128, total)
        for name in ("from the open tail", "from sealed segments"):
            if "sealed" in name:
                server.seal()
            rates = []
            for _ in range(1 if quick else 3):
                with server.connect() as sock:
                    begin = time.perf_counter()
                    sock.sendall(b"\x04" + bytes(6) + (1).to_bytes(6) + total.to_bytes(6))
                    receive_bytes(sock, total * (9 + 128))
                    rates.append(total / (time.perf_counter() - begin))
            rate = statistics.median(rates)
            table.add(name, rate, rate * 128 / 1e6)
    return table


def datagrams(quick: bool) -> bench.Table:
    """Whether ``UDP_SEGMENT`` and ``UDP_GRO`` are worth having: the same DELIVERs with and without them."""
    table = bench.Table(
        "datagrams/s of one 128-byte DELIVER each, over loopback",
        ("datagrams/s",),
        note="in bursts that the receiver answers, so that none is lost",
    )
    bursts, rounds = (4, 1) if quick else (400, 3)
    for name, sending, receiving in (
        ("one datagram a call", False, False),
        ("UDP_SEGMENT out", True, False),
        ("UDP_SEGMENT out, UDP_GRO in", True, True),
    ):
        rates = [_bursts(bursts, segments=sending, joined=receiving) for _ in range(rounds)]
        table.add(name, statistics.median(rates), base="one datagram a call" if sending else None)
    return table


def ceilings(quick: bool) -> bench.Table:
    """What the machine itself can do: one stream over loopback, one file."""
    table = bench.Table("ceilings of this machine", ("MB/s",))
    total = (1 << 20) if quick else (512 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader = _spawn.Process(target=_drain, args=(listening.getsockname()[1], total))
        reader.start()
        sock, _ = listening.accept()
        with sock:
            block = bytes(1 << 20)
            begin = time.perf_counter()
            for _ in range(total >> 20):
                sock.sendall(block)
            sock.recv(1)
            table.add("loopback, 1 MiB writes", total / (time.perf_counter() - begin) / 1e6)
        reader.join()
    table.add("disk, 1 MiB writes and a sync", disk_speed(Path(tempfile.gettempdir()), total) / 1e6)
    return table


def _base(peer: type[Peer], peers: list[type[Peer]], case: str = "") -> str | None:
    """The row that others are compared with: NATS's, where it is installed."""
    return f"{Nats.name} {case}".rstrip() if Nats in peers and peer is not Nats else None


def delivery(server: Peer, size: int, subscribers: int, total: int) -> float:
    """Messages per second at all subscribers together."""
    told: Queue[float] = _spawn.Queue()
    begun: Queue[float] = _spawn.Queue()
    how = server.subscribing(size)
    readers = [
        _spawn.Process(target=_subscriber, args=(type(server), server.port, how, total, told))
        for _ in range(subscribers)
    ]
    for reader in readers:
        reader.start()
    for _ in readers:
        told.get(timeout=60)
    per_chunk = max(1, CHUNK // (size + 16))
    chunk = server.publication(bytes(size)) * per_chunk
    rest = server.publication(bytes(size)) * (total % per_chunk)
    load = Load(chunk, per_chunk, total // per_chunk, rest, total % per_chunk)
    writer = _spawn.Process(target=_publisher, args=(type(server), server.port, load, begun))
    writer.start()
    begin = begun.get(timeout=60)
    ends = [told.get(timeout=300) for _ in readers]
    for process in (*readers, writer):
        process.join()
    return subscribers * total / (max(ends) - begin)


def _subscriber(peer: type[Peer], port: int, how: Subscribing, total: int, told: Queue[float]) -> None:
    server = at(peer, port)
    with server.connect() as sock:
        sock.sendall(how.hello)
        receive_until(sock, how.greeting)
        told.put(0.0)
        missing, buffer = total * how.message_bytes, bytearray(1 << 20)
        due = time.monotonic() + 1
        while missing > 0:
            got = sock.recv_into(buffer)
            if not got:
                raise ConnectionError("the subscriber was cut off")
            missing -= got
            if how.keepalive and time.monotonic() > due:
                sock.sendall(how.keepalive)
                missing += how.keepalive_answer
                due += 1
        told.put(time.time())


def _publisher(peer: type[Peer], port: int, load: Load, begun: Queue[float]) -> None:
    server = at(peer, port)
    answers = server.answer_bytes(load.per_chunk)
    with server.connect() as sock:
        begun.put(time.time())
        for index in range(load.chunks):
            sock.sendall(load.chunk)
            # A publisher that is answered must read, one chunk behind, or both sides stand still.
            if answers is not None and index:
                receive_bytes(sock, answers)
        sock.sendall(load.rest)
        if peer is Nats:
            # It forgets what it has not yet read when a publisher goes.
            sock.sendall(b"PING\r\n")
            receive_until(sock, b"PONG\r\n")
        elif answers is not None:
            # Closing on unread answers would reset the connection, and what is on its way with it.
            receive_bytes(sock, (answers if load.chunks else 0) + (server.answer_bytes(load.in_rest) or 0))


def round_trips(server: Peer, size: int, count: int) -> list[float]:
    how = server.subscribing(size)
    message = server.publication(bytes(size))
    times = []
    with server.connect() as subscriber, server.connect() as publisher:
        subscriber.sendall(how.hello)
        receive_until(subscriber, how.greeting)
        due = time.monotonic() + 1
        for _ in range(count):
            begin = time.perf_counter()
            publisher.sendall(message)
            receive_bytes(subscriber, how.message_bytes)
            times.append(time.perf_counter() - begin)
            if (answers := server.answer_bytes(1)) is not None:
                receive_bytes(publisher, answers)
            if how.keepalive and time.monotonic() > due:
                subscriber.sendall(how.keepalive)
                receive_bytes(subscriber, how.keepalive_answer)
                due += 1
    return times


def _persist_headrace(server: Headrace, size: int, total: int) -> float:
    per_chunk = CHUNK // size
    chunk = server.publication(bytes(size)) * per_chunk
    with server.connect() as sock:
        begin = time.perf_counter()
        for _ in range(total // per_chunk):
            sock.sendall(chunk)
        sock.sendall(server.publication(bytes(size)) * (total % per_chunk))
        while json.load(urllib.request.urlopen(f"{server.http}/api/status"))["head"] < total:
            time.sleep(0.002)
        return total / (time.perf_counter() - begin)


def _persist_jetstream(server: Nats, size: int, total: int) -> float:
    with server.connect() as sock:
        server.make_stream(sock)
        return _windowed(
            sock, server.publication(bytes(size), b"_I.a "), total, lambda data: data.count(b'"seq":'), 6
        )


def _persist_streams(server: Redis, size: int, total: int) -> float:
    with server.connect() as sock:
        return _windowed(sock, server.entry(bytes(size)), total, lambda data: data.count(b"$"), 1)


def _windowed(
    sock: socket.socket, message: bytes, total: int, count: Callable[[bytes], int], overlap: int
) -> float:
    """Publish with a bounded number unanswered; messages per second until the last answer."""
    step, window = 500, 4_000
    chunk, sent, answered, tail = message * step, 0, 0, b""
    begin = time.perf_counter()
    while answered < total:
        while sent < total and sent - answered <= window - step:
            part = min(step, total - sent)
            sock.sendall(chunk if part == step else message * part)
            sent += part
        data = tail + sock.recv(1 << 18)
        answered += count(data) - count(tail)
        tail = data[-(overlap - 1) :] if overlap > 1 else b""
    return total / (time.perf_counter() - begin)


_BURST = 512
"""Datagrams between two answers: what any socket buffer holds."""


def _bursts(bursts: int, *, segments: bool, joined: bool) -> float:
    """Datagrams per second, sent as the door sends them and received as the client does."""
    size = 9 + 128
    packets, edges, _ = deliver_packets(Run(np.zeros(_BURST * 128, np.uint8), _EVERY_128), 1)
    whole = memoryview(packets)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(60)
        receiver = _spawn.Process(target=_take_bursts, args=(sock.getsockname()[1], bursts, joined))
        receiver.start()
        _, to = sock.recvfrom(1)
        per_call = min(MAX_SEGMENTS, MAX_DATAGRAM // size) if segments else 1
        option = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))] if segments else []
        begin = time.perf_counter()
        for _ in range(bursts):
            for at in range(0, _BURST, per_call):
                part = whole[int(edges[at]) : int(edges[min(at + per_call, _BURST)])]
                sock.sendmsg([part], option, 0, to)
            sock.recv(1)
        rate = bursts * _BURST / (time.perf_counter() - begin)
        receiver.join()
    return rate


def _take_bursts(port: int, bursts: int, joined: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        enlarge(sock, socket.SO_RCVBUF, 8 << 20)
        if joined:
            enable_segments(sock)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", port))
        sock.send(b".")
        buffer = bytearray(1 << 16)
        for _ in range(bursts):
            missing = _BURST * (9 + 128)
            while missing > 0:
                missing -= sock.recvmsg_into([buffer], 64)[0]
            sock.send(b".")


def _drain(port: int, total: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        receive_bytes(sock, total)
        sock.sendall(b".")


def at(peer: type[Peer], port: int) -> Peer:
    """A peer that another process started."""
    server = peer(Path())
    server.port = port
    return server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
