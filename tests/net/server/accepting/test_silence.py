"""How long a peer may be silent, at every door: one that never says anything, and one that stops its heartbeats."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterator

import pytest

from headrace.config import DOORS
from headrace.testing import Hub

SECONDS = 20.0
KEEPALIVE = b"\x10" + bytes(6)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """A hub whose every deadline is short."""
    names = ("silent", "handshake", "idle", "routing_idle")
    settings: dict[str, object] = {f"limits.{name}_seconds": 0.5 for name in names}
    with Hub({**settings, "fyrehose.subscriber_seconds": 0.2}) as hub:
        yield hub


def dial(hub: Hub, door: str) -> socket.socket:
    host, _, port = hub.doors[door].rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def rest(sock: socket.socket) -> None:
    """Read until the hub ends the connection."""
    while True:
        try:
            if not sock.recv(4096):
                return
        except ConnectionError:
            return


@pytest.mark.parametrize("door", DOORS)
def test_who_never_says_anything_is_cut_off(hub: Hub, door: str) -> None:
    with dial(hub, door) as sock:
        rest(sock)


def test_a_subscriber_that_stops_its_keepalives_is_cut_off(hub: Hub) -> None:
    with dial(hub, "fyrehose") as sock:
        sock.sendall(KEEPALIVE)
        assert sock.recv(7) == b"\x20" + bytes(6)
        rest(sock)
    counters = hub._running.hub.counters
    assert counters.get("refused", door="fyrehose", reason="idle") >= 1


def test_who_keeps_saying_something_stays(hub: Hub) -> None:
    with dial(hub, "fyrehose") as sock, dial(hub, "fyrehose") as silent:
        while not select.select([silent], [], [], 0.01)[0]:
            sock.sendall(KEEPALIVE)
            assert sock.recv(7) == b"\x20" + bytes(6)


def test_a_publisher_that_has_spoken_need_not_say_when_it_will_again(hub: Hub) -> None:
    """Its protocol has no heartbeats, and no answer from which it would learn that a message is lost."""
    head = len(hub.messages())
    with dial(hub, "fyrehose") as sock:
        sock.sendall(b"\x02\x00\x01a")
        hub.wait_for(head + 1)
        with dial(hub, "fyrehose") as silent:
            rest(silent)
        sock.sendall(b"\x02\x00\x01b")
        assert [message.payload for message in hub.wait_for(head + 2)][-2:] == [b"a", b"b"]


async def test_our_own_clients_stay_connected(hub: Hub) -> None:
    async with (
        hub.connect("fyrehose://", subscribe=False) as publisher,
        hub.connect("tube://") as link,
    ):
        await publisher.publish(b"first")
        with dial(hub, "fyrehose") as silent:
            await asyncio.to_thread(rest, silent)
        await publisher.publish(b"second")
        await link.head()
        assert (publisher.connects, link.connects) == (1, 1)
