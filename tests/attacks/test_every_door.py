"""Hostile bytes at every door, by bursts and by drops, and more connections than anybody needs."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import zlib
from contextlib import ExitStack, closing, suppress
from random import Random
from time import monotonic

import pytest
from tests.attacks.conftest import SOAK
from tests.attacks.good_client import AttackedHub, unharmed
from tests.attacks.hostile_bytes import SPOKEN, WAYS, seeds
from tests.system.observing import counter, eventually, status

CONNECTIONS = 2000 if SOAK else 24
"""Connections of one attack at one door."""

CROWD = 5000 if SOAK else 400
"""Connections at the same time."""

DATAGRAMS = 200_000 if SOAK else 1500


@pytest.mark.parametrize("door", SPOKEN)
def test_hostile_bytes(hub: AttackedHub, door: str) -> None:
    random = Random(zlib.crc32(door.encode()))
    with unharmed(hub, f"hostile bytes at {door}"):
        for way in WAYS.values():
            for number in range(CONNECTIONS):
                with (
                    closing(socket.create_connection(hub.address(door), timeout=10)) as sock,
                    suppress(OSError),
                ):
                    for _ in range(random.randint(1, 4)):
                        sock.sendall(way(door, random))
                    if number % 3 == 0:
                        sock.shutdown(socket.SHUT_WR)
                        sock.settimeout(0.01)
                        sock.recv(1 << 16)


def test_hostile_datagrams(hub: AttackedHub) -> None:
    random = Random(5)
    with unharmed(hub, "hostile datagrams"), closing(socket.socket(type=socket.SOCK_DGRAM)) as sock:
        for number in range(DATAGRAMS):
            way = list(WAYS.values())[number % len(WAYS)]
            with suppress(OSError):
                sock.sendto(way("fyrehose", random)[:60_000], hub.address("fyrehose"))


def test_bytes_that_come_one_by_one(hub: AttackedHub) -> None:
    """Slowloris: each connection is about to say something, for ever."""
    before = counter(hub, "refused")
    with unharmed(hub, "bytes that come one by one"), ExitStack() as stack:
        peers = [
            (
                stack.enter_context(closing(socket.create_connection(hub.address(door), timeout=10))),
                seeds(door)[0] * 40,
            )
            for door in SPOKEN
            for _ in range(60 if SOAK else 6)
        ]
        end = monotonic() + (60 if SOAK else 1.5)
        place = 0
        while monotonic() < end:
            for sock, data in peers:
                with suppress(OSError):
                    sock.send(data[place % len(data) :][:1])
            place += 1
            threading.Event().wait(0.05)
        # Deadlines are set by the hub: no byte of a frame buys more time for the rest of it.
        eventually("the slow are refused", lambda: counter(hub, "refused") > before)


def test_a_crowd_of_connections(hub: AttackedHub) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CROWD + 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, needed), hard), hard))
    doors = [door for door in SPOKEN if door != "http"]
    opened = 0
    with unharmed(hub, f"{CROWD} connections", most_bytes=256 << 20), ExitStack() as stack:
        for number in range(CROWD):
            sock = stack.enter_context(closing(socket.socket()))
            # As from many machines: one address alone does not get so many.
            sock.bind((f"127.0.{number % 20 + 1}.1", 0))
            sock.settimeout(10)
            with suppress(OSError):
                sock.connect(hub.address(doors[number % len(doors)]))
                opened += 1
        assert opened > CROWD * 0.9
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    eventually("they are forgotten", lambda: status(hub)["connections"] < 20)


def test_a_crowd_that_speaks_at_once(hub: AttackedHub) -> None:
    """What each says costs a tenth of a millisecond; it is there before the hub looks."""
    doors = [door for door in SPOKEN if door != "http"]
    with unharmed(hub, f"{CROWD} connections that speak at once"), ExitStack() as stack:
        peers = []
        for number in range(CROWD):
            sock = stack.enter_context(closing(socket.socket()))
            sock.bind((f"127.0.{number % 20 + 1}.1", 0))
            sock.settimeout(10)
            door = doors[number % len(doors)]
            with suppress(OSError):
                sock.connect(hub.address(door))
                peers.append((sock, seeds(door)[0]))
        before = status(hub)["connections"]
        os.kill(hub.pid, signal.SIGSTOP)
        for sock, data in peers:
            with suppress(OSError):
                sock.send(data)
        os.kill(hub.pid, signal.SIGCONT)
        eventually("some are refused", lambda: status(hub)["connections"] < before)
    eventually("they are forgotten", lambda: status(hub)["connections"] < 20)
