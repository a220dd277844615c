"""The spp door, as strangers meet it: raw sockets against a hub in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.net.conftest import Start
from tests.net.raw import SECONDS, TcpPeer, push, running_hub, until
from tests.net.spp_peer import (
    AUTH,
    PUBLISH,
    SppPeer,
    auth,
    documented,
    info,
    integer,
    offer,
    packet,
    publish,
    removed,
    string,
    subscribe,
    unsubscribe,
)

from headrace.errors import FullError
from headrace.hub.services.entries import ServiceKind, create, remove
from headrace.message import Batch, Run
from headrace.net.server.process import Server
from headrace.net.spp.door import SppDoor
from headrace.wire.spp import MAX_PACKET

CLIENT, KEY = "00112233445566778899aabb", "a key"
AUTH_ON = ("auth.required=true", f"auth.clients.{CLIENT}={KEY}")
ACCEPTED, REFUSED = documented("Authenticated accepted"), documented("Authenticated refused")

Dial = Callable[..., Awaitable[SppPeer]]


@pytest.fixture
def dial(stack: AsyncExitStack) -> Dial:
    """Connect to a hub's spp door."""

    async def connect(server: Server, **options: object) -> SppPeer:
        return stack.enter_context(await SppPeer.connect(server, **options))  # type: ignore[arg-type]

    return connect


async def commit(server: Server, *batches: Batch) -> None:
    """Have batches in the log, by no door at all."""
    done = asyncio.get_running_loop().create_future()
    for batch in batches[:-1]:
        server.hub.submit(batch)
    server.hub.submit(batches[-1], done.set_result)
    await done


async def commit_turn() -> None:
    """Let the event loop come round some times: enough for bytes that have arrived to be read."""
    for _ in range(20):
        await asyncio.sleep(0)


def stored(directory: Path) -> bytes:
    """Everything that is on disk."""
    return b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())


def message(topic: str, payload: bytes) -> Batch:
    return Batch(Run.one(payload), origin="elsewhere", topic=topic)


def count(server: Server, name: str, **labels: str) -> int:
    return server.hub.counters.get(name, **labels)


def refused(server: Server, reason: str, door: str = "spp") -> int:
    return count(server, "refused", door=door, reason=reason)


class TestAStrangersSession:
    async def test_with_the_bytes_of_the_page(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(documented("Publish load"))
        assert await peer.read(len(documented("Offer load"))) == documented("Offer load")
        await peer.send(documented("Subscribe load"))
        assert await peer.packet() == info("load", b'{"cpu":8}')
        await commit(server, message("load", b'{"cpu":7}'))
        assert await peer.read(len(documented("Info load"))) == documented("Info load")
        for title in ("test value", "empty test value", "16 from a client", "type 4294967295"):
            await peer.send(documented(title))
        for title in ("32 from a client", "33 with a user name and a password"):
            await peer.send(documented(title))
        await commit(server, remove("load"))
        assert await peer.read(len(documented("Removed load"))) == documented("Removed load")
        await peer.send(documented("Unsubscribe load"))
        await peer.send(documented("Subscribe load"))
        await until(lambda: count(server, "not_offered", door="spp") == 1)
        assert count(server, "ignored", door="spp") == 6
        await commit(server, create("größe", ServiceKind.LAST))
        assert await peer.read(len(documented("Offer größe"))) == documented("Offer größe")

    async def test_byte_by_byte(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        for byte in documented("Publish load") + documented("Subscribe load"):
            await peer.send(bytes([byte]))
        assert await peer.packet() == offer("load")
        # The Subscribe may come before or after the service is there.
        if count(server, "not_offered", door="spp"):
            await peer.send(documented("Subscribe load"))
        assert await peer.packet() == info("load", b'{"cpu":8}')


class TestStrangersMessages:
    """32, 33 and all others belong to other applications: the hub does not read them."""

    async def test_a_user_name_and_a_password_go_nowhere(
        self, server: Server, dial: Dial, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, logger="headrace")
        secrets = documented("33 with a user name and a password")
        bystander, peer = await dial(server), await dial(server)
        await peer.send(secrets + packet(32, secrets[8:]) + publish("after", b"1") + subscribe("after"))
        assert [await peer.packet() for _ in range(2)] == [offer("after"), info("after", b"1")]
        assert await bystander.packet() == offer("after"), "nothing was offered before it"
        assert count(server, "ignored", door="spp") == 2
        assert [row.topic for batch in server.hub.log.scan(1) for row in batch if row.origin == "spp"] == [
            "after"
        ]
        held = stored(tmp_path)
        assert b"after" in held
        shown = repr(server.status()).encode() + caplog.text.encode()
        for secret in (b"anna", b"cat8dog9!"):
            assert secret not in held
            assert secret not in shown

    @pytest.mark.parametrize("msgtype", [0, 16, 32, 33, 99])
    async def test_one_longer_than_any_limit_is_skipped(
        self, server: Server, dial: Dial, msgtype: int
    ) -> None:
        peer = await dial(server)
        await peer.send(integer(msgtype) + integer(MAX_PACKET + 1))
        await peer.send(bytes(MAX_PACKET + 1))
        await peer.send(publish("after", b"1"))
        assert await peer.packet() == offer("after")
        assert count(server, "ignored", door="spp") == 1

    async def test_one_may_be_long_before_auth_too(self, start: Start, dial: Dial) -> None:
        server = await start(*AUTH_ON)
        peer = await dial(server)
        await peer.send(packet(33, bytes(1 << 20)) + auth(CLIENT, KEY, "1", await challenge_of(peer)))
        assert await peer.read(16) == ACCEPTED
        assert count(server, "ignored", door="spp") == 1

    async def test_one_that_comes_slowly_is_waited_for(self, start: Start, dial: Dial) -> None:
        server = await start("limits.slow_seconds=0.3")
        peer = await dial(server)
        await peer.send(integer(33) + integer(10_000_000))
        loop = asyncio.get_running_loop()
        later, sent = loop.time() + 1.0, 0
        while loop.time() < later:
            await peer.send(bytes(100))
            sent += 100
            await commit_turn()
        assert refused(server, "stalled") == 0
        await peer.send(bytes(10_000_000 - sent) + publish("after", b"1"))
        assert await peer.packet() == offer("after")


class TestOffers:
    async def test_every_service_in_the_order_of_creation_then_each_new_one(
        self, server: Server, dial: Dial
    ) -> None:
        await commit(server, *(create(name, ServiceKind.LAST) for name in ("c", "a", "b")))
        peer = await dial(server)
        assert [await peer.packet() for _ in range(3)] == [offer("c"), offer("a"), offer("b")]
        await commit(server, create("d", ServiceKind.JSON))
        assert await peer.packet() == offer("d")
        await commit(server, remove("a"), create("a", ServiceKind.LAST))
        assert [await peer.packet() for _ in range(2)] == [removed("a"), offer("a")]
        late = await dial(server)
        assert [await late.packet() for _ in range(4)] == [offer("c"), offer("b"), offer("d"), offer("a")]

    async def test_very_many(self, server: Server, dial: Dial) -> None:
        names = [f"service/{number}" for number in range(5_000)]
        await commit(server, *(create(name, ServiceKind.LAST) for name in names))
        peer = await dial(server, receive_buffer=4096)
        assert [await peer.packet() for _ in names] == [offer(name) for name in names]


class TestSubscriptions:
    async def test_snapshot_then_changes_then_none(self, server: Server, dial: Dial) -> None:
        peer, publisher = await dial(server), await dial(server)
        await publisher.send(publish("fleet/42", b'{"speed": 60, "at": {"x": 1}}'))
        assert await peer.packet() == offer("fleet/42")
        await peer.send(subscribe("fleet/42"))
        assert json.loads((await peer.info())[1]) == {"speed": 60, "at": {"x": 1}}
        await publisher.send(publish("fleet/42", b'{ "speed": 61 }'))
        assert await peer.info() == ("fleet/42", b'{ "speed": 61 }'), "a change comes as it was sent"
        await peer.send(subscribe("fleet/42"))
        assert json.loads((await peer.info())[1]) == {"speed": 61, "at": {"x": 1}}
        await publisher.send(publish("fleet/42", b"{}"))
        assert await peer.info() == ("fleet/42", b"{}"), "one that changes nothing is sent all the same, once"
        await peer.send(unsubscribe("fleet/42") + unsubscribe("never"))
        await until(lambda: server.status()["subscribers"]["spp"] == 0)  # type: ignore[index]
        await publisher.send(publish("fleet/42", b'{"speed": 62}') + publish("other", b"x"))
        assert await peer.packet() == offer("other")

    async def test_published_and_subscribed_in_one_go(self, server: Server, dial: Dial) -> None:
        peer, other = await dial(server), await dial(server)
        await peer.send(publish("a", b"1") + subscribe("a") * 2 + publish("a", b"2"))
        await other.send(publish("b", b"1") + subscribe("b") + unsubscribe("b") + publish("c", b"1"))
        assert await peer.until_info("a") == b"2"
        await commit(server, message("a", b"3"), message("b", b"2"), create("end", ServiceKind.LAST))
        assert await peer.until_info("a") == b"3"
        packets = [await other.packet()]
        while packets[-1] != offer("end"):
            packets.append(await other.packet())
        assert {each.msgtype for each in packets} == {1}
        assert count(server, "not_offered", door="spp") == 0

    async def test_what_was_never_offered(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(subscribe("nothing") + publish("a", b"1"))
        assert await peer.packet() == offer("a")
        assert count(server, "not_offered", door="spp") == 1

    async def test_a_removed_service_goes_on_for_its_subscribers(self, server: Server, dial: Dial) -> None:
        peer, late = await dial(server), await dial(server)
        await peer.send(publish("a", b'{"x":1}'))
        assert await peer.packet() == offer("a")
        await peer.send(subscribe("a"))
        assert await peer.packet() == info("a", b'{"x":1}')
        await commit(server, remove("a"))
        assert await peer.packet() == removed("a")
        await late.send(subscribe("a"))
        await until(lambda: count(server, "not_offered", door="spp") == 1)
        await late.send(publish("a", b'{"y":2}'))
        assert await peer.packet() == info("a", b'{"y":2}'), "a publish does not create it again"
        await late.send(publish("a", b"no object"))
        await until(lambda: refused(server, "malformed") == 1)
        await commit(server, create("a", ServiceKind.LAST), message("a", b"new"))
        assert await peer.packet() == offer("a")
        assert await peer.packet() == info("a", b"new")
        assert [await late.packet() for _ in range(3)] == [offer("a"), removed("a"), offer("a")]

    async def test_a_peer_that_sends_no_more_may_still_read(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(publish("a", b"1"))
        assert await peer.packet() == offer("a")
        await peer.send(subscribe("a"))
        assert await peer.packet() == info("a", b"1")
        peer.sock.shutdown(socket.SHUT_WR)
        await commit(server, message("a", b"2"))
        assert await peer.packet() == info("a", b"2")
        done = await dial(server)
        done.sock.shutdown(socket.SHUT_WR)
        assert await done.rest() == packet(*offer("a"))

    async def test_one_that_then_reads_no_more_either_is_forgotten(self, server: Server, dial: Dial) -> None:
        """Though nothing changes that it could be sent."""
        peer = await dial(server)
        await peer.send(publish("a", b"1") + subscribe("a"))
        assert await peer.until_info("a") == b"1"
        (door,) = (door for door in server._doors if isinstance(door, SppDoor))
        peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: all(stream._ended for stream in door.connections))
        # Gone at once: of one that closes in the usual way the system says for a minute that it is there.
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await until(lambda: server.connections == 0)
        assert not door.audience.sessions


class TestPublishing:
    async def test_the_first_value_decides_the_kind(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        values = {"object": b'{"a":1}', "array": b"[1]", "bytes": b"\xff\x00", "empty": b"", "text": b"{"}
        for name, value in values.items():
            await peer.send(publish(name, value))
        await until(lambda: len(server.services) == len(values))
        kinds = {name: server.services.kind(name) for name in values}
        assert kinds == {name: ServiceKind.JSON if name == "object" else ServiceKind.LAST for name in values}

    async def test_creation_and_change_are_next_to_each_other_in_the_log(
        self, server: Server, dial: Dial
    ) -> None:
        peer = await dial(server)
        await peer.send(publish("a", b"1") + publish("a", b"2") + publish("b", b"3"))
        await until(lambda: server.hub.log.head == 3)
        rows = [one for batch in server.hub.log.scan_ops(1) for one in batch]
        assert [(row.origin, row.topic, row.payload) for row in rows] == [
            ("log", "service/a", b'{"create":"last"}'),
            ("log", "service/b", b'{"create":"last"}'),
            ("spp", "a", b"1"),
            ("spp", "a", b"2"),
            ("spp", "b", b"3"),
        ]
        assert rows[-1].publisher == peer.name

    async def test_what_a_json_service_does_not_take_is_not_even_in_the_log(
        self, server: Server, dial: Dial
    ) -> None:
        peer = await dial(server)
        await peer.send(publish("a", b'{"x":1}') + publish("a", b"no object") + publish("a", b'{"x":2}'))
        assert await peer.packet() == offer("a")
        await peer.send(subscribe("a"))
        assert await peer.packet() == info("a", b'{"x":2}')
        assert refused(server, "malformed") == 1
        assert server.hub.log.head == 2

    async def test_what_another_door_sends_it_is_in_the_log_and_changes_nothing(
        self, server: Server, dial: Dial
    ) -> None:
        peer = await dial(server)
        await peer.send(publish("a", b'{"x":1}'))
        assert await peer.packet() == offer("a")
        await peer.send(subscribe("a"))
        assert await peer.packet() == info("a", b'{"x":1}')
        await commit(server, message("a", b"no object"), message("a", b'{"x":2}'))
        assert await peer.packet() == info("a", b'{"x":2}')
        assert refused(server, "malformed", door="services") == 1
        assert server.hub.log.head == 3

    async def test_no_more_than_services_max(self, start: Start, dial: Dial) -> None:
        server = await start("services.max=2")
        peer = await dial(server)
        await peer.send(b"".join(publish(name, b"1") for name in "abc") + publish("a", b"2"))
        assert [await peer.packet() for _ in range(2)] == [offer("a"), offer("b")]
        await until(lambda: refused(server, "services_max") == 1)
        await commit(server, remove("a"))
        await peer.send(publish("c", b"1"))
        assert [await peer.packet() for _ in range(2)] == [removed("a"), offer("c")]

    async def test_an_empty_id(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(publish("", b"1") + publish("a", b"1"))
        assert await peer.packet() == offer("a")
        assert refused(server, "malformed") == 1

    async def test_the_backbone_is_no_publisher_of_services(self, start: Start, dial: Dial) -> None:
        server = await start("services.auto=true")
        peer = await dial(server)
        await commit(server, Batch(Run.of([b"1", b"2"]), origin="fyrehose"), message("topic", b"3"))
        assert await peer.packet() == offer("topic")
        assert len(server.services) == 1

    async def test_a_large_change(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        value = bytes(MAX_PACKET - 8 - 1)
        await peer.send(publish("a", value))
        assert await peer.packet() == offer("a")
        await peer.send(subscribe("a"))
        assert await peer.packet() == info("a", value)


class TestRestart:
    async def test_services_are_back_at_once(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path) as server, AsyncExitStack() as stack:
            peer = stack.enter_context(await SppPeer.connect(server))
            await peer.send(publish("j", b'{"x":1}') + publish("l", b"1") + publish("gone", b"1"))
            assert [await peer.packet() for _ in range(3)] == [offer("j"), offer("l"), offer("gone")]
            await commit(server, remove("gone"), message("j", b'{"y":2}'))
        async with running_hub(tmp_path) as server, AsyncExitStack() as stack:
            peer = stack.enter_context(await SppPeer.connect(server))
            await peer.send(publish("gone", b"2") + subscribe("j") + subscribe("l"))
            assert [await peer.packet() for _ in range(2)] == [offer("j"), offer("l")]
            assert [await peer.packet() for _ in range(2)] == [info("j", b'{"x":1,"y":2}'), info("l", b"1")]
            await until(lambda: count(server, "received", origin="spp") == 1)
            assert server.services.get("gone") is None

    async def test_settings_that_change_do_not_change_the_past(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path, "services.auto=true", "services.max=2") as server:
            await commit(server, message("a", b"1"), message("b", b"1"), message("c", b"1"))
            assert [service.id for service in server.services] == ["a", "b"]
        async with running_hub(tmp_path, "log.snapshot_seconds=600") as server:
            await commit(server, message("d", b"1"), message("a", b"2"))
            assert [service.id for service in server.services] == ["a", "b"]
            kept = server.services.dump()
        (newest, *_) = sorted((tmp_path / "log").glob("*.snapshot"), reverse=True)
        for snapshot in (tmp_path / "log").glob("*.snapshot"):
            snapshot.unlink()
        assert newest
        async with running_hub(tmp_path) as server:
            assert server.services.dump() == kept
            assert (server.hub.log.head, server.hub.log.head_op) == (5, 7)


class TestLagging:
    async def test_one_change_from_what_it_last_got_to_now(self, start: Start, dial: Dial) -> None:
        server = await start("limits.queue_bytes=4KiB")
        slow, quick = await dial(server, receive_buffer=4096), await dial(server)
        await quick.send(publish("j", b'{"keep":1,"drop":1}') + publish("l", b"first"))
        for peer in (slow, quick):
            assert [await peer.packet() for _ in range(2)] == [offer("j"), offer("l")]
            await peer.send(subscribe("j") + subscribe("l"))
            assert await peer.packet() == info("j", b'{"keep":1,"drop":1}')
            assert await peer.packet() == info("l", b"first")
        total = 600
        filling = b"x" * 20_000
        for number in range(total):
            await quick.send(publish("j", b'{"n":%d}' % number) + publish("l", filling))
            assert await quick.until_info("l") == filling
        await quick.send(publish("j", b'{"drop":null}') + publish("l", b"last"))
        assert await quick.until_info("l") == b"last"
        value: dict[str, object] = {"keep": 1, "drop": 1}
        got = 0
        while (newest := await slow.info()) != ("l", b"last"):
            if newest[0] == "j":
                got += 1
                patch = json.loads(newest[1])
                value = {name: member for name, member in (value | patch).items() if member is not None}
        assert value == {"keep": 1, "n": total - 1}
        conflated = count(server, "conflated", door="spp")
        assert conflated > 0
        assert got < total
        await quick.send(publish("l", b"live again"))
        assert await slow.until_info("l") == b"live again"
        assert count(server, "conflated", door="spp") == conflated

    async def test_memory_stays_bounded(self, start: Start, dial: Dial) -> None:
        """Snapshots asked for again and again, and never read, are owed once."""
        server = await start("limits.queue_bytes=64KiB")
        peer = await dial(server, receive_buffer=4096)
        await peer.send(publish("a", bytes(1 << 20)))
        assert await peer.packet() == offer("a")
        for _ in range(50):
            await peer.send(subscribe("a") * 20)
        await peer.send(publish("done", b""))
        await until(lambda: server.services.get("done") is not None)
        (door,) = (door for door in server._doors if isinstance(door, SppDoor))
        (stream,) = door.connections
        assert stream._transport.get_write_buffer_size() <= 3 << 20

    async def test_who_takes_nothing_is_cut_off(self, start: Start, dial: Dial) -> None:
        server = await start("limits.slow_seconds=0.3", "limits.queue_bytes=4KiB")
        peer = await dial(server, receive_buffer=4096)
        await peer.send(publish("a", bytes(6 << 20)) + subscribe("a"))
        assert await peer.packet() == offer("a")
        await peer.send(subscribe("a"))
        await until(lambda: refused(server, "slow") == 1)
        await until(lambda: server.connections == 0)

    async def test_who_leaves_a_packet_unfinished_is_cut_off(self, start: Start, dial: Dial) -> None:
        server = await start("limits.slow_seconds=0.3")
        halting, silent = await dial(server), await dial(server)
        await silent.send(publish("a", b"whole"))
        half = publish("b", bytes(1 << 20))
        await halting.send(half[:100_000])
        # A byte now and then does not keep the packet from being judged.
        with contextlib.suppress(ConnectionError):
            for byte in half[100_000:100_400]:
                if refused(server, "stalled"):
                    break
                await halting.send(bytes([byte]))
                await asyncio.sleep(0.02)
        await until(lambda: refused(server, "stalled") == 1)
        await until(lambda: server.connections == 1)
        await silent.send(publish("a", b"alive"))
        await until(lambda: server.hub.log.head == 2)

    async def test_half_a_packet_is_not_late_at_once(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        first = publish("a", b"1")
        await peer.send(first[:10])
        (door,) = (door for door in server._doors if isinstance(door, SppDoor))
        await until(lambda: any(stream._decoder.unfinished for stream in door.connections))
        door.tick(asyncio.get_running_loop().time())
        await peer.send(first[10:])
        assert await peer.packet() == offer("a")

    async def test_who_subscribed_and_ended_inside_a_packet_is_still_sent_changes(
        self, start: Start, dial: Dial
    ) -> None:
        server = await start("limits.slow_seconds=0.1")
        peer, other = await dial(server), await dial(server)
        await peer.send(publish("a", b"one") + subscribe("a"))
        assert await peer.until_info("a") == b"one"
        await peer.send(publish("a", b"two")[:9])
        peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: refused(server, "cut_short") == 1)
        loop = asyncio.get_running_loop()
        later = loop.time() + 0.5
        await until(lambda: loop.time() > later)
        await other.send(publish("a", b"three"))
        assert await peer.until_info("a") == b"three"
        assert refused(server, "stalled") == 0


async def challenge_of(peer: SppPeer) -> str:
    """Ask for something to sign, as a client does that has a key."""
    await peer.send(auth(CLIENT, "", "1"))
    msgtype, data = await peer.packet()
    assert (msgtype, data[:4]) == (AUTH, integer(1))
    return data[8:].decode()


class TestAuth:
    async def test_accepted(self, start: Start, dial: Dial) -> None:
        server = await start(*AUTH_ON)
        await commit(server, create("a", ServiceKind.LAST))
        peer = await dial(server)
        await peer.send(subscribe("a") + publish("b", b"1"))
        await until(lambda: count(server, "unauthenticated", door="spp") == 2)
        asked = await challenge_of(peer)
        assert asked.startswith(f"{server.hub.log.uuid}/")
        await peer.send(auth(CLIENT.upper(), KEY, "1", asked) + subscribe("a") + publish("b", bytes(100_000)))
        assert await peer.read(16) == ACCEPTED
        assert await peer.packet() == offer("a")
        assert await peer.packet() == info("a", b"")
        assert await peer.packet() == offer("b")
        (row,) = [one for batch in server.hub.log.scan(1) for one in batch if one.topic == "b"]
        assert row.publisher == CLIENT

    @pytest.mark.parametrize(
        ("reason", "request_"),
        [
            ("wrong_token", lambda asked: auth(CLIENT, "another key", "1", asked)),
            ("unknown_client", lambda asked: auth("ff" * 12, KEY, "1", asked)),
            ("wrong_challenge", lambda asked: auth(CLIENT, KEY, "1", asked[:-1])),
            ("wrong_challenge", lambda _: auth(CLIENT, KEY, str(time.time()))),
            ("malformed", lambda _: documented("Auth")),
            ("malformed", lambda _: packet(AUTH, string("no JSON"))),
        ],
    )
    async def test_refused(
        self, start: Start, dial: Dial, reason: str, request_: Callable[[str], bytes]
    ) -> None:
        server = await start(*AUTH_ON)
        peer = await dial(server)
        await peer.send(request_(await challenge_of(peer)))
        assert await peer.rest() == REFUSED
        assert refused(server, reason) == 1
        await until(lambda: server.connections == 0)

    async def test_what_came_before_a_refused_one_counts(self, server: Server, dial: Dial) -> None:
        bystander, peer = await dial(server), await dial(server)
        await peer.send(publish("before", b"1") + documented("Auth") + publish("after", b"1"))
        assert await bystander.packet() == offer("before")
        assert (await peer.rest()).endswith(REFUSED)
        assert refused(server, "malformed") == 1
        assert server.services.get("after") is None

    async def test_what_came_before_an_accepted_one_has_the_name_of_then(
        self, server: Server, dial: Dial
    ) -> None:
        peer = await dial(server)
        await peer.send(publish("a", b"1") + auth(CLIENT, "whatever", "1") + publish("b", b"1"))
        await until(lambda: server.services.get("b") is not None)
        rows = [one for batch in server.hub.log.scan(1) for one in batch if one.origin == "spp"]
        assert [(row.topic, row.publisher) for row in rows] == [("a", peer.name), ("b", CLIENT)]

    async def test_a_disk_that_fails_before_one_leaves_nothing_behind(
        self, server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: object) -> None:
            raise FullError("log", "no space")

        peer = await dial(server)
        (door,) = (door for door in server._doors if isinstance(door, SppDoor))
        await until(lambda: len(door.audience.sessions) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(server.hub.log, "append", full)
            patch.setattr(type(server.hub), "full", True)
            await peer.send(publish("a", b"1") + auth(CLIENT, "whatever", "1"))
            assert await peer.rest() == b""
        await until(lambda: server.connections == 0)
        assert not door.audience.sessions

    async def test_who_is_refused_and_takes_nothing_is_cut_off(self, start: Start, dial: Dial) -> None:
        server = await start("limits.slow_seconds=0.3")
        peer = await dial(server, receive_buffer=4096)
        await peer.send(publish("a", bytes(6 << 20)))
        assert await peer.packet() == offer("a")
        await peer.send(subscribe("a") + documented("Auth"))
        await until(lambda: refused(server, "slow") == 1)
        await until(lambda: server.connections == 0)
        assert refused(server, "malformed") == 1

    async def test_a_token_is_used_once(self, start: Start, dial: Dial) -> None:
        server = await start(*AUTH_ON)
        first, second, third = await dial(server), await dial(server), await dial(server)
        proof = auth(CLIENT, KEY, "1", await challenge_of(first))
        await first.send(proof)
        assert await first.read(16) == ACCEPTED
        await challenge_of(second)
        for other in (second, third):
            await other.send(proof)
            assert await other.rest() == REFUSED
        assert refused(server, "wrong_challenge") == 2

    async def test_one_challenge_is_given_on_a_connection(self, start: Start, dial: Dial) -> None:
        server = await start(*AUTH_ON)
        peer = await dial(server)
        await challenge_of(peer)
        await peer.send(auth(CLIENT, "", "1"))
        assert await peer.rest() == REFUSED

    async def test_long_packets_are_refused_before_it(self, start: Start, dial: Dial) -> None:
        server = await start(*AUTH_ON)
        peer = await dial(server)
        await peer.send(integer(PUBLISH) + integer(100_000))
        assert await peer.rest() == b""
        assert refused(server, "limit") == 1

    async def test_who_never_says_who_it_is(self, start: Start, dial: Dial) -> None:
        server = await start(*AUTH_ON, "limits.handshake_seconds=0.2")
        peer = await dial(server)
        assert await peer.rest() == b""
        assert refused(server, "handshake") == 1

    async def test_with_auth_off_any_well_formed_one_succeeds_once(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(auth(CLIENT, "whatever", "1") * 2 + publish("a", b"1"))
        assert await peer.read(16) == ACCEPTED
        assert await peer.packet() == offer("a")
        assert count(server, "ignored", door="spp") == 1
        (row,) = [one for batch in server.hub.log.scan(1) for one in batch if one.topic == "a"]
        assert row.publisher == CLIENT


class TestRefusing:
    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            (packet(1, string("a") + b"."), "malformed"),
            (packet(1, integer(5) + b"a"), "malformed"),
            (packet(2, b""), "malformed"),
            (packet(1, string(b"\xff")), "malformed"),
            (packet(1, string("a" * 1025)), "limit"),
            (integer(1) + integer(0xFFFFFFFF), "limit"),
            (integer(PUBLISH) + integer(MAX_PACKET + 1), "limit"),
            (packet(PUBLISH, string("a")), "malformed"),
            (packet(AUTH, b""), "malformed"),
        ],
    )
    async def test_what_breaks_the_protocol(
        self, server: Server, dial: Dial, bad: bytes, reason: str
    ) -> None:
        bystander, peer = await dial(server), await dial(server)
        await peer.send(publish("before", b"1") + bad + publish("after", b"1"))
        assert await bystander.packet() == offer("before"), "what came before the bad packet counts"
        with contextlib.suppress(AssertionError):
            await peer.packet()
        assert await peer.rest() == b""
        assert refused(server, reason) == 1
        await bystander.send(publish("still here", b"1"))
        assert await bystander.packet() == offer("still here")
        assert server.services.get("after") is None

    async def test_a_stream_cut_short(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(publish("a", b"1") + publish("b", b"1")[:-1])
        peer.sock.shutdown(socket.SHUT_WR)
        assert await peer.rest() in (b"", packet(*offer("a")))
        assert refused(server, "cut_short") == 1
        await until(lambda: server.services.get("a") is not None)
        assert server.services.get("b") is None

    async def test_too_many_connections(self, start: Start, dial: Dial) -> None:
        server = await start("limits.connections_per_address=1")
        await commit(server, create("a", ServiceKind.LAST))
        first, second = await dial(server), await dial(server)
        assert await second.rest() == b""
        assert refused(server, "connections") == 1
        assert await first.packet() == offer("a")
        first.close()
        await until(lambda: server.connections == 0)
        assert await (await dial(server)).packet() == offer("a")


class TestPressure:
    async def test_publishers_wait_while_the_hub_is_congested(self, server: Server, dial: Dial) -> None:
        hub = server.hub
        hub.commit_by(lambda _tail: None)
        hub._max_uncommitted = 1_000
        peer = await dial(server)
        await peer.send(publish("a", bytes(2_000)))
        await until(lambda: hub.congested)
        # It is read once more, and then no further.
        tail = hub.log.tail_op
        await peer.send(publish("b", b""))
        await until(lambda: hub.log.tail_op > tail)
        tail = hub.log.tail_op
        await peer.send(publish("c", b""))
        await commit_turn()
        assert hub.log.tail_op == tail
        hub.committed(tail)
        await until(lambda: hub.log.tail_op > tail)
        assert await peer.packet() == offer("a")
        # A stopping hub would wait for it.
        hub.commit_by(hub.committed)
        hub.committed(hub.log.tail_op)

    async def test_a_full_disk_closes_the_publishers_connection(
        self, server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: object) -> None:
            raise FullError("log", "no space")

        bystander, peer = await dial(server), await dial(server)
        with monkeypatch.context() as patch:
            patch.setattr(server.hub.log, "append", full)
            await peer.send(publish("a", b"1"))
            assert await peer.rest() == b""
        assert refused(server, "storage") == 1
        await bystander.send(publish("a", b"1"))
        assert await bystander.packet() == offer("a")

    async def test_who_lags_in_too_much_is_cut_off(
        self, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.hub.services.subscribers.HELD_BYTES", 50)
        server = await start("limits.queue_bytes=4KiB")
        peer = await dial(server, receive_buffer=4096)
        await peer.send(publish("j", b'{"x":"' + b"x" * 100 + b'"}') + publish("l", bytes(6 << 20)))
        assert [await peer.packet() for _ in range(2)] == [offer("j"), offer("l")]
        await peer.send(subscribe("l") + subscribe("j"))
        await until(lambda: server.status()["subscribers"]["spp"] == 2)  # type: ignore[index]
        (door,) = (door for door in server._doors if isinstance(door, SppDoor))
        (session,) = door.audience.sessions
        # The whole of "j" is still owed, then, and what is changed of it costs nothing more.
        await commit(server, message("j", b'{"y":1}'))
        assert refused(server, "lagging") == 0
        session.behind.clear()
        await commit(server, message("j", b'{"y":2}'))
        assert refused(server, "lagging") == 1
        await until(lambda: server.connections == 0)

    async def test_draining_does_not_wait_for_who_does_not_read(self, tmp_path: Path) -> None:
        with contextlib.ExitStack() as stack:
            async with running_hub(tmp_path, "limits.drain_seconds=0.5") as server:
                peer = stack.enter_context(await SppPeer.connect(server, receive_buffer=4096))
                await peer.send(publish("a", bytes(6 << 20)))
                assert await peer.packet() == offer("a")
                await peer.send(subscribe("a"))
                await until(lambda: server.status()["subscribers"]["spp"] == 1)  # type: ignore[index]
                begin = time.monotonic()
            assert time.monotonic() - begin < SECONDS


class TestManyAtOnce:
    async def test_one_service_to_many_subscribers(self, server: Server, dial: Dial) -> None:
        peers = [await dial(server) for _ in range(100)]
        await peers[0].send(publish("a", b"0"))
        for peer in peers:
            assert await peer.packet() == offer("a")
            await peer.send(subscribe("a"))
            assert await peer.packet() == info("a", b"0")
        changes = [b"%d" % number for number in range(200)]
        await peers[0].send(b"".join(publish("a", change) for change in changes))
        for peer in peers:
            assert [await peer.packet() for _ in changes] == [info("a", change) for change in changes]

    async def test_draining_sends_what_is_buffered(self, tmp_path: Path) -> None:
        with contextlib.ExitStack() as stack:
            async with running_hub(tmp_path) as server:
                peer = stack.enter_context(await SppPeer.connect(server))
                await peer.send(publish("a", b"0"))
                assert await peer.packet() == offer("a")
                await peer.send(subscribe("a"))
                assert await peer.packet() == info("a", b"0")
                await commit(server, message("a", bytes(200_000)))
            assert await peer.packet() == info("a", bytes(200_000))
            assert await peer.rest() == b""

    async def test_it_lives_beside_the_backbone(
        self, server: Server, dial: Dial, stack: AsyncExitStack
    ) -> None:
        subscriber = stack.enter_context(await TcpPeer.connect(server))
        await subscriber.subscribe()
        peer = await dial(server)
        await peer.send(publish("a", b"hello"))
        await until(lambda: server.hub.log.head == 1)
        await subscriber.send(push(b"there"))
        assert await subscriber.delivers(1, 2) == [b"hello", b"there"]
