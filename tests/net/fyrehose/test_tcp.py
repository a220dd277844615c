"""What the TCP connections of the backbone share: one sequence, encoded once, and fed to each as it takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from tests.net.backbone_tcp import committed, counted, door, filled, logged, narrow, refused
from tests.net.conftest import Dial, Start
from tests.net.raw import (
    TcpPeer,
    ack,
    deliver,
    delivers,
    keepalive,
    push,
    request,
    running_hub,
    until,
)

from headrace.errors import DamagedError
from headrace.hub.consumers.cursors import create as create_consumer
from headrace.hub.consumers.cursors import settle
from headrace.hub.consumers.settlements import Settled
from headrace.hub.consumers.terms import Terms
from headrace.hub.cursor import EncodedChunk
from headrace.hub.holds import hold
from headrace.hub.routing.subscriptions import (
    subscribe,
)
from headrace.hub.services.entries import ServiceKind
from headrace.hub.services.entries import create as create_service
from headrace.hub.state import entry
from headrace.log.snapshots import snapshot
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.tail import TailFile
from headrace.message import MAX_SEQUENCE, Batch, Run
from headrace.net.fyrehose import tcp
from headrace.net.fyrehose.tcp import FyrehoseTcpDoor
from headrace.net.server.log import maintenance
from headrace.net.server.process import Server


def log_near_its_end(directory: Path, head: int) -> None:
    """A log of which retention has left nothing but a snapshot at ``head``."""
    directory.mkdir(parents=True)
    uuid = uuid4()
    TailFile.create(directory / f"{head + 1:016d}.open", uuid, head + 1, head + 1, sync=False)
    snapshot.write(directory, Snapshot(uuid, head, head, {}), sync=False)


class TestHollow:
    async def test_whatever_was_pushed_reaches_tcp_whole(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.subscribe()
        payloads = [bytes([size % 251]) * size for size in (65_498, 65_499, 65_504, 65_505, 65_526)]
        await peer.send(b"".join(map(push, payloads)))
        assert await peer.delivers(1, 5) == payloads
        assert counted(server, "hollow") == 0

    async def test_entries_are_not_delivered(self, server: Server, dial: Dial) -> None:
        """The bytes are those of the messages alone, whatever happens to the hub's state between them."""
        peer = await dial(server)
        await peer.subscribe()
        changes: list[Callable[[int], Batch]] = [
            lambda n: entry("hold", "job", hold(n)),
            lambda n: create_service(f"s/{n}", ServiceKind.LAST),
            lambda n: create_consumer(f"c/{n}", Terms(), 1),
            lambda n: settle(Settled(((n, n),), since=1)),
            lambda n: subscribe(bytes(12), b"here0001", {"x": '{"use":1,"strval":"y"}'}),
        ]
        payloads = [b"%d" % n for n in range(1, 101)]
        for number, payload in enumerate(payloads, 1):
            for change in changes[: number % (len(changes) + 1)]:
                server.hub.submit(change(number))
            await peer.send(push(payload))
            if number % 3:
                await until(lambda number=number: server.hub.log.head == number)
        expected = b"".join(deliver(seq, payload) for seq, payload in enumerate(payloads, 1))
        assert await peer.read(len(expected)) == expected
        assert server.hub.log.head_op > 2 * len(payloads)
        await peer.send(request(0, MAX_SEQUENCE))
        assert await peer.read(len(expected)) == expected
        assert counted(server, "hollow") == 0

    async def test_a_message_of_another_door_that_does_not_fit(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.subscribe()
        server.hub.submit(Batch(Run.of([b"fits", bytes(65_527), b"fits too"]), origin="tube"))
        assert await peer.delivers(1, 3) == [b"fits", b"", b"fits too"]
        assert counted(server, "hollow") == 1


class TestSequence:
    async def test_it_continues_after_a_restart(self, tmp_path: Path) -> None:
        for life in range(3):
            async with running_hub(tmp_path) as server:
                with await TcpPeer.connect(server) as peer:
                    await peer.subscribe()
                    await peer.send(push(b"a") + push(b"b"))
                    assert [seq for seq, _ in delivers(await peer.read(20))] == [2 * life + 1, 2 * life + 2]
                    await peer.send(request(0, MAX_SEQUENCE))
                    assert await peer.delivers(1, 2 * life + 2) == [b"a", b"b"] * (life + 1)

    async def test_it_ends_at_48_bits(self, tmp_path: Path) -> None:
        log_near_its_end(tmp_path / "log", MAX_SEQUENCE - 2)
        async with running_hub(tmp_path) as server:
            with (
                await TcpPeer.connect(server) as subscriber,
                await TcpPeer.connect(server) as publisher,
                await TcpPeer.connect(server) as greedy,
            ):
                await subscriber.subscribe()
                await publisher.send(push(b"last but one"))
                assert await subscriber.deliver() == (MAX_SEQUENCE - 1, b"last but one")
                # Two do not fit any more: none is taken, rather than numbers wrapping around.
                await greedy.send(push(b"x") + push(b"y"))
                assert await greedy.rest() == b""
                await publisher.send(push(b"the last"))
                assert await subscriber.deliver() == (MAX_SEQUENCE, b"the last")
                await publisher.send(push(b"one more"))
                assert await publisher.rest() == b""
                assert refused(server, "sequence") == 2
                assert server.hub.log.head == MAX_SEQUENCE
                await subscriber.send(request(MAX_SEQUENCE - 1, MAX_SEQUENCE))
                assert await subscriber.delivers(MAX_SEQUENCE - 1, MAX_SEQUENCE) == [
                    b"last but one",
                    b"the last",
                ]

    async def test_each_publishers_order_is_kept_and_all_see_the_same(
        self, server: Server, dial: Dial
    ) -> None:
        publishers, each = 16, 500
        subscribers = [await dial(server) for _ in range(2)]
        for subscriber in subscribers:
            await subscriber.subscribe()

        async def publish(name: int) -> None:
            random = Random(name)
            publisher = await dial(server)
            data = b"".join(push(b"%d %d" % (name, number)) for number in range(each))
            while data:
                cut = random.randint(1, 2000)
                await publisher.send(data[:cut])
                data = data[cut:]

        await asyncio.gather(*map(publish, range(publishers)))
        total = publishers * each
        one, other = [await subscriber.delivers(1, total) for subscriber in subscribers]
        assert one == other == logged(server)
        for name in range(publishers):
            own = [payload for payload in one if payload.startswith(b"%d " % name)]
            assert own == [b"%d %d" % (name, number) for number in range(each)]


class TestSlow:
    MESSAGES = 4_000
    SIZE = 1000

    def payload(self, seq: int) -> bytes:
        return b"%08d" % seq * (self.SIZE // 8)

    async def publish(self, server: Server, dial: Dial, first: int, last: int) -> None:
        publisher = await dial(server)
        for begin in range(first, last + 1, 250):
            seqs = range(begin, min(begin + 250, last + 1))
            await publisher.send(b"".join(push(self.payload(seq)) for seq in seqs))
            # In many turns, as a day's traffic comes, so that the log has many batches and segments.
            await until(partial(committed, server, seqs[-1]))
        publisher.close()

    async def test_what_everybody_has_is_not_kept(self, start: Start, dial: Dial) -> None:
        server = await start("limits.queue_bytes=64KiB")
        narrow(server)
        slow, quick = await dial(server, receive_buffer=16 << 10), await dial(server)
        await quick.subscribe()
        await quick.send(push(b"first"))
        assert await quick.deliver() == (1, b"first")
        assert door(server).cache.find(1) is None
        await slow.subscribe()
        reading = asyncio.ensure_future(quick.delivers(2, self.MESSAGES))
        await self.publish(server, dial, 2, self.MESSAGES)
        await reading
        assert door(server).cache.find(self.MESSAGES) is not None
        for seq in range(2, self.MESSAGES + 1):
            assert await slow.deliver() == (seq, self.payload(seq))
        # Once it has caught up, the next message is the last that anybody needs.
        await slow.send(push(b"live"))
        assert await slow.deliver() == (self.MESSAGES + 1, b"live")
        assert await quick.deliver() == (self.MESSAGES + 1, b"live")
        assert door(server).cache.find(self.MESSAGES + 1) is None

    @pytest.mark.parametrize("sealed", [False, True])
    async def test_it_is_fed_from_the_log_and_rejoins(
        self, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch, *, sealed: bool
    ) -> None:
        monkeypatch.setattr(tcp, "CACHE_BYTES", 256 << 10)
        reads = []

        def read_chunk(self: FyrehoseTcpDoor, first: int, last: int) -> EncodedChunk:
            reads.append(first)
            return plainly(self, first, last)

        plainly = FyrehoseTcpDoor.read_chunk
        monkeypatch.setattr(FyrehoseTcpDoor, "read_chunk", read_chunk)
        server = await start("limits.queue_bytes=64KiB", "log.segment_bytes=1MiB")
        narrow(server)
        slow, quick = await dial(server, receive_buffer=16 << 10), await dial(server)
        await slow.subscribe()
        await quick.subscribe()
        reading = asyncio.ensure_future(quick.delivers(1, self.MESSAGES))
        await self.publish(server, dial, 1, self.MESSAGES)
        if sealed:
            await server.maintenance.seal()
        assert len(await reading) == self.MESSAGES
        # Nothing was queued for it but what its transport may hold.
        stream = next(stream for stream in door(server).connections if stream.name == slow.name)
        assert stream.buffered < 4 << 20
        for seq in range(1, self.MESSAGES // 2):
            assert await slow.deliver() == (seq, self.payload(seq))
        more = asyncio.ensure_future(
            self.publish(server, dial, self.MESSAGES + 1, self.MESSAGES + self.MESSAGES // 2)
        )
        for seq in range(self.MESSAGES // 2, self.MESSAGES + self.MESSAGES // 2 + 1):
            assert await slow.deliver() == (seq, self.payload(seq))
        await more
        await until(lambda: stream.ready)  # What it has taken is known to the hub, too.
        assert reads
        reads.clear()
        # Live again: a message that is sent now comes now, after nothing else, and from memory.
        await slow.send(push(b"live"))
        assert await slow.deliver() == (self.MESSAGES + self.MESSAGES // 2 + 1, b"live")
        assert not reads

    async def test_it_is_cut_off_when_it_takes_no_byte(self, start: Start, dial: Dial) -> None:
        server = await start("limits.queue_bytes=64KiB", "limits.slow_seconds=0.3")
        narrow(server)
        slow, quick = await dial(server, receive_buffer=16 << 10), await dial(server)
        await slow.subscribe()
        await quick.subscribe()
        reading = asyncio.ensure_future(quick.delivers(1, self.MESSAGES))
        await self.publish(server, dial, 1, self.MESSAGES)
        await until(lambda: refused(server, "slow") == 1)
        await reading
        await until(lambda: server.connections == 1)
        # What it had is a beginning of the sequence; it lacks what is counted.
        data = await slow.rest()
        whole = data[: len(data) // (self.SIZE + 9) * (self.SIZE + 9)]
        assert [seq for seq, _ in delivers(whole)] == list(range(1, len(whole) // (self.SIZE + 9) + 1))
        cut = server.hub.counters.get("cut_off", door="fyrehose")
        assert 0 < cut <= self.MESSAGES - len(whole) // (self.SIZE + 9)
        await quick.send(push(b"alive"))
        assert await quick.deliver() == (self.MESSAGES + 1, b"alive")

    async def test_one_that_takes_a_little_now_and_then_is_not(self, start: Start, dial: Dial) -> None:
        server = await start("limits.queue_bytes=64KiB", "limits.slow_seconds=0.4")
        narrow(server)
        slow = await dial(server, receive_buffer=16 << 10)
        await slow.subscribe()
        await self.publish(server, dial, 1, self.MESSAGES)
        loop = asyncio.get_running_loop()
        begun, seq = loop.time(), 0
        while loop.time() < begun + 1.2:
            for _ in range(100):
                seq += 1
                assert await slow.deliver() == (seq, self.payload(seq))
            await asyncio.sleep(0.05)
        assert refused(server, "slow") == 0

    async def test_one_that_leaves_a_packet_unfinished_is_cut_off(self, start: Start, dial: Dial) -> None:
        server = await start("limits.slow_seconds=0.3")
        halting, silent = await dial(server), await dial(server)
        await silent.send(push(b"whole"))
        await halting.send(push(b"whole") + b"\x02\x00\x05ha")
        await until(lambda: refused(server, "stalled") == 1)
        assert await halting.rest() == b""
        await silent.send(push(b"alive"))
        await until(lambda: server.hub.log.head == 3)

    async def test_an_idle_subscriber_is_not_slow(self, start: Start, dial: Dial) -> None:
        server = await start("limits.slow_seconds=0.1")
        peer = await dial(server)
        await peer.subscribe()
        loop = asyncio.get_running_loop()
        later = loop.time() + 0.7
        await until(lambda: loop.time() > later)
        await peer.send(push(b"still here"))
        assert await peer.deliver() == (1, b"still here")

    async def test_retention_passes_it(
        self, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(maintenance, "_PAUSE", 0.01)
        monkeypatch.setattr(tcp, "CACHE_BYTES", 256 << 10)
        server = await start("limits.queue_bytes=64KiB", "log.segment_bytes=256KiB", "log.retain_bytes=1KiB")
        narrow(server)
        slow = await dial(server, receive_buffer=16 << 10)
        await slow.subscribe()
        await self.publish(server, dial, 1, self.MESSAGES)
        await until(lambda: server.hub.log.first > self.MESSAGES // 2)
        # What it says meanwhile is not heard, and takes nothing back that is on its way.
        await slow.send(keepalive() * 100)
        got = delivers((await slow.rest()).replace(ack(), b""))
        assert refused(server, "lagging") == 1
        # All that there is before what it cannot have.
        assert [seq for seq, _ in got] == list(range(1, len(got) + 1))
        assert server.hub.counters.get("undeliverable", door="fyrehose") == self.MESSAGES - len(got)
        slow.close()
        await until(lambda: not door(server).connections)

    async def test_one_that_cannot_be_fed_and_does_not_leave_is_cut_off(
        self, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await start("limits.slow_seconds=0.3")
        await filled(server, dial, 3)

        def damaged(*_: object) -> EncodedChunk:
            raise DamagedError("0001.arrow", 7, 1, 3, "torn")

        monkeypatch.setattr(FyrehoseTcpDoor, "read_chunk", damaged)
        stays = await dial(server)
        await stays.send(request(1, 3))
        await until(lambda: refused(server, "damaged") == 1)
        (stream,) = (each for each in door(server).connections if each.name == stays.name)
        await stays.send(push(b"not heard") + keepalive())
        await until(lambda: stream not in door(server).connections)
        assert (server.hub.log.head, counted(server, "subscribed")) == (3, 0)
        assert refused(server, "slow") == 0

    async def test_a_request_of_much_takes_no_more_memory_than_the_queue(
        self, start: Start, dial: Dial
    ) -> None:
        server = await start("limits.queue_bytes=64KiB")
        narrow(server)
        await self.publish(server, dial, 1, self.MESSAGES)
        peer = await dial(server, receive_buffer=16 << 10)
        await peer.send(request(1, self.MESSAGES))
        (stream,) = door(server).connections
        await until(lambda: stream._full)
        assert stream.buffered < 2 << 20
        for seq in range(1, self.MESSAGES + 1):
            assert await peer.deliver() == (seq, self.payload(seq))

    async def test_a_packet_that_comes_slowly_is_waited_for(self, start: Start, dial: Dial) -> None:
        server = await start("limits.slow_seconds=0.5")
        peer = await dial(server)
        for byte in push(b"slow but sure"):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0.06)
        await until(partial(committed, server, 1))
        assert refused(server, "stalled") == 0
