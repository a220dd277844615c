"""The connector's door toward SDK clients, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from time import time

import pytest
from tests.net.attribute_peers import (
    ALICE,
    BOB,
    HEARTBEAT,
    PublisherPeer,
    SdkPeer,
    auth,
    command,
    publish,
    sub,
)
from tests.net.conftest import Start
from tests.net.raw import running_hub, until

from headrace.net.routing.sdk_door import SdkDoor
from headrace.net.server.process import Server
from headrace.wire.sdk.auth import sign


def refused(server: Server, reason: str) -> int:
    return server.hub.counters.get("refused", door="sdk", reason=reason)


class Scene:
    """A hub, and whoever a test lets in."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.server: Server

    async def client(self, **options: int) -> SdkPeer:
        return self.stack.enter_context(await SdkPeer.connect(self.server, **options))

    async def subscribed(self, client: bytes, *, after: int | None = None, **fields: object) -> SdkPeer:
        peer = await self.client()
        await peer.enter(client, after)
        await peer.send(sub(**fields))
        await until(lambda: client in self.server.subscriptions)
        return peer

    async def publish(self, *messages: tuple[dict[str, object], bytes]) -> None:
        peer = self.stack.enter_context(await PublisherPeer.connect(self.server))
        head = self.server.hub.log.head
        await peer.send(b"".join(publish(attributes, payload) for attributes, payload in messages))
        await until(lambda: self.server.hub.log.head >= head + len(messages))

    def door(self) -> SdkDoor:
        (door,) = (door for door in self.server._doors if isinstance(door, SdkDoor))
        return door


@pytest.fixture
async def scene(server: Server, stack: AsyncExitStack) -> Scene:
    scene = Scene(stack)
    scene.server = server
    return scene


@pytest.fixture
def locked(start: Start, stack: AsyncExitStack) -> Scene:
    return Scene(stack)


def signed(client: bytes, key: bytes = b"secret", digest: str = "sha256", **changes: object) -> bytes:
    timestamp = f"{time():.6f}"
    claim = {"timestamp": timestamp, "token": sign(key, client, timestamp, digest), **changes}  # type: ignore[arg-type]
    return auth(client, **claim)


class TestCommands:
    async def test_a_heartbeat_is_answered(self, scene: Scene) -> None:
        client = await scene.client()
        await client.send(HEARTBEAT)
        assert await client.read(4) == b"+h\r\n"

    async def test_with_auth_off_any_well_formed_auth_succeeds(self, scene: Scene) -> None:
        client = await scene.client()
        await client.send(auth(ALICE))
        assert await client.line() == b"+authsuccess\r\n"

    @pytest.mark.parametrize("size", [1, 5, 1000])
    async def test_commands_may_be_cut_anywhere(self, scene: Scene, size: int) -> None:
        client = await scene.client()
        wire = auth(ALICE) + HEARTBEAT + sub(x=(0, 10)) + HEARTBEAT
        for at in range(0, len(wire), size):
            await client.send(wire[at : at + size])
        assert await client.read(22) == b"+authsuccess\r\n+h\r\n+h\r\n"
        await until(lambda: ALICE in scene.server.subscriptions)

    @pytest.mark.parametrize(
        ("wire", "reason"),
        [
            (b"nonsense", "malformed"),
            (command(b"what"), "malformed"),
            (command(b"sub", b"x"), "malformed"),
            (command(b"sub", b"x", b'{"use": 9}'), "malformed"),
            (command(b"sub", b"x", b'{"use": 2, "low": 2, "high": 1}'), "malformed"),
            (command(b"auth", b"{}"), "malformed"),
            (b"#999999999\r\n", "limit"),
            (auth(ALICE) + auth(ALICE), "unexpected"),
        ],
    )
    async def test_what_is_wrong_gets_a_command_error_and_the_end(
        self, scene: Scene, wire: bytes, reason: str
    ) -> None:
        client = await scene.client()
        await client.send(wire)
        assert (await client.rest()).removeprefix(b"+authsuccess\r\n") == b"-command error\r\n"
        assert refused(scene.server, reason) == 1

    async def test_a_subscription_with_too_many_attributes_is_refused(
        self, start: Start, locked: Scene
    ) -> None:
        locked.server = await start("matching.max_predicates=2")
        client = await locked.client()
        await client.send(sub(a="1", b="2"))
        await until(lambda: len(locked.server.subscriptions))
        await client.send(sub(a="1", b="2", c="3"))
        assert await client.rest() == b"-command error\r\n"
        assert refused(locked.server, "limit") == 1

    async def test_one_subscription_too_many_is_refused(self, start: Start, locked: Scene) -> None:
        locked.server = await start("matching.max_subscriptions=1")
        first = await locked.subscribed(ALICE, x=(0, 1))
        second = await locked.client()
        await second.send(sub(x=(0, 1)))
        assert await second.rest() == b"-command error\r\n"
        # Who has one may change it.
        await first.send(sub(y="yes"))
        await until(lambda: locked.server.subscriptions.get(ALICE).named[""][0].keys() == {"y"})


class TestAuth:
    @pytest.fixture
    async def scene(self, start: Start, locked: Scene) -> Scene:
        locked.server = await start("auth.required=true", f"auth.clients.{ALICE.hex()}=secret")
        return locked

    async def test_the_right_token_opens(self, scene: Scene) -> None:
        client = await scene.client()
        await client.send(signed(ALICE))
        assert await client.line() == b"+authsuccess\r\n"

    @pytest.mark.parametrize(
        ("wire", "reason"),
        [
            (signed(ALICE, key=b"wrong"), "wrong_token"),
            (signed(BOB), "unknown_client"),
            (auth(ALICE, timestamp="1", token=sign(b"secret", ALICE, "1")), "stale_timestamp"),
            (signed(ALICE, digest="sha1"), "wrong_token"),
            (sub(x=(0, 1)), "unexpected"),
        ],
        ids=["key", "client", "stale", "sha1", "sub first"],
    )
    async def test_others_are_refused(self, scene: Scene, wire: bytes, reason: str) -> None:
        client = await scene.client()
        await client.send(wire)
        assert await client.rest() == b"-command error\r\n"
        assert refused(scene.server, reason) == 1

    async def test_a_token_is_good_once(self, scene: Scene) -> None:
        wire = signed(ALICE)
        first, second = await scene.client(), await scene.client()
        await first.send(wire)
        assert await first.line() == b"+authsuccess\r\n"
        await second.send(wire)
        assert await second.rest() == b"-command error\r\n"
        assert refused(scene.server, "repeated_token") == 1

    async def test_nor_is_it_good_after_a_restart(self, tmp_path: Path) -> None:
        wire, answers = signed(ALICE), []
        sets = ("auth.required=true", f"auth.clients.{ALICE.hex()}=secret")
        for _ in range(2):
            async with running_hub(tmp_path / "again", *sets) as server:
                with await SdkPeer.connect(server) as client:
                    await client.send(wire)
                    answers.append(await client.line())
        assert answers == [b"+authsuccess\r\n", b"-command error\r\n"]

    async def test_a_heartbeat_may_come_before(self, scene: Scene) -> None:
        client = await scene.client()
        await client.send(HEARTBEAT)
        assert await client.line() == b"+h\r\n"

    async def test_who_never_says_who_it_is_is_cut_off(self, start: Start, locked: Scene) -> None:
        locked.server = await start("auth.required=true", "limits.handshake_seconds=0.3")
        client = await locked.client()
        assert await client.rest() == b""
        assert refused(locked.server, "handshake") == 1


class TestPushes:
    async def test_just_what_matches_comes_in_order(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, x=(0, 10), city="Praha")
        before = scene.server.hub.log.head
        await scene.publish(
            ({"x": 5, "city": "Praha"}, b"one"),
            ({"x": 11, "city": "Praha"}, b"two"),
            ({"x": 5, "city": "Brno"}, b"three"),
            ({"x": 10, "city": "Praha"}, b"four"),
        )
        assert await client.pushes(2) == [(before + 1, b"one"), (before + 4, b"four")]

    async def test_the_bytes_of_a_push(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, kind={"in": ["a", 3]})
        await scene.publish(({"kind": "a"}, b'q"q'), ({"kind": 3}, b"\xff\x00"))
        text = b'{"payload":"q\\"q","type":1,"seq":1}\r\n'
        binary = b'{"payload":"/wA=","type":2,"seq":2}\r\n'
        expected = b"#%d\r\n%b#%d\r\n%b" % (len(text), text, len(binary), binary)
        assert await client.read(len(expected)) == expected

    async def test_messages_of_other_doors_match_by_what_they_are(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, origin="attribute", size=(3, 3))
        await scene.publish(({}, b"12"), ({}, b"123"))
        assert await client.push() == (2, b"123")

    async def test_a_guest_gets_what_matches_and_leaves_nothing_behind(self, scene: Scene) -> None:
        guest = await scene.client()
        await guest.send(sub(x=(0, 1)))
        await until(lambda: len(scene.server.subscriptions) == 1)
        await scene.publish(({"x": 1}, b"hi"))
        assert await guest.push() == (1, b"hi")
        guest.close()
        await until(lambda: len(scene.server.subscriptions) == 0)

    async def test_a_second_sub_replaces_and_an_empty_one_withdraws(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, x=(0, 1))
        await client.send(sub(y=(0, 1)))
        await until(lambda: scene.server.subscriptions.get(ALICE).named[""][0].keys() == {"y"})
        await scene.publish(({"x": 1}, b"old"), ({"y": 1}, b"new"))
        assert (await client.push())[1] == b"new"
        await client.send(sub())
        await until(lambda: ALICE not in scene.server.subscriptions)
        await scene.publish(({"y": 1}, b"nothing"))
        await client.send(HEARTBEAT)
        assert await client.line() == b"+h\r\n"

    async def test_the_same_subscription_again_costs_no_log_entry(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, x=(0, 1))
        head = scene.server.hub.log.head_op
        await client.send(sub(x=(0, 1)) + HEARTBEAT)
        assert await client.line() == b"+h\r\n"
        assert scene.server.hub.log.head_op == head

    async def test_one_message_goes_to_everyone_whom_it_is_for(self, scene: Scene) -> None:
        peers = [await scene.subscribed(bytes([n]) * 12, x=(n, 10)) for n in range(5)]
        await scene.publish(({"x": 2}, b"two"), ({"x": 4}, b"four"))
        for n, peer in enumerate(peers):
            expected = [b"two", b"four"] if n <= 2 else [b"four"]
            assert [payload for _, payload in await peer.pushes(len(expected))] == expected


class TestConnections:
    async def test_of_two_with_one_id_the_newer_stays(self, scene: Scene) -> None:
        older = await scene.subscribed(ALICE, x=(0, 1))
        newer = await scene.client()
        await newer.enter(ALICE)
        assert await older.rest() == b""
        assert refused(scene.server, "replaced") == 1
        await scene.publish(({"x": 1}, b"hi"))
        assert (await newer.push())[1] == b"hi"

    async def test_a_silent_client_is_cut_off(self, start: Start, locked: Scene) -> None:
        locked.server = await start("limits.routing_idle_seconds=0.3")
        client = await locked.client()
        assert await client.rest() == b""
        assert refused(locked.server, "idle") == 1

    async def test_who_asks_much_and_reads_nothing_is_not_read(self, start: Start, locked: Scene) -> None:
        locked.server = await start("limits.queue_bytes=1000", "limits.slow_seconds=600")
        # What the system buffers must not hide what the door does.
        locked.door()._listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client = await locked.client(receive_buffer=4096)
        (stream,) = await _streams(locked)
        wire, sent = memoryview(HEARTBEAT * 200_000), 0
        while not stream._full:
            with contextlib.suppress(BlockingIOError):
                sent += client.sock.send(wire[sent : sent + 10_000])
            assert sent < len(wire)
            await asyncio.sleep(0)
            assert stream.buffered < 1 << 20
        # Once it reads, every heartbeat is answered.
        whole = sent // len(HEARTBEAT)
        assert await client.read(4 * whole) == b"+h\r\n" * whole

    async def test_who_takes_nothing_is_cut_off(self, start: Start, locked: Scene) -> None:
        locked.server = await start("limits.queue_bytes=1000", "limits.slow_seconds=0.5")
        client = await locked.client(receive_buffer=4096)
        await client.enter(ALICE)
        await client.send(sub(x=(0, 1)))
        await until(lambda: ALICE in locked.server.subscriptions)
        while not refused(locked.server, "slow"):
            await locked.publish(*[({"x": 1}, bytes(1900))] * 200)
        assert len(locked.door().connector.sessions) == 0


async def _streams(scene: Scene) -> list[object]:
    door = scene.door()
    await until(lambda: door.connections)
    return list(door.connections)


class TestResuming:
    async def test_after_brings_what_was_missed_and_then_goes_on(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, x=(0, 10))
        await scene.publish(({"x": 1}, b"seen"))
        seen, _ = await client.push()
        client.close()
        await scene.publish(({"x": 2}, b"missed"), ({"x": 20}, b"not mine"), ({"x": 3}, b"missed too"))
        again = await scene.client()
        await again.enter(ALICE, after=seen)
        assert [p for _, p in await again.pushes(2)] == [b"missed", b"missed too"]
        await scene.publish(({"x": 4}, b"live"))
        assert (await again.push())[1] == b"live"

    async def test_without_after_it_begins_with_what_comes_now(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, x=(0, 10))
        client.close()
        await scene.publish(({"x": 2}, b"missed"))
        again = await scene.client()
        await again.enter(ALICE)
        await scene.publish(({"x": 4}, b"live"))
        assert (await again.push())[1] == b"live"

    async def test_after_counts_for_a_subscription_that_is_new(self, scene: Scene) -> None:
        await scene.publish(({"x": 2}, b"early"))
        client = await scene.client()
        await client.enter(ALICE, after=0)
        await client.send(sub(x=(0, 10)))
        assert await client.push() == (1, b"early")

    async def test_a_future_after_begins_now(self, scene: Scene) -> None:
        client = await scene.subscribed(ALICE, after=1 << 40, x=(0, 10))
        await scene.publish(({"x": 4}, b"live"))
        assert (await client.push())[1] == b"live"

    async def test_a_far_after_is_cut_and_counted(self, start: Start, locked: Scene) -> None:
        locked.server = await start("matching.replay=3")
        await locked.publish(*[({"x": n}, b"%d" % n) for n in range(10)])
        client = await locked.client()
        await client.enter(ALICE, after=0)
        await client.send(sub(x=(0, 10)))
        assert [p for _, p in await client.pushes(3)] == [b"7", b"8", b"9"]
        assert locked.server.hub.counters.get("replay_cut", door="sdk") == 7

    async def test_a_subscription_expires_after_its_time(self, start: Start, locked: Scene) -> None:
        locked.server = await start("matching.keep_seconds=0.3")
        client = await locked.subscribed(ALICE, x=(0, 1))
        client.close()
        await until(lambda: ALICE not in locked.server.subscriptions)
        assert locked.server.hub.counters.get("subscriptions_expired") == 1

    async def test_a_slow_client_gets_everything_once_from_the_log(self, start: Start, locked: Scene) -> None:
        locked.server = await start("limits.queue_bytes=4000")
        slow = await locked.client(receive_buffer=4096)
        await slow.enter(ALICE)
        await slow.send(sub(x=(0, 1)))
        await until(lambda: ALICE in locked.server.subscriptions)
        quick = await locked.subscribed(BOB, x=(0, 1))
        payload = "ž" * 400
        door, sent = locked.door(), 0
        stream = next(s for s in door.connections if s.name == ALICE.hex())
        while not door.connector.behind or sent < 2000:
            await locked.publish(*[({"x": n % 2}, f"{sent + n} {payload}".encode()) for n in range(500)])
            sent += 500
            assert stream.buffered < 4000 + 2500
        for peer in (quick, slow):
            got = [int(p.split()[0]) for _, p in await peer.pushes(sent)]
            assert got == list(range(sent))
        await until(lambda: not door.connector.behind)
        await locked.publish(({"x": 1}, b"live again"))
        assert (await slow.push())[1] == b"live again"


async def test_subscriptions_survive_a_restart(stack: AsyncExitStack, tmp_path: Path) -> None:
    scene = Scene(stack)
    async with running_hub(tmp_path) as scene.server:
        client = await scene.subscribed(ALICE, x=(0, 1))
        client.close()
        await scene.publish(({"x": 1}, b"while away"))
    async with running_hub(tmp_path) as scene.server:
        assert ALICE in scene.server.subscriptions
        again = await scene.client()
        await again.enter(ALICE, after=0)
        assert await again.push() == (1, b"while away")


async def test_a_hub_that_stops_while_clients_are_there_stops_in_good_order(
    stack: AsyncExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(stack)
    async with running_hub(tmp_path) as scene.server:
        guest = await scene.client()
        await guest.send(sub(x=(0, 1)))
        await until(lambda: len(scene.server.subscriptions))
        client = await scene.subscribed(ALICE, x=(0, 1))
        await scene.publish(*[({"x": 1}, b"hi")] * 5000)
    await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.name == "asyncio"]
    # What was pushed before it stopped is whole and in order.
    for peer in (guest, client):
        data = await peer.rest()
        assert data.count(b"\r\n") % 2 == data.count(b"+authsuccess") % 2
