"""What one peer could do to everybody: each attack once stopped a hub, filled its memory or its disk."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from pathlib import Path
from random import Random
from select import select
from time import perf_counter

import pytest
from tests.attacks.conftest import MIB, SOAK, STATE_BYTES, STATE_BYTES_PER_CLIENT
from tests.attacks.good_client import (
    GENEROUS,
    SLACK_SECONDS,
    AttackedHub,
    GoodClient,
    GoodPublisher,
    Waits,
    unharmed,
)
from tests.attacks.hostile_bytes import SPOKEN, grammar_made_bytes, mutated_bytes
from tests.system.observing import counter, eventually, status

import headrace
from headrace.tube.transport import READ_BYTES
from headrace.wire.link.message import serialize as link_message
from headrace.wire.spp import Publish, serialize
from headrace.wire.tube.frames import FragmentSize, Header, stream_pieces
from headrace.wire.tube.frames import serialize as frame
from headrace.wire.tube.varint import serialize_varint

VALUE_BYTES = 500_000

FRAGMENT = 1 << 18


def asked(head: dict[str, object]) -> bytes:
    """A request on the link, as it goes over TCP."""
    return b"".join(map(bytes, stream_pieces(link_message(head), FRAGMENT)))


OPENING = frame(FragmentSize(FRAGMENT))
HELLO = asked({"op": "hello", "id": 0, "version": 2})


def publish_services(hub: AttackedHub, name: str, count: int, source: str) -> None:
    """Create services, each with an object of half a megabyte: JSON or plain bytes."""
    with closing(
        socket.create_connection(hub.address("spp"), timeout=60, source_address=(source, 0))
    ) as sock:
        for number in range(count):
            text = b"x" * VALUE_BYTES
            change = b'{"value":"%s"}' % text if number % 2 else text
            sock.sendall(serialize(Publish(f"{name}/{number}", change)))
        # The hub has read everything when it closes its side, too.
        sock.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while sock.recv(1 << 16):
                pass


def test_services_of_one_anonymous_connection(hub: AttackedHub) -> None:
    """Budgets keep them within bounds, and snapshots, which are written meanwhile, hold nobody up."""
    # In memory, each object and the text of its snapshot, and what is on its way into the log.
    with unharmed(hub, "services of half a megabyte", most_bytes=4 * STATE_BYTES + 128 * MIB):
        publish_services(
            hub, "greedy", 1500 if SOAK else STATE_BYTES_PER_CLIENT // VALUE_BYTES + 20, "127.0.0.3"
        )
        eventually("some are refused", lambda: counter(hub, "refused", "spp/state_bytes") >= 19)
        assert (
            STATE_BYTES_PER_CLIENT // 2 < status(hub)["state"]["bytes"] < STATE_BYTES_PER_CLIENT + VALUE_BYTES
        )
        # Another client has its own share, up to what all may have.
        publish_services(hub, "other", STATE_BYTES // VALUE_BYTES, "127.0.0.4")
        eventually(
            "it takes the rest",
            lambda: STATE_BYTES - 2 * VALUE_BYTES < status(hub)["state"]["bytes"] <= STATE_BYTES,
        )
    clients = status(hub)["accounts"]
    assert clients["127.0.0.3"]["state_bytes"] <= STATE_BYTES_PER_CLIENT
    assert clients["127.0.0.4"]["state_bytes"] > 0


def test_half_messages_of_many_tubes(hub: AttackedHub) -> None:
    tubes = 200
    # A snapshot of what the services before have left may be written meanwhile.
    most = 100_000_000 + (STATE_BYTES if SOAK else 0)
    half = frame(Header(0, 29)) + (serialize_varint(FRAGMENT) + bytes(FRAGMENT)) * 28
    with (
        unharmed(hub, f"half messages of {tubes} tubes", most_bytes=most) as good,
        ExitStack() as stack,
    ):
        for _ in range(tubes):
            sock = stack.enter_context(closing(socket.create_connection(hub.address("tube_tcp"), timeout=20)))
            sock.sendall(OPENING + HELLO)
            sock.recv(100)
            sock.settimeout(0.01)
            with suppress(OSError):
                sock.sendall(half)
        good.waits(10)
        unfinished = status(hub)["unfinished"]
        assert unfinished["bytes"] < 100_000_000
        assert unfinished["waiting"]


def test_a_flood_of_malformed_requests_fills_no_log(hub: AttackedHub) -> None:
    random = Random(11)
    before = len(hub.stderr)
    requests = 0
    with unharmed(hub, "a flood of malformed requests"):
        for door in SPOKEN:
            for number in range(2000 if SOAK else 60):
                make = grammar_made_bytes if number % 2 else mutated_bytes
                with (
                    closing(socket.create_connection(hub.address(door), timeout=10)) as sock,
                    suppress(OSError),
                ):
                    sock.sendall(make(door, random) + b"\xff" * 64)
                    requests += 1
    written = len(hub.stderr) - before
    print(f"{written} bytes of log for {requests} malformed requests")
    # A line for each reason at each door, and then ever fewer.
    assert written < 40_000


def test_health_answers_whatever_else_is_full(hub: AttackedHub) -> None:
    address = hub.address("http")
    with unharmed(hub, "silent HTTP sockets"), ExitStack() as stack:
        for _ in range(1000 if SOAK else 200):
            with suppress(OSError):
                sock = stack.enter_context(closing(socket.create_connection(address, timeout=10)))
                sock.sendall(b"GET /api/status HT")
        for path in ("/healthz", "/readyz"):
            with closing(http.client.HTTPConnection(*address, timeout=20)) as connection:
                connection.request("GET", path)
                assert connection.getresponse().status == 200


def test_datagrams_with_a_forged_source_bring_the_victim_little(tmp_path: Path) -> None:
    """In a process of its own: it leaves this machine's network, if it may."""
    program = [sys.executable, "-m", "tests.attacks.forged_sources", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    print(f"forged sources: {found}, {found['received'] / found['sent']:.2f} times what was sent")
    assert 0 < found["received"] <= 3 * found["sent"]


def test_filters_of_one_client(hub: AttackedHub) -> None:
    """Patterns that all differ, and topics that none of them has seen: neither publishers nor filtered readers wait."""
    where = "{}:{}".format(*hub.address("tube_tcp"))

    async def times(link: headrace.LinkClient, topic: str, count: int) -> Waits:
        """Publish and wait until a filtered follow brings it, again and again."""
        found: list[float] = []
        follow = aiter(link.follow(topic=f"{topic}/*"))
        for number in range(count):
            begun = perf_counter()
            publishing = asyncio.ensure_future(link.publish(b"x", topic=f"{topic}/{number}"))
            message = await anext(follow)
            assert message.topic == f"{topic}/{number}"
            found.append(perf_counter() - begun)
            await publishing
        return Waits.of(found)

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            good = await stack.enter_async_context(headrace.connect("tube://", where))
            alone = await times(good, "alone", 40)

            async def follow(link: headrace.LinkClient, pattern: str) -> None:
                async for _ in link.follow(topic=pattern):
                    pass

            followers = []
            for place in range(4):
                link = await stack.enter_async_context(headrace.connect("tube://", where))
                followers += [
                    asyncio.ensure_future(follow(link, f"**{place}*-{number}*/z*")) for number in range(63)
                ]
            beside = await times(good, "beside", 300 if SOAK else 60)
            print(f"a filtered follow, end to end: alone {alone}; beside 252 others {beside}")
            for each in followers:
                each.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
            assert beside.most < GENEROUS * alone.most + SLACK_SECONDS

    with unharmed(hub, "252 patterns of one client"):
        asyncio.run(attack())
    turns = status(hub)["loop"]
    print(f"turns of the event loop: {turns}")


FLOODS = {
    "questions on the link": ("tube_tcp", OPENING + HELLO, asked({"op": "head", "id": 1})),
    "empty messages on the link": ("tube_tcp", OPENING + HELLO, b"\x01\x00"),
    "refusals of compressions": ("tube_tcp", OPENING + HELLO, b"\x48"),
    "packets to be ignored": ("spp", b"", struct.pack("!II", 40, 0)),
    "KEEPALIVEs": ("fyrehose", b"", b"\x10" + bytes(6)),
    "PUSHes without payload": ("fyrehose", b"", b"\x02\x00\x00"),
    "long PUSHes": ("fyrehose", b"", b"\x02\x75\x30" + bytes(30_000)),
}
"""The door, what comes first, and what comes again and again: each is valid, and costs the hub some steps."""


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_of_short_requests(hub: AttackedHub, what: str) -> None:
    """One read brings ten thousand of them, and there are many connections: they take turns."""
    door, first, again = FLOODS[what]
    flood = again * (READ_BYTES // len(again))
    kind = GoodPublisher if "PUSHes" in what else GoodClient
    # What is loaded at the first use is no harm that a flood does.
    with closing(socket.create_connection(hub.address(door), timeout=10)) as sock:
        sock.sendall(first + again * 2)
    with unharmed(hub, f"a flood of {what}", kind=kind), ExitStack() as stack:
        peers = []
        for number in range(30):
            source = (f"127.0.0.{number % 3 + 5}", 0)
            sock = socket.create_connection(hub.address(door), timeout=10, source_address=source)
            stack.enter_context(closing(sock)).sendall(first)
            sock.setblocking(False)
            peers.append(sock)
        end = perf_counter() + (30 if SOAK else 1)
        while perf_counter() < end:
            for sock in select(peers, peers, [], 0.1)[1]:
                with suppress(OSError):
                    sock.send(flood)
                with suppress(OSError):
                    sock.recv(MIB)
