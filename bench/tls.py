"""What TLS costs: the backbone's delivery, latency and new connections, with TLS and without, in one run.

The certificate is of an elliptic curve, as ``headrace keys tls`` makes it. Publishers and subscribers are raw sockets
in processes of their own, which encrypt and decrypt with the same OpenSSL: on a machine with few cores they pay as much
of the price as the hub does.
"""

from __future__ import annotations

import os
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Sequence
from functools import cache

import bench
from bench._peers import Headrace, Peer, running
from bench.backbone import delivery, round_trips
from headrace.cli.operate.keys.local_authority import LocalAuthority

_CA_VARIABLE = "HEADRACE_CA"


class HeadraceTls(Headrace):
    """The same hub with TLS at every door."""

    name = "headrace, TLS"

    def command(self) -> list[str]:
        authority = LocalAuthority(self.directory, days=1)
        made = authority.hub(["127.0.0.1"])
        # What other processes of the benchmark trust.
        os.environ[_CA_VARIABLE] = str(authority.certificate)
        return [*super().command(), "--set", f"tls.cert={made.certificate}", "--set", f"tls.key={made.key}"]

    def connect(self) -> socket.socket:
        return _trusted(os.environ[_CA_VARIABLE]).wrap_socket(super().connect(), server_hostname="127.0.0.1")


PEERS: tuple[type[Headrace], ...] = (Headrace, HeadraceTls)


def main(argv: Sequence[str]) -> int:
    return bench.run("tls", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure the hub with TLS and without."""
    rounds = 1 if quick else 3
    return [delivered(rounds, quick), *one_at_a_time(rounds, quick)]


def delivered(rounds: int, quick: bool) -> bench.Table:
    table = bench.Table(
        "delivered messages/s, all subscribers together",
        ("messages/s", "MB/s"),
        note="one publisher as fast as it can; until every subscriber has every message",
    )
    for size, subscribers in ((128, 1),) if quick else ((128, 1), (128, 8), (1024, 8)):
        total = 2_000 if quick else (256 << 20) // (size + 100) // subscribers * 2
        rates: dict[type[Headrace], list[float]] = {peer: [] for peer in PEERS}
        # In turns, so that what else the machine does for a while befalls each alike.
        for _ in range(rounds):
            for peer in PEERS:
                with running(peer) as server:
                    rates[peer].append(delivery(server, size, subscribers, total))
        for peer in PEERS:
            rate = statistics.median(rates[peer])
            case = f"{size} B x{subscribers}"
            base = None if peer is Headrace else f"{Headrace.name} {case}"
            least = 0.5 if base and subscribers == 8 and size == 128 and not quick else None
            table.add(f"{peer.name} {case}", rate, rate * size / 1e6, base=base, least=least)
    return table


def one_at_a_time(rounds: int, quick: bool) -> list[bench.Table]:
    """Single messages on one connection, and single connections, each with a question and its answer."""
    latency = bench.Table("latency of one 128-byte message at a time, µs", ("p50", "p99"))
    connections = bench.Table("new connections/s, one after another", ("connections/s",))
    messages, dials = (200, 20) if quick else (5_000, 500)
    for peer in PEERS:
        samples, rates = [], []
        for _ in range(rounds):
            with running(peer) as server:
                round_trips(server, 128, messages // 10)
                samples.append(sorted(round_trips(server, 128, messages)))
                begin = time.perf_counter()
                for _ in range(dials):
                    _ask(server)
                rates.append(dials / (time.perf_counter() - begin))
        base = None if peer is Headrace else Headrace.name
        p50, p99 = (
            statistics.median(sample[int(len(sample) * part)] for sample in samples) * 1e6
            for part in (0.5, 0.99)
        )
        latency.add(peer.name, p50, p99, base=base)
        connections.add(peer.name, statistics.median(rates), base=base)
    return [latency, connections]


@cache
def _trusted(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def _ask(server: Peer) -> None:
    how = server.subscribing(16)
    with server.connect() as sock:
        sock.sendall(how.hello)
        sock.recv(64)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
