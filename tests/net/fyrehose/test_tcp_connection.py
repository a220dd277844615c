"""One TCP connection of the backbone, as strangers meet it: raw sockets against a hub in this process."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from itertools import accumulate, repeat
from pathlib import Path
from random import Random

import pytest
from tests.net.backbone_tcp import counted, door, filled, logged, narrow, refused
from tests.net.conftest import Dial, Start
from tests.net.raw import (
    SECONDS,
    TcpPeer,
    ack,
    backbone_of,
    deliver,
    delivers,
    forward,
    keepalive,
    push,
    request,
    running_hub,
    until,
)

from headrace.errors import DamagedError, FullError, TrimmedError
from headrace.hub.cursor import EncodedChunk
from headrace.hub.sequence import Done
from headrace.message import MAX_SEQUENCE, Batch
from headrace.net.fyrehose.tcp import MAX_ACKS, MAX_RANGES, RECEIVE_BYTES, FyrehoseTcpDoor
from headrace.net.server.log import maintenance
from headrace.net.server.process import Server
from headrace.tube.fair_turns import FRAME_BYTES, IN_A_TURN, TURN_SECONDS
from headrace.wire.fyrehose import kernels
from headrace.wire.fyrehose.stream import PUSHES_OF_A_PACKET


class TestPush:
    async def test_a_push_is_delivered_with_the_first_number(self, server: Server, dial: Dial) -> None:
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        await publisher.send(bytes.fromhex("02 0005 68656c6c6f"))
        assert await subscriber.read(14) == bytes.fromhex("01 0005 000000000001 68656c6c6f")

    async def test_byte_by_byte(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        for byte in keepalive() + push(b"hello") + push(b""):
            await peer.send(bytes([byte]))
        expected = ack() + deliver(1, b"hello") + deliver(2, b"")
        assert await peer.read(len(expected)) == expected
        # Asked for only now: a REQUEST is answered with what is committed by then.
        for byte in request(1, 2) + push(b"world"):
            await peer.send(bytes([byte]))
        # The range asked for and the third message are each in order; they are not ordered among themselves.
        rest = delivers(await peer.read(len(expected) - 7 + len(deliver(3, b"world"))))
        assert sorted(rest) == [(1, b"hello"), (2, b""), (3, b"world")]

    async def test_a_run_keeps_its_order_and_its_edges(self, server: Server, dial: Dial) -> None:
        random = Random(7)
        payloads = [random.randbytes(random.choice((0, 1, 7, 300, 9000))) for _ in range(2000)]
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        await publisher.send(b"".join(map(push, payloads)))
        assert await subscriber.delivers(1, len(payloads)) == payloads
        assert logged(server) == payloads

    async def test_a_publisher_needs_no_keepalive_and_hears_nothing(self, server: Server, dial: Dial) -> None:
        publisher = await dial(server)
        await publisher.send(push(b"a") + push(b"b"))
        await until(lambda: server.hub.log.head == 2)
        publisher.sock.shutdown(socket.SHUT_WR)
        assert await publisher.rest() == b""

    async def test_the_longest_push(self, server: Server, dial: Dial) -> None:
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        longest = Random(1).randbytes(65_526)
        await publisher.send(push(longest) + push(b"next"))
        assert await subscriber.delivers(1, 2) == [longest, b"next"]

    async def test_a_longer_one_is_refused_by_its_header(self, server: Server, dial: Dial) -> None:
        publisher = await dial(server)
        await publisher.send(push(b"kept") + struct.pack("!BH", 0x02, 65_527))
        assert await publisher.rest() == b""
        assert refused(server, "limit") == 1
        assert logged(server) == [b"kept"]

    async def test_on_tcp_0x02_is_always_push(self, server: Server, dial: Dial) -> None:
        # The document's example of a KEEPALIVE: on a stream it begins a PUSH of 0x7f00 bytes.
        peer = await dial(server)
        example = bytes.fromhex("02 7f000001 0913")
        await peer.send(example)
        await peer.send(bytes(0x7F00 - 4))
        await until(lambda: server.hub.log.head == 1)
        assert logged(server) == [example[3:] + bytes(0x7F00 - 4)]

    async def test_a_publisher_that_goes_away_inside_a_packet(self, server: Server, dial: Dial) -> None:
        publisher = await dial(server)
        await publisher.send(push(b"whole") + push(b"cut short")[:-1])
        publisher.sock.shutdown(socket.SHUT_WR)
        assert await publisher.rest() == b""
        assert refused(server, "cut_short") == 1
        assert logged(server) == [b"whole"]


class TestKeepalive:
    async def test_the_acknowledgement_echoes_what_it_answers(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(bytes.fromhex("10 7f000001 0913"))
        assert await peer.read(7) == bytes.fromhex("20 7f000001 0913")

    async def test_the_address_is_ignored_otherwise(self, server: Server, dial: Dial) -> None:
        # On UDP this address would not be subscribed; on TCP the connection is the return path.
        peer = await dial(server)
        await peer.send(keepalive("203.0.113.9", 9) + push(b"here"))
        expected = ack("203.0.113.9", 9) + deliver(1, b"here")
        assert await peer.read(len(expected)) == expected

    async def test_the_acknowledgement_precedes_the_first_deliver(self, server: Server, dial: Dial) -> None:
        # A flood is under way while subscribers come.
        publisher = await dial(server)
        flood = asyncio.ensure_future(publisher.send(push(b"x") * 200_000))
        for _ in range(20):
            peer = await dial(server)
            await peer.send(keepalive())
            assert await peer.read(7) == ack()
            first, _ = await peer.deliver() if not flood.done() else (1, b"")
            assert first >= 1
        await flood

    async def test_every_keepalive_is_acknowledged(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(b"".join(keepalive("10.0.0.1", port) for port in range(500)))
        assert await peer.read(7 * 500) == b"".join(ack("10.0.0.1", port) for port in range(500))
        assert counted(server, "subscribed") == 1

    async def test_a_late_joiner_begins_where_it_joins(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 3)
        peer = await dial(server)
        await peer.subscribe()
        await peer.send(push(b"fourth"))
        assert await peer.deliver() == (4, b"fourth")

    async def test_a_lapse_unsubscribes_and_never_closes(self, start: Start, dial: Dial) -> None:
        server = await start("fyrehose.subscriber_seconds=0.3")
        loop = asyncio.get_running_loop()
        peer = await dial(server)
        began = loop.time()
        await peer.subscribe()
        await until(lambda: counted(server, "lapsed") == 1)
        assert loop.time() - began >= 0.3
        assert backbone_of(server).facts() == {"fyrehose_tcp": 0, "fyrehose_udp": 0}
        await peer.send(push(b"unseen"))
        await until(lambda: server.hub.log.head == 1)
        # The connection works; it subscribes anew behind what it missed, and may ask for that.
        await peer.subscribe()
        await peer.send(push(b"seen"))
        assert await peer.deliver() == (2, b"seen")
        await peer.send(request(1, 1))
        assert await peer.deliver() == (1, b"unseen")

    async def test_renewal_goes_on_without_a_seam(self, start: Start, dial: Dial) -> None:
        server = await start("fyrehose.subscriber_seconds=0.5")
        loop = asyncio.get_running_loop()
        peer, publisher = await dial(server), await dial(server)
        begun, count = loop.time(), 0
        await peer.subscribe()
        while loop.time() < begun + 1.2:
            count += 1
            await publisher.send(push(b"%d" % count))
            assert await peer.deliver() == (count, b"%d" % count)
            await peer.subscribe()
        assert counted(server, "lapsed") == 0

    async def test_only_keepalive_renews(self, start: Start, dial: Dial) -> None:
        server = await start("fyrehose.subscriber_seconds=0.3")
        peer = await dial(server)
        await peer.subscribe()
        while not counted(server, "lapsed"):
            await peer.send(push(b"x") + request(1, 1))
            await asyncio.sleep(0.005)
        assert server.hub.log.head > 10

    async def test_five_seconds_by_default(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path) as server:
            assert server.settings.fyrehose.subscriber_seconds == 5.0
            with await TcpPeer.connect(server) as peer:
                await peer.subscribe()
                (stream,) = door(server).connections
                now = asyncio.get_running_loop().time()
                stream.tick(now + 4.9)
                assert stream in door(server).subscribers
                stream.tick(now + 5.1)
                assert stream not in door(server).subscribers
                await peer.subscribe()

    async def test_acknowledgements_nobody_reads_are_bounded(self, start: Start, dial: Dial) -> None:
        server = await start("limits.queue_bytes=64KiB")
        narrow(server)
        peer, count = await dial(server, receive_buffer=16 << 10), 100_000
        flood = asyncio.ensure_future(peer.send(keepalive("10.9.8.7", 6) * count))
        await until(lambda: door(server).connections)
        (stream,) = door(server).connections
        await until(lambda: stream._unread_acks > MAX_ACKS)
        # It is read no further: what waits for it does not grow.
        held = stream.buffered
        assert held <= (64 << 10) + MAX_ACKS + RECEIVE_BYTES
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert stream.reading_paused
        assert stream.buffered <= held
        # Once it reads, everything goes on.
        everything = await peer.read(7 * count) == ack("10.9.8.7", 6) * count
        assert everything
        await flood


class TestRequest:
    async def test_the_whole_range_both_ends_included(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 9)
        peer = await dial(server)
        await peer.send(bytes.fromhex("04 7f000001 0913 000000000003 000000000007"))
        assert await peer.delivers(3, 7) == [b"3", b"4", b"5", b"6", b"7"]

    async def test_one_message(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 3)
        peer = await dial(server)
        await peer.send(request(2, 2) + request(3, 3))
        assert await peer.read(20) == deliver(2, b"2") + deliver(3, b"3")

    async def test_no_limit_of_1024(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 5000)
        peer = await dial(server)
        await peer.send(request(1, 5000))
        assert await peer.delivers(1, 5000) == [b"%d" % seq for seq in range(1, 5001)]

    async def test_from_0_means_1_and_to_is_cut_to_the_head(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 4)
        peer = await dial(server)
        await peer.send(request(0, MAX_SEQUENCE) + request(4, 4))
        assert await peer.delivers(1, 4) == [b"1", b"2", b"3", b"4"]
        assert await peer.deliver() == (4, b"4")

    async def test_beyond_the_head_nothing_comes_and_it_stays_open(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 2)
        peer = await dial(server)
        await peer.send(request(3, 9) + request(MAX_SEQUENCE, MAX_SEQUENCE) + request(1, 1))
        assert await peer.deliver() == (1, b"1")

    async def test_of_an_empty_log(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(request(0, 10) + keepalive())
        assert await peer.read(7) == ack()

    @pytest.mark.parametrize(("first", "last"), [(4, 3), (1, 0), (0, 0), (MAX_SEQUENCE, 1)])
    async def test_from_past_to_is_refused(self, server: Server, dial: Dial, first: int, last: int) -> None:
        await filled(server, dial, 5)
        peer = await dial(server)
        await peer.send(push(b"kept") + request(first, last) + push(b"too late"))
        assert await peer.rest() == b""
        assert refused(server, "malformed") == 1
        await until(lambda: server.hub.log.head == 6)
        assert logged(server)[-1] == b"kept"

    async def test_while_subscribed_nothing_live_is_missed(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 3000)
        peer, publisher = await dial(server), await dial(server)
        await peer.subscribe()
        await peer.send(request(1, 3000))
        await publisher.send(b"".join(push(b"live %d" % n) for n in range(3001, 4001)))
        seen = [await peer.deliver() for _ in range(4000)]
        assert [seq for seq, _ in seen if seq <= 3000] == list(range(1, 3001))
        assert [seq for seq, _ in seen if seq > 3000] == list(range(3001, 4001))

    async def test_far_more_requests_than_may_wait(self, server: Server, dial: Dial) -> None:
        # All come in one read; the connection is read again when they are done.
        await filled(server, dial, 50)
        peer = await dial(server)
        many = 10 * MAX_RANGES
        await peer.send(request(1, 50) * many)
        await peer.send(push(b"behind them"))
        for _ in range(many):
            await peer.delivers(1, 50)
        await until(lambda: server.hub.log.head == 51)
        assert counted(server, "requests") == many

    async def test_over_sealed_segments_and_the_open_tail(self, start: Start, dial: Dial) -> None:
        server = await start("log.segment_bytes=20KiB")
        publisher, peer = await dial(server), await dial(server)
        payloads = [b"%d" % seq * 50 for seq in range(1, 1201)]
        await peer.subscribe()
        for at in range(0, 1200, 100):
            await publisher.send(b"".join(map(push, payloads[at : at + 100])))
            await peer.delivers(at + 1, at + 100)
        assert await server.maintenance.seal() > 2
        await publisher.send(push(b"open"))
        await peer.delivers(1201, 1201)
        await peer.send(request(1, 1201))
        assert await peer.delivers(1, 1201) == [*payloads, b"open"]

    async def test_what_is_below_the_log_is_counted_and_the_rest_is_served(
        self, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(maintenance, "_PAUSE", 0.01)
        server = await start("log.retain_bytes=1", "log.segment_seconds=600")
        await filled(server, dial, 5)
        await server.maintenance.seal()
        await until(lambda: server.hub.log.first == 6)
        peer = await dial(server)
        await peer.send(push(b"six") + push(b"seven"))
        await until(lambda: server.hub.log.head == 7)
        await peer.send(request(2, 7) + request(1, 3))
        assert await peer.read(26) == deliver(6, b"six") + deliver(7, b"seven")
        await until(lambda: counted(server, "requests") == 2)
        assert server.hub.counters.get("unavailable", door="fyrehose") == 4 + 3


class TestRefusal:
    @pytest.mark.parametrize(
        ("packet", "reason"),
        [
            (deliver(1, b"x"), "unexpected"),
            (forward(1, 2, "127.0.0.1", 2323), "unexpected"),
            (ack(), "unexpected"),
            (b"\x00", "malformed"),
            (b"\x03\x00\x00", "malformed"),
            (b"\x03", "malformed"),
            (b"\x40", "unexpected"),
            (b"\x80", "unexpected"),
            (b"\xff" * 20, "malformed"),
            (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        ],
    )
    async def test_what_may_not_come_closes_the_connection(
        self, server: Server, dial: Dial, packet: bytes, reason: str
    ) -> None:
        peer = await dial(server)
        await peer.send(push(b"before") + packet + push(b"behind"))
        assert await peer.rest() == b""
        assert refused(server, reason) == 1
        assert logged(server) == [b"before"]

    async def test_it_is_refused_by_its_type_alone(self, server: Server, dial: Dial) -> None:
        peer = await dial(server)
        await peer.send(b"\x01")
        assert await peer.rest() == b""

    async def test_nobody_else_is_disturbed(self, server: Server, dial: Dial) -> None:
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        bad = [b"\x00", deliver(1, b""), request(2, 1), struct.pack("!BH", 2, 65_535), ack(), b"\xfe"]
        for count in range(1, 61):
            culprit = await dial(server)
            await culprit.send(bad[count % len(bad)])
            await publisher.send(push(b"%d" % count))
            assert await subscriber.deliver() == (count, b"%d" % count)
            assert await culprit.rest() == b""
        assert sum(refused(server, reason) for reason in ("malformed", "unexpected", "limit")) == 60
        assert server.connections == 2

    async def test_a_peer_that_is_gone_before_it_is_accepted(self, server: Server, dial: Dial) -> None:
        reset = struct.pack("ii", 1, 0)
        for _ in range(100):
            peer = await dial(server)
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            peer.close()
        last = await dial(server)
        await last.subscribe()
        await until(lambda: server.connections == 1)

    async def test_and_before_its_address_could_be_asked_for(self, server: Server) -> None:
        class Gone(asyncio.Transport):
            aborted = False

            def abort(self) -> None:
                self.aborted = True

        stream, transport = door(server).connection(), Gone()
        stream.connection_made(transport)
        assert transport.aborted
        stream.get_buffer(100)[:5] = push(b"ab")
        stream.buffer_updated(5)
        stream.connection_lost(None)
        assert (server.connections, server.hub.log.head, len(door(server).connections)) == (0, 0, 0)

    async def test_a_flood_of_small_packets_costs_nobody_else(self, server: Server, dial: Dial) -> None:
        flooder, peer, count = await dial(server), await dial(server), 50_000
        flood = asyncio.ensure_future(flooder.send(keepalive() * count))
        await until(lambda: any(stream.reading_paused for stream in door(server).connections))
        (stream,) = (stream for stream in door(server).connections if stream.name == flooder.name)
        await peer.subscribe()
        await peer.send(push(b"quick"))
        quick = asyncio.ensure_future(peer.deliver())
        # One read brings tens of thousands of them; only some are taken before everyone has a turn again.
        taken = []
        while not quick.done():
            before = stream._sent
            await asyncio.sleep(0)
            taken.append((stream._sent - before) // len(ack()))
        assert await quick == (1, b"quick")
        assert max(taken) < RECEIVE_BYTES // len(keepalive()) // 3
        while acks := await flooder.read(7):
            count -= acks == ack()
            if not count:
                break
            if acks[0] == 0x01:
                assert acks + await flooder.read(7) == deliver(1, b"quick")
        await flood

    @pytest.mark.parametrize("size", [0, 1000, 60_000])
    async def test_a_flood_of_messages_is_taken_in_turns(
        self, server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        kernels.warm()
        flooders = [await dial(server) for _ in range(6)]
        loop, submit, taken = asyncio.get_running_loop(), server.hub.submit, [(0, 0)]

        def submit_and_count(batch: Batch, done: Done) -> None:
            if taken[-1] == (0, 0):
                loop.call_soon(taken.append, (0, 0))  # With the next turn another count begins.
            count, weight = taken[-1]
            taken[-1] = count + batch.run.count, weight + batch.run.size
            submit(batch, done)

        monkeypatch.setattr(server.hub, "submit", submit_and_count)
        # Whoever goes on takes as long as a turn may be.
        times = accumulate(repeat(TURN_SECONDS))
        monkeypatch.setattr(server.turns, "_clock", lambda: next(times))
        whole, message = 0, push(bytes(size))
        for flooder in flooders:
            flooder.sock.setblocking(False)
            whole += flooder.sock.send(message * ((4 << 20) // len(message))) // len(message)
        # All of it would come in one turn: an event loop reads a socket up to 32 times in a row.
        assert whole * len(message) > 5 * RECEIVE_BYTES
        await until(lambda: server.hub.log.head == whole)
        counts, weights = zip(*taken, strict=True)
        assert sum(counts) == whole
        assert max(counts) < IN_A_TURN * 2 * PUSHES_OF_A_PACKET
        assert max(weights) < IN_A_TURN * 2 * FRAME_BYTES

    async def test_connections_per_address(self, start: Start, dial: Dial) -> None:
        server = await start("limits.connections_per_address=3")
        peers = [await dial(server) for _ in range(3)]
        await until(lambda: server.connections == 3)
        over = await dial(server)
        assert await over.rest() == b""
        assert refused(server, "connections") == 1
        elsewhere = await dial(server, source="127.0.0.2")
        await elsewhere.subscribe()
        # Who goes makes room, whether he leaves or is refused.
        peers[0].close()
        await peers[1].send(b"\x00")
        assert await peers[1].rest() == b""
        await until(lambda: server.connections == 2)
        for _ in range(2):
            await (await dial(server)).subscribe()

    async def test_connections_in_all(self, start: Start, dial: Dial) -> None:
        server = await start("limits.connections=2")
        await (await dial(server)).subscribe()
        await (await dial(server, source="127.0.0.2")).subscribe()
        assert await (await dial(server, source="127.0.0.3")).rest() == b""
        assert refused(server, "connections") == 1

    async def test_with_auth_required_only_allowed_addresses_are_served(
        self, start: Start, dial: Dial
    ) -> None:
        server = await start("auth.required=true", 'fyrehose.allow=["127.0.0.2"]')
        refused_peer = await dial(server)
        assert await refused_peer.rest() == b""
        assert refused(server, "not-allowed") == 1
        assert server.connections == 0
        allowed = await dial(server, source="127.0.0.2")
        await allowed.subscribe()
        await allowed.send(push(b"in"))
        assert await allowed.deliver() == (1, b"in")


class TestHalfClosed:
    async def test_a_subscriber_that_sends_no_more_is_fed_until_it_lapses(
        self, start: Start, dial: Dial
    ) -> None:
        server = await start("fyrehose.subscriber_seconds=0.5")
        peer, publisher = await dial(server), await dial(server)
        await peer.subscribe()
        peer.sock.shutdown(socket.SHUT_WR)
        await publisher.send(push(b"still heard"))
        assert await peer.deliver() == (1, b"still heard")
        assert await peer.rest() == b""

    async def test_a_range_is_served_whole_behind_the_end(self, server: Server, dial: Dial) -> None:
        await filled(server, dial, 3000)
        peer = await dial(server)
        await peer.send(request(1, 3000))
        peer.sock.shutdown(socket.SHUT_WR)
        assert [seq for seq, _ in delivers(await peer.rest())] == list(range(1, 3001))


class TestStorage:
    async def test_what_retention_removes_from_a_range_meanwhile_is_passed_over(
        self, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plainly = FyrehoseTcpDoor.read_chunk

        def read_chunk(self: FyrehoseTcpDoor, first: int, last: int) -> EncodedChunk:
            if first < 4:
                raise TrimmedError(first, last, 4)
            return plainly(self, first, last)

        monkeypatch.setattr(FyrehoseTcpDoor, "read_chunk", read_chunk)
        server = await start()
        await filled(server, dial, 6)
        peer = await dial(server)
        await peer.send(request(2, 5))
        assert await peer.delivers(4, 5) == [b"4", b"5"]
        assert server.hub.counters.get("undeliverable", door="fyrehose") == 2

    async def test_a_damaged_log_cuts_off_who_needs_it(
        self, server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await filled(server, dial, 3)
        peer, other = await dial(server), await dial(server)
        await other.subscribe()

        def damaged(*_: object) -> list[Batch]:
            raise DamagedError("0001.arrow", 7, 1, 3, "torn")

        with monkeypatch.context() as patch:
            patch.setattr(server.hub.log, "read", damaged)
            await peer.send(request(1, 3))
            assert await peer.rest() == b""
        assert refused(server, "damaged") == 1
        assert server.hub.counters.get("undeliverable", door="fyrehose") == 3
        await other.send(push(b"four"))
        assert await other.deliver() == (4, b"four")

    async def test_who_sends_no_more_is_gone_once_it_is_cut_off(
        self, server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await filled(server, dial, 3)
        peer = await dial(server)
        release = threading.Event()

        def damaged(*_: object) -> list[Batch]:
            release.wait(SECONDS)
            raise DamagedError("0001.arrow", 7, 1, 3, "torn")

        with monkeypatch.context() as patch:
            patch.setattr(server.hub.log, "read", damaged)
            await peer.send(request(1, 3))
            peer.sock.shutdown(socket.SHUT_WR)
            await until(lambda: any(each._ended for each in door(server).connections))
            release.set()
            assert await peer.rest() == b""
        await until(lambda: not any(each._ended for each in door(server).connections))

    async def test_a_full_disk_refuses_publishers_and_nobody_else(
        self, server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await filled(server, dial, 2)
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()

        def full(_batches: object) -> None:
            raise FullError("log", "no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(server.hub.log, "append", full)
            await publisher.send(push(b"lost") + push(b"lost"))
            assert await publisher.rest() == b""
        assert refused(server, "storage") == 1
        assert server.hub.counters.get("refused_messages", origin="fyrehose", reason="storage") == 2
        await subscriber.send(request(1, 2))
        assert await subscriber.delivers(1, 2) == [b"1", b"2"]
        again = await dial(server)
        await again.send(push(b"room again"))
        assert await subscriber.deliver() == (3, b"room again")
