"""The backbone over UDP, as a peer sees it: datagrams in, datagrams out, through real sockets and a real log."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from ipaddress import IPv4Network
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from tests.net.conftest import Bind, Dial, Start
from tests.net.raw import (
    LOOPBACK,
    SECONDS,
    STRANGER,
    UdpPeer,
    ack,
    address_of,
    backbone_of,
    deliver,
    delivers,
    forward,
    keepalive,
    push,
    request,
    until,
)

import headrace
from headrace.client.udp_offload import UDP_GRO, UDP_SEGMENT
from headrace.errors import DamagedError
from headrace.hub.backbone.udp_subscribers import SendRange
from headrace.hub.holds import hold
from headrace.hub.state import entry
from headrace.log import Log
from headrace.message import MAX_SEQUENCE, Batch, Run
from headrace.net.fyrehose import door as fyrehose_door
from headrace.net.fyrehose import udp as fyrehose_udp
from headrace.net.fyrehose.udp import FyrehoseUdp, Packets
from headrace.net.server.log import maintenance
from headrace.net.server.process import Server
from headrace.wire.fyrehose import kernels


def refused(server: Server, reason: str) -> int:
    return server.hub.counters.get("refused", door="fyrehose", reason=reason)


def counted(server: Server, name: str) -> int:
    return server.hub.counters.get(name, door="fyrehose", transport="udp")


def logged(server: Server) -> list[bytes]:
    return [payload for batch in server.hub.log.scan(1) for payload in batch.run]


def subscribers(server: Server) -> int:
    return len(door(server))


def door(server: Server) -> FyrehoseUdp:
    udp = backbone_of(server).udp
    assert udp is not None
    return udp


async def filled(server: Server, count: int) -> None:
    """So many messages more: ``b"1"`` to ``b"<count>"``."""
    last = server.hub.log.tail + count
    server.hub.submit(Batch(Run.of(b"%d" % number for number in range(1, count + 1)), origin="fyrehose"))
    await until(lambda: server.hub.log.head >= last)


class TestPush:
    async def test_a_push_is_delivered(self, server: Server, bind: Bind) -> None:
        subscriber, publisher = bind(server), bind(server)
        await subscriber.subscribe()
        publisher.send(bytes.fromhex("02 0005 68656c6c6f"))
        assert await subscriber.datagram() == bytes.fromhex("01 0005 000000000001 68656c6c6f")
        (batch,) = server.hub.log.read(1)
        assert (batch.origin, batch.publisher) == ("fyrehose", publisher.name)

    async def test_several_in_a_datagram(self, server: Server, bind: Bind) -> None:
        subscriber, publisher = bind(server), bind(server)
        await subscriber.subscribe()
        publisher.send(bytes.fromhex("02 0002 6869  02 0000") + push(b"third"))
        assert await subscriber.delivers(1, 3) == [b"hi", b"", b"third"]

    async def test_the_longest_push(self, server: Server, bind: Bind) -> None:
        publisher = bind(server)
        longest = Random(3).randbytes(65_504)
        publisher.send(push(longest))
        await until(lambda: server.hub.log.head == 1)
        whole = logged(server) == [longest]
        assert whole

    async def test_a_flood_keeps_its_order(self, server: Server, bind: Bind) -> None:
        publisher = bind(server)
        for number in range(3000):
            publisher.send(push(b"%d" % number))
        await until(lambda: server.hub.log.head == 3000)
        assert logged(server) == [b"%d" % number for number in range(3000)]

    async def test_under_congestion_pushes_are_dropped_and_counted(self, server: Server, bind: Bind) -> None:
        publisher = bind(server)
        server.hub.commit_by(lambda _tail: None)  # a disk or a majority that takes its time
        server.hub._max_uncommitted = 100
        publisher.send(push(bytes(200)))
        await until(lambda: server.hub.congested)
        publisher.send(push(b"dropped") + push(b"dropped"))
        await until(lambda: server.hub.counters.get("dropped", door="fyrehose", reason="congested") == 2)
        server.hub.committed(1)
        publisher.send(push(b"taken"))
        await until(lambda: server.hub.log.tail == 2)
        server.hub.committed(2)


class TestKeepalive:
    async def test_it_is_acknowledged_to_its_source_with_the_same_fields(
        self, server: Server, bind: Bind
    ) -> None:
        peer = bind(server)
        peer.send(keepalive(LOOPBACK, peer.endpoint[1]))
        assert await peer.datagram() == ack(LOOPBACK, peer.endpoint[1])
        assert subscribers(server) == 1

    async def test_the_documents_example_subscribes(self, server: Server, bind: Bind) -> None:
        # 00000010 | 01111111 00000000 00000000 00000001 | 00001001 00010011, for 127.0.0.1:2323
        peer = bind(server)
        peer.send(bytes.fromhex("02 7f000001 0913"))
        assert await peer.datagram() == bytes.fromhex("20 7f000001 0913")
        assert subscribers(server) == 1
        assert server.hub.log.head == 0

    async def test_the_example_for_ones_own_port_is_fed(self, server: Server, bind: Bind) -> None:
        peer = bind(server)
        peer.send(b"\x02" + keepalive(*peer.endpoint)[1:])
        assert await peer.datagram() == ack(*peer.endpoint)
        peer.send(push(b"hello"))
        assert await peer.delivers(1, 1) == [b"hello"]

    async def test_seven_bytes_that_are_a_push_are_one(self, server: Server, bind: Bind) -> None:
        peer = bind(server)
        peer.send(push(b"four"))
        peer.send(push(b"a") + push(b""))
        await until(lambda: server.hub.log.head == 3)
        assert logged(server) == [b"four", b"a", b""]

    @pytest.mark.parametrize("own_address", [True, False])
    @pytest.mark.parametrize("own_port", [True, False])
    async def test_zeros_mean_the_source(
        self, server: Server, bind: Bind, *, own_address: bool, own_port: bool
    ) -> None:
        peer = bind(server)
        address, port = peer.endpoint
        await peer.subscribe("0.0.0.0" if own_address else address, 0 if own_port else port)
        peer.send(push(b"here"))
        assert await peer.delivers(1, 1) == [b"here"]

    async def test_the_port_may_differ(self, server: Server, bind: Bind) -> None:
        control, data = bind(server), bind(server)
        await control.subscribe(*data.endpoint)
        control.send(push(b"to the other port"))
        assert await data.delivers(1, 1) == [b"to the other port"]
        assert await control.fence() == []

    async def test_a_foreign_address_is_acknowledged_and_nothing_more(
        self, server: Server, bind: Bind
    ) -> None:
        victim, attacker = bind(server, address="127.0.0.2"), bind(server)
        await attacker.subscribe(*victim.endpoint)
        assert subscribers(server) == 0
        assert refused(server, "foreign-address") == 1
        attacker.send(push(b"x"))
        assert await attacker.fence() == []
        assert await victim.fence() == []

    async def test_an_address_that_is_allowed_is_subscribed_for_another(
        self, start: Start, bind: Bind
    ) -> None:
        server = await start('fyrehose.allow=["127.0.0.2/32"]')
        listener, control = bind(server, address="127.0.0.2"), bind(server)
        await control.subscribe(*listener.endpoint)
        control.send(push(b"over there"))
        assert await listener.delivers(1, 1) == [b"over there"]
        # Being served is no right to name others.
        await listener.subscribe("127.0.0.3", 9)
        assert subscribers(server) == 1

    @pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
    async def test_the_hubs_own_door_is_never_subscribed(
        self, server: Server, bind: Bind, address: str
    ) -> None:
        peer = bind(server)
        port = address_of(server)[1]
        await peer.subscribe(address, port)
        assert refused(server, "own-door") == 1
        assert subscribers(server) == 0
        peer.send(push(b"x"))
        assert await peer.fence() == []
        assert refused(server, "unexpected") == 0

    async def test_nor_is_any_address_of_a_door_that_listens_on_all(self, start: Start, bind: Bind) -> None:
        server = await start(
            "listen.fyrehose=0.0.0.0:0", 'fyrehose.allow=["0.0.0.0/0"]', "auth.insecure=true"
        )
        port = address_of(server)[1]
        with UdpPeer(server) as peer:
            peer._hub = (LOOPBACK, port)
            for address in ("127.0.0.1", "127.0.0.2", "127.255.1.9"):
                await peer.subscribe(address, port)
            assert refused(server, "own-door") == 3
            assert subscribers(server) == 0
            # Another machine may well listen at the same port.
            await peer.subscribe(STRANGER[0], port)
            assert subscribers(server) == 1

    async def test_it_lasts_as_long_as_the_setting_says(self, start: Start, bind: Bind) -> None:
        server = await start("fyrehose.subscriber_seconds=0.3")
        loop = asyncio.get_running_loop()
        peer = bind(server)
        began = loop.time()
        await peer.subscribe()
        await until(lambda: counted(server, "lapsed") == 1)
        assert 0.29 <= loop.time() - began < 5
        peer.send(push(b"unheard"))
        await until(lambda: server.hub.log.head == 1)
        assert await peer.fence() == []
        await peer.subscribe()
        peer.send(push(b"heard"))
        assert await peer.delivers(2, 2) == [b"heard"]

    async def test_renewal_goes_on_without_a_seam(self, start: Start, bind: Bind) -> None:
        server = await start("fyrehose.subscriber_seconds=0.3")
        loop = asyncio.get_running_loop()
        peer = bind(server)
        begun, count = loop.time(), 0
        while loop.time() < begun + 0.8:
            await peer.subscribe()
            count += 1
            peer.send(push(b"%d" % count))
            assert await peer.delivers(count, count) == [b"%d" % count]
        assert (counted(server, "subscribed"), counted(server, "lapsed")) == (1, 0)

    async def test_only_keepalive_renews(self, start: Start, bind: Bind) -> None:
        server = await start("fyrehose.subscriber_seconds=0.3")
        peer = bind(server)
        await peer.subscribe()
        while not counted(server, "lapsed"):
            peer.send(push(b"x"))
            peer.send(request(1, 1))
            await asyncio.sleep(0.005)
        assert server.hub.log.head > 5

    async def test_no_more_subscribers_of_one_address_than_the_limit(self, start: Start, bind: Bind) -> None:
        server = await start("limits.connections_per_address=2")
        peers = [bind(server) for _ in range(3)]
        for peer in peers:
            await peer.subscribe()
        assert subscribers(server) == 2
        assert refused(server, "table-full") == 1
        elsewhere = bind(server, address="127.0.0.2")
        await elsewhere.subscribe()
        assert subscribers(server) == 3

    async def test_with_auth_required_only_allowed_addresses_are_served(
        self, start: Start, bind: Bind
    ) -> None:
        server = await start("auth.required=true", 'fyrehose.allow=["127.0.0.2"]')
        allowed, other = bind(server, address="127.0.0.2"), bind(server)
        for datagram in (keepalive(), push(b"no"), request(1, 1), b"\xff"):
            other.send(datagram)
            await until(lambda: refused(server, "not-allowed"))
        await allowed.subscribe()
        allowed.send(push(b"yes"))
        assert await allowed.delivers(1, 1) == [b"yes"]
        await until(lambda: refused(server, "not-allowed") == 4)
        with pytest.raises(BlockingIOError):
            other.sock.recv(100)


class TestDeliver:
    async def test_one_packet_a_datagram(self, server: Server, bind: Bind, dial: Dial) -> None:
        peer, publisher = bind(server), await dial(server)
        await peer.subscribe()
        payloads = [b"%d" % number * (number % 4) for number in range(200)]
        await publisher.send(b"".join(map(push, payloads)))
        assert await peer.delivers(1, 200) == payloads

    async def test_tcp_and_udp_see_the_same_sequence(self, server: Server, bind: Bind, dial: Dial) -> None:
        subscriber, stream = bind(server), await dial(server)
        await subscriber.subscribe()
        await stream.subscribe()
        for number in range(1, 300):
            if number % 2:
                await stream.send(push(b"%d" % number))
            else:
                subscriber.send(push(b"%d" % number))
            assert await stream.deliver() == (number, b"%d" % number)
            assert await subscriber.delivers(number, number) == [b"%d" % number]

    async def test_more_than_a_burst_is_paced_and_comes_whole(
        self, server: Server, bind: Bind, dial: Dial
    ) -> None:
        # The first 256 datagrams go at once, the others as time allows: nobody has to send anything for that.
        peer, publisher = bind(server), await dial(server)
        await peer.subscribe()
        await publisher.send(b"".join(push(b"%05d" % number) for number in range(5000)))
        assert await peer.delivers(1, 5000) == [b"%05d" % number for number in range(5000)]
        assert server.hub.counters.get("skipped", door="fyrehose") == 0

    async def test_one_by_one_where_the_system_takes_no_segments(
        self, start: Start, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fyrehose_udp, "enable_segments", lambda _sock: False)
        server = await start()
        peer = bind(server)
        await peer.subscribe()
        await filled(server, 600)
        assert await peer.delivers(1, 600) == [b"%d" % seq for seq in range(1, 601)]

    async def test_where_a_route_takes_no_segments_they_go_one_by_one_from_then_on(
        self, server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        udp, peer = door(server), bind(server)
        if not udp._segments:
            return
        await peer.subscribe()
        plainly, calls = udp._send, []

        def send(data: memoryview, size: int, to: tuple[str, int]) -> None:
            calls.append(len(data) > size)
            if len(data) > size:
                raise OSError(errno.EINVAL, "no segments")
            plainly(data, size, to)

        monkeypatch.setattr(udp, "_send", send)
        await filled(server, 500)
        assert await peer.delivers(1, 500) == [b"%d" % seq for seq in range(1, 501)]
        assert calls.count(True) == 1
        assert server.hub.counters.get("segmentation_off", error="EINVAL") == 1

    async def test_a_full_socket_is_waited_for(
        self, server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        udp, peer, other = door(server), bind(server), bind(server)
        await peer.subscribe()
        await other.subscribe()
        plainly, random = udp._send, Random(5)

        def send(data: memoryview, size: int, to: tuple[str, int]) -> None:
            if random.random() < 0.5:
                raise BlockingIOError
            plainly(data, size, to)

        monkeypatch.setattr(udp, "_send", send)
        await filled(server, 2000)
        expected = [b"%d" % seq for seq in range(1, 2001)]
        assert await peer.delivers(1, 2000) == expected
        assert await other.delivers(1, 2000) == expected

    async def test_an_error_of_one_destination_is_its_own(
        self, server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        udp, peer, lost = door(server), bind(server), bind(server)
        await lost.subscribe()
        await peer.subscribe()
        plainly = udp._send

        def send(data: memoryview, size: int, to: tuple[str, int]) -> None:
            if to == lost.endpoint:
                raise OSError(errno.ENETUNREACH, "unreachable")
            plainly(data, size, to)

        monkeypatch.setattr(udp, "_send", send)
        peer.send(push(b"one"))
        assert await peer.delivers(1, 1) == [b"one"]
        assert server.hub.counters.get("socket_errors", door="fyrehose", error="ENETUNREACH") == 1

    async def test_a_subscriber_that_is_gone_disturbs_nobody(self, server: Server, bind: Bind) -> None:
        gone, peer = bind(server), bind(server)
        await gone.subscribe()
        await peer.subscribe()
        gone.close()
        for number in range(1, 51):
            peer.send(push(b"%d" % number))
            assert await peer.delivers(number, number) == [b"%d" % number]

    async def test_who_is_too_far_behind_is_skipped_ahead(
        self, start: Start, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await start()
        udp, peer = door(server), bind(server)
        await peer.subscribe()
        stuck = True
        plainly = udp._send

        def send(data: memoryview, size: int, to: tuple[str, int]) -> None:
            if stuck:
                raise BlockingIOError
            plainly(data, size, to)

        monkeypatch.setattr(udp, "_send", send)
        monkeypatch.setattr(udp, "_writable", lambda: None)
        for _ in range(8):
            server.hub.submit(Batch(Run.of([b"x"] * 10_000), origin="fyrehose"))
            await asyncio.sleep(0)
        await until(lambda: server.hub.log.head == 80_000)
        skipped = server.hub.counters.get("skipped", door="fyrehose")
        assert skipped > 0
        stuck = False
        monkeypatch.undo()
        udp._writable()
        seen = []
        while not seen or seen[-1] < 80_000:
            seen += [seq for seq, _ in delivers(await peer.datagram())]
        # What it was granted before, then a hole of just what was counted, and on to the head.
        assert len(seen) + skipped == 80_000
        assert seen == sorted(set(seen))
        peer.send(request(seen[0], seen[0] + 9))
        assert await peer.delivers(seen[0], seen[0] + 9) == [b"x"] * 10


class Flaky:
    """A socket that fails once at each thing it is told to."""

    def __init__(self, sock: socket.socket, *methods: str) -> None:
        self._sock = sock
        self._failing = set(methods)

    def __getattr__(self, name: str) -> object:
        if name in self._failing:
            self._failing.discard(name)
            raise OSError(errno.ECONNREFUSED, "refused")
        return getattr(self._sock, name)


class TestSocket:
    async def test_an_error_of_the_socket_is_counted_and_no_end(
        self, server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Linux reports on a socket what came back for a datagram sent before, to somebody else.
        udp, peer = door(server), bind(server)
        monkeypatch.setattr(udp, "_sock", Flaky(udp._sock, "recvmsg_into", "sendto"))
        peer.send(keepalive())  # its acknowledgement is what fails
        await until(lambda: subscribers(server) == 1)
        assert await peer.fence() == []
        assert server.hub.counters.get("socket_errors", door="fyrehose", error="ECONNREFUSED") == 2
        monkeypatch.undo()


class TestJoined:
    """Datagrams that the kernel joined on their way in (``UDP_GRO``) are judged one by one."""

    @staticmethod
    def told(size: int) -> list[tuple[int, int, bytes]]:
        return [(socket.SOL_UDP, UDP_GRO, struct.pack("=i", size))]

    def test_cut_where_they_were_joined(self) -> None:
        buffer = bytearray(b"aaabbbcc-what an earlier read left")
        assert fyrehose_udp._cut(buffer, 8, self.told(3)) == [b"aaa", b"bbb", b"cc"]
        assert fyrehose_udp._cut(buffer, 6, self.told(3)) == [b"aaa", b"bbb"]
        assert fyrehose_udp._cut(buffer, 3, []) == [b"aaa"]
        assert fyrehose_udp._cut(buffer, 0, []) == [b""]

    async def test_a_bad_one_takes_no_other_with_it(
        self, server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        udp, peer = door(server), bind(server)
        if not udp._segments:
            pytest.fail("this kernel joins no datagrams: nothing was tried")
        packets = [push(b"1"), b"\xff___", push(b"2"), push(b"3")]
        option = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", 4))]
        peer.sock.sendmsg([b"".join(packets)], option, 0, address_of(server))
        await until(lambda: server.hub.log.head == 3)
        assert logged(server) == [b"1", b"2", b"3"]
        assert refused(server, "unknown") + refused(server, "malformed") == 1


class TestCoalescing:
    async def test_toward_a_client_that_does_it_itself(self, server: Server, bind: Bind, dial: Dial) -> None:
        coalescing, plain, publisher = bind(server), bind(server), await dial(server)
        await coalescing.subscribe()
        await plain.subscribe()
        coalescing.send(push(b"a") + push(b"b"))
        # Already the answer to what showed it may be in kind.
        seen = delivers(await coalescing.datagram())
        while len(seen) < 2:
            seen += delivers(await coalescing.datagram())
        assert seen == [(1, b"a"), (2, b"b")]
        assert await plain.delivers(1, 2) == [b"a", b"b"]
        payloads = [b"%d" % number for number in range(3, 1003)]
        await publisher.send(b"".join(map(push, payloads)))
        datagrams, seen = 0, []
        while len(seen) < 1000:
            seen += delivers(await coalescing.datagram())
            datagrams += 1
        assert seen == list(enumerate(payloads, 3))
        assert datagrams < 100
        assert await plain.delivers(3, 1002) == payloads

    async def test_shown_before_it_subscribed(self, server: Server, bind: Bind) -> None:
        peer = bind(server)
        peer.send(push(b"a") + push(b"b"))
        await until(lambda: server.hub.log.head == 2)
        await peer.subscribe()
        await filled(server, 4)
        assert delivers(await peer.datagram()) == [(3, b"1"), (4, b"2"), (5, b"3"), (6, b"4")]

    async def test_one_push_does_not_show_it(self, server: Server, bind: Bind) -> None:
        peer = bind(server)
        await peer.subscribe()
        for _ in range(3):
            peer.send(push(b"x"))
        assert await peer.delivers(1, 3) == [b"x", b"x", b"x"]

    async def test_by_configuration(self, start: Start, bind: Bind) -> None:
        server = await start("fyrehose.coalesce=true")
        peer = bind(server)
        await peer.subscribe()
        await filled(server, 3)
        assert delivers(await peer.datagram()) == [(1, b"1"), (2, b"2"), (3, b"3")]

    async def test_no_datagram_is_longer_than_one_can_be(self, server: Server, bind: Bind) -> None:
        peer = bind(server)
        peer.send(push(b"") + push(b""))
        await until(lambda: server.hub.log.head == 2)
        await peer.subscribe()
        sizes = [40_000, 25_000, 500, 65_498, 1, 32_744, 32_745, 0, 65_498]
        payloads = [bytes([index]) * size for index, size in enumerate(sizes)]
        server.hub.submit(Batch(Run.of(payloads), origin="fyrehose"))
        seen: list[tuple[int, bytes]] = []
        while len(seen) < len(sizes):
            seen += delivers(await peer.datagram())
        same = seen == list(enumerate(payloads, 3))
        assert same


class TestRequest:
    async def test_a_range_both_ends_included(self, server: Server, bind: Bind) -> None:
        await filled(server, 9)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(3, 7, *peer.endpoint))
        assert await peer.delivers(3, 7) == [b"3", b"4", b"5", b"6", b"7"]
        assert server.hub.counters.get("repaired", door="fyrehose") == 5

    async def test_zeros_mean_the_source(self, server: Server, bind: Bind) -> None:
        await filled(server, 2)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(1, 2))
        assert await peer.delivers(1, 2) == [b"1", b"2"]

    async def test_from_0_means_1_and_to_is_cut_to_the_head(self, server: Server, bind: Bind) -> None:
        await filled(server, 3)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(0, MAX_SEQUENCE))
        assert await peer.delivers(1, 3) == [b"1", b"2", b"3"]

    async def test_beyond_the_head_nothing_comes(self, server: Server, bind: Bind) -> None:
        await filled(server, 3)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(4, 9))
        peer.send(request(2, 2))
        assert await peer.delivers(2, 2) == [b"2"]

    async def test_from_past_to_is_refused(self, server: Server, bind: Bind) -> None:
        await filled(server, 9)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(5, 4))
        peer.send(request(0, 0))
        peer.send(request(5, 5))
        assert await peer.delivers(5, 5) == [b"5"]
        assert refused(server, "malformed") == 2

    async def test_at_most_1024_of_the_oldest(self, server: Server, bind: Bind) -> None:
        await filled(server, 1500)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(100, 1500))
        assert await peer.delivers(100, 1123) == [b"%d" % seq for seq in range(100, 1124)]
        peer.send(request(1, 1))
        assert await peer.delivers(1, 1) == [b"1"]
        assert server.hub.counters.get("repaired", door="fyrehose") == 1025

    async def test_the_limit_is_a_setting(self, start: Start, bind: Bind) -> None:
        server = await start("fyrehose.request_limit=3")
        await filled(server, 9)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(1, 9))
        assert await peer.delivers(1, 3) == [b"1", b"2", b"3"]
        peer.send(request(9, 9))
        assert await peer.delivers(9, 9) == [b"9"]

    async def test_only_for_a_current_subscriber(self, start: Start, bind: Bind) -> None:
        server = await start("fyrehose.subscriber_seconds=0.3")
        await filled(server, 3)
        peer = bind(server)
        peer.send(request(1, 3))
        assert await peer.fence() == []
        await peer.subscribe()
        peer.send(request(1, 3))
        await peer.delivers(1, 3)
        await until(lambda: counted(server, "lapsed") == 1)
        peer.send(request(1, 3))
        assert await peer.fence() == []
        assert refused(server, "not-subscribed") == 2

    async def test_toward_another_address_that_is_allowed_and_subscribed(
        self, start: Start, bind: Bind
    ) -> None:
        server = await start('fyrehose.allow=["127.0.0.2"]')
        await filled(server, 3)
        listener, asker = bind(server, address="127.0.0.2"), bind(server)
        asker.send(request(1, 3, *listener.endpoint))
        await until(lambda: refused(server, "not-subscribed") == 1)
        await listener.subscribe()
        asker.send(request(1, 3, *listener.endpoint))
        assert await listener.delivers(1, 3) == [b"1", b"2", b"3"]

    async def test_never_toward_an_address_that_is_not(self, server: Server, bind: Bind) -> None:
        # Even where that address is a subscriber: 19 bytes must not aim a log at anybody.
        await filled(server, 3)
        victim, attacker = bind(server, address="127.0.0.2"), bind(server)
        await victim.subscribe()
        await attacker.subscribe()
        attacker.send(request(1, 3, *victim.endpoint))
        attacker.send(request(1, 3, *STRANGER))
        assert await attacker.fence() == []
        assert await victim.fence() == []
        assert refused(server, "foreign-address") == 4  # the two REQUESTs, and a fence each

    async def test_toward_another_port_of_the_same_address_that_is_subscribed(
        self, server: Server, bind: Bind
    ) -> None:
        await filled(server, 3)
        control, data = bind(server), bind(server)
        await control.subscribe(*data.endpoint)
        control.send(request(1, 3, *data.endpoint))
        assert await data.delivers(1, 3) == [b"1", b"2", b"3"]
        assert await control.fence() == []

    async def test_over_sealed_segments_and_many_batches(self, start: Start, bind: Bind) -> None:
        server = await start("log.segment_bytes=1")
        for _ in range(30):
            server.hub.submit(Batch(Run.of([b"a", b"b"]), origin="fyrehose"))
            server.hub.turn(0)
        await server.maintenance.seal()
        await filled(server, 10)
        peer = bind(server)
        await peer.subscribe()
        peer.send(request(1, 70))
        assert await peer.delivers(1, 60) == [b"a", b"b"] * 30
        assert await peer.delivers(61, 70) == [b"%d" % seq for seq in range(1, 11)]

    async def test_what_the_log_cannot_give_is_counted_and_the_rest_goes_on(
        self, server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await filled(server, 3)
        peer = bind(server)
        await peer.subscribe()

        def damaged(*_: object) -> list[Batch]:
            raise DamagedError("0001.arrow", 7, 1, 3, "torn")

        with monkeypatch.context() as patch:
            patch.setattr(server.hub.log, "read", damaged)
            peer.send(request(1, 3))
            await until(lambda: server.hub.counters.get("undeliverable", door="fyrehose") == 3)
        peer.send(push(b"four"))
        assert await peer.delivers(4, 4) == [b"four"]


class TestForward:
    async def trimmed(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> Server:
        """A hub whose log holds messages 6 to 8."""
        monkeypatch.setattr(maintenance, "_PAUSE", 0.01)
        server = await start("log.retain_bytes=1", "log.segment_seconds=600")
        await filled(server, 5)
        await server.maintenance.seal()
        await until(lambda: server.hub.log.first == 6)
        server.hub.submit(Batch(Run.of([b"6", b"7", b"8"]), origin="fyrehose"))
        await until(lambda: server.hub.log.head == 8)
        return server

    async def test_what_is_below_the_log_goes_to_another_subscriber(
        self, start: Start, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await self.trimmed(start, monkeypatch)
        peer, other = bind(server), bind(server)
        await peer.subscribe()
        await other.subscribe()
        peer.send(request(2, 7))
        assert await other.datagram() == forward(2, 5, *peer.endpoint)
        assert await peer.delivers(6, 7) == [b"6", b"7"]
        assert await other.fence() == []
        assert server.hub.counters.get("forwards", door="fyrehose") == 1

    async def test_each_in_turn_and_never_the_one_who_asks(
        self, start: Start, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await self.trimmed(start, monkeypatch)
        peer, *others = (bind(server) for _ in range(4))
        for each in (peer, *others):
            await each.subscribe()
        for _ in range(4):
            for _ in others:
                peer.send(request(1, 3))
            assert await peer.fence() == []
            for other in others:
                assert await other.fence() == [forward(1, 3, *peer.endpoint)]

    async def test_to_where_the_one_who_asks_listens(
        self, start: Start, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await self.trimmed(start, monkeypatch)
        control, data, other = bind(server), bind(server), bind(server)
        await control.subscribe(*data.endpoint)
        await other.subscribe()
        control.send(request(1, 1, *data.endpoint))
        assert await other.datagram() == forward(1, 1, *data.endpoint)

    async def test_not_to_subscribers_on_tcp(
        self, start: Start, bind: Bind, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await self.trimmed(start, monkeypatch)
        stream, peer = await dial(server), bind(server)
        await stream.subscribe()
        await peer.subscribe()
        peer.send(request(1, 3))
        assert await peer.fence() == []
        assert server.hub.counters.get("unavailable", door="fyrehose") == 3
        await stream.send(push(b"nine"))
        assert await stream.deliver() == (9, b"nine")

    async def test_a_flood_of_requests_is_not_passed_on_without_end(
        self, start: Start, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await self.trimmed(start, monkeypatch)
        peer, other = bind(server), bind(server)
        await peer.subscribe()
        await other.subscribe()
        for _ in range(500):
            peer.send(request(1, 3))
        await peer.fence()
        assert len(await other.fence()) < 100
        assert refused(server, "too-many-forwards") > 400


class TestHollow:
    async def test_what_no_datagram_can_carry_comes_empty(
        self, server: Server, bind: Bind, dial: Dial
    ) -> None:
        peer, stream = bind(server), await dial(server)
        await peer.subscribe()
        await stream.subscribe()
        sizes = [65_497, 65_498, 65_499, 65_504, 65_505, 65_526]
        payloads = [bytes([size % 251]) * size for size in sizes]
        await stream.send(b"".join(map(push, payloads)))
        seen = await peer.delivers(1, 6)
        assert [len(payload) for payload in seen] == [65_497, 65_498, 0, 0, 0, 0]
        same = seen[:2] == payloads[:2] and await stream.delivers(1, 6) == payloads
        assert same
        assert counted(server, "hollow") == 4

    async def test_again_in_a_repair(self, server: Server, bind: Bind, dial: Dial) -> None:
        peer, stream = bind(server), await dial(server)
        await stream.send(push(bytes(65_499)) + push(b"small"))
        await until(lambda: server.hub.log.head == 2)
        await peer.subscribe()
        peer.send(request(1, 2))
        assert await peer.delivers(1, 2) == [b"", b"small"]

    async def test_entries_are_not_delivered(self, server: Server, bind: Bind) -> None:
        peer = bind(server)
        await peer.subscribe()
        for number in range(1, 4):
            server.hub.submit(entry("hold", "job", hold(number)))
            await until(lambda number=number: server.hub.state.holds == {"job": number})
            peer.send(push(b"%d" % number))
        assert await peer.delivers(1, 3) == [b"1", b"2", b"3"]
        peer.send(request(1, 3))
        assert await peer.delivers(1, 3) == [b"1", b"2", b"3"]


class TestRefusal:
    @pytest.mark.parametrize(
        ("datagram", "reason"),
        [
            (b"", "malformed"),
            (deliver(1, b"x"), "unexpected"),
            (forward(1, 2, *STRANGER), "unexpected"),
            (ack(), "unexpected"),
            (b"\x00", "malformed"),
            (b"\x40" * 7, "unexpected"),
            (push(b"cut")[:-1], "malformed"),
            (b"\x02\x00", "malformed"),
            (keepalive()[:-1], "malformed"),
            (keepalive() + b"\x00", "malformed"),
            (keepalive() + push(b"x"), "malformed"),
            (push(b"x") + keepalive(), "malformed"),
            (push(b"x") + push(b"y")[:-1], "malformed"),
            (push(b"x") + deliver(1, b""), "unexpected"),
            (request(1, 2)[:-1], "malformed"),
            (request(1, 2) + request(1, 2), "malformed"),
            (request(2, 1), "malformed"),
            (b"\x02\xff\xf7" + bytes(100), "limit"),
        ],
    )
    async def test_a_bad_datagram_is_dropped_whole(
        self, server: Server, bind: Bind, datagram: bytes, reason: str
    ) -> None:
        peer = bind(server)
        peer.send(datagram)
        assert await peer.fence() == []
        assert refused(server, reason) == 1
        assert server.hub.log.head == 0
        assert subscribers(server) == 0

    async def test_it_disturbs_nobody_and_not_even_its_sender(self, server: Server, bind: Bind) -> None:
        subscriber, peer = bind(server), bind(server)
        await subscriber.subscribe()
        bad = [b"", b"\xff", deliver(9, b"x"), keepalive()[:3], push(b"xyz")[:-1], request(9, 1)]
        # Side by side in one read, so that bad and good ones are judged together.
        for number in range(300):
            peer.send(bad[number % len(bad)])
            peer.send(push(b"%d" % number))
        assert await subscriber.delivers(1, 300) == [b"%d" % number for number in range(300)]
        assert sum(refused(server, reason) for reason in ("malformed", "unexpected")) == 300


class TestKept:
    """What the driver keeps encoded for subscribers that pacing holds back (:mod:`tests.hub.test_cursor`)."""

    async def test_nothing_when_nobody_is_subscribed(self, start: Start, bind: Bind) -> None:
        server = await start("fyrehose.subscriber_seconds=0.2")
        peer = bind(server)
        await peer.subscribe()
        await filled(server, 3)
        assert door(server)._cache.find(3) is not None
        await until(lambda: counted(server, "lapsed") == 1)
        await filled(server, 6)
        assert door(server)._cache.find(6) is None


class TestCalls:
    """How packets are cut into system calls."""

    def cut(
        self,
        sizes: list[int],
        *,
        datagrams: int = 256,
        size: int = 1 << 20,
        most: int = 0,
        segments: bool = True,
    ) -> list[tuple[int, int, int]]:
        edges = np.cumsum([0, *sizes])
        packets = Packets(1, len(sizes), memoryview(bytes(int(edges[-1]))), edges)
        grant = SendRange(("10.0.0.1", 1), 1, len(sizes), True, bool(most), datagrams, size)
        calls = fyrehose_udp._calls(packets, 0, len(sizes), grant, most, segments=segments)
        return [(len(data), each, last) for data, each, last in calls]

    def test_neighbours_of_one_size_share_a_call(self) -> None:
        assert self.cut([20, 20, 20, 30, 20]) == [(60, 20, 3), (30, 30, 4), (20, 20, 5)]

    def test_one_by_one_without_segments(self) -> None:
        assert self.cut([20, 20, 30], segments=False) == [(20, 20, 1), (20, 20, 2), (30, 30, 3)]

    def test_no_more_segments_than_the_kernel_takes(self) -> None:
        assert [each for each, _, _ in self.cut([10] * 150)] == [640, 640, 220]
        assert [each for each, _, _ in self.cut([30_000] * 3)] == [60_000, 30_000]

    def test_no_more_datagrams_than_granted(self) -> None:
        assert self.cut([10] * 150, datagrams=70) == [(640, 10, 64), (60, 10, 70)]

    def test_at_least_one_datagram_whatever_it_weighs(self) -> None:
        assert self.cut([60_000, 60_000], size=1) == [(60_000, 60_000, 1)]

    def test_coalesced_up_to_a_datagram(self) -> None:
        assert self.cut([20, 30, 40, 50], most=95) == [(90, 90, 3), (50, 50, 4)]
        assert self.cut([200, 30], most=95) == [(200, 200, 1), (30, 30, 2)]

    def test_a_call_taken_apart(self) -> None:
        data = memoryview(bytes(range(70)))
        assert [(bytes(part), size, last) for part, size, last in fyrehose_udp._singly(data, 35, 9)] == [
            (bytes(range(35)), 35, 8),
            (bytes(range(35, 70)), 35, 9),
        ]

    def test_a_read_of_several_datagrams(self) -> None:
        joined = bytearray(b"aaabbbcc")
        mark = [(socket.SOL_UDP, 104, (3).to_bytes(4, "little"))]
        assert fyrehose_udp._cut(joined, 8, mark) == [b"aaa", b"bbb", b"cc"]
        assert fyrehose_udp._cut(joined, 8, []) == [b"aaabbbcc"]
        assert fyrehose_udp._cut(joined, 0, []) == [b""]


class TestClosing:
    async def test_what_is_committed_behind_the_close_goes_nowhere(self, server: Server, bind: Bind) -> None:
        peer = bind(server)
        await peer.subscribe()
        udp = door(server)
        udp.close()
        udp.close()
        await filled(server, 3)
        assert server.hub.counters.get("socket_errors", door="fyrehose", error="EBADF") == 0

    async def test_a_read_that_ends_behind_the_close_is_dropped(
        self, server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await filled(server, 3)
        peer = bind(server)
        await peer.subscribe()
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def damaged(*_: object) -> list[Batch]:
            loop.call_soon_threadsafe(begun.set)
            raise DamagedError("0001.arrow", 7, 1, 3, "torn")

        with monkeypatch.context() as patch:
            patch.setattr(Log, "read", damaged)
            peer.send(request(1, 3))
            async with asyncio.timeout(SECONDS):
                await begun.wait()
            door(server).close()
            await asyncio.sleep(0.01)


class TestProof:
    """As if this machine's addresses were not its loopback: then whoever subscribes must show that it receives."""

    @pytest.fixture
    async def distant(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> Server:
        monkeypatch.setattr(fyrehose_door, "_LOOPBACK", IPv4Network("192.0.2.0/24"))
        return await start('fyrehose.allow=["127.0.0.9"]')

    async def test_messages_come_once_the_challenge_is_answered(self, distant: Server, bind: Bind) -> None:
        peer = bind(distant)
        await peer.subscribe()
        challenge = await peer.datagram()
        assert (challenge[:1], len(challenge)) == (b"\x40", 9)
        peer.send(push(b"one"))
        peer.send(request(1, 1))
        await until(lambda: refused(distant, "unproven") == 1)
        assert await peer.fence() == []
        peer.send(b"\x80" + challenge[1:])
        assert await peer.delivers(1, 1) == [b"one"]
        await peer.subscribe()
        assert await peer.fence() == []

    async def test_the_challenge_goes_to_the_address_that_is_stated(
        self, distant: Server, bind: Bind
    ) -> None:
        listener, control = bind(distant), bind(distant)
        await control.subscribe(*listener.sock.getsockname())
        cookie = (await listener.datagram())[1:]
        control.send(b"\x80" + bytes(8))
        await until(lambda: refused(distant, "unproven") == 1)
        control.send(b"\x80" + cookie)
        control.send(push(b"one"))
        assert await listener.delivers(1, 1) == [b"one"]

    async def test_an_allowed_address_need_not_prove_anything(self, distant: Server, bind: Bind) -> None:
        peer = bind(distant, address="127.0.0.9")
        await peer.subscribe()
        peer.send(push(b"one"))
        assert await peer.delivers(1, 1) == [b"one"]

    async def test_our_client_answers(self, distant: Server) -> None:
        host, port = address_of(distant)
        async with headrace.connect(f"fyrehose+udp://{host}:{port}") as client, asyncio.timeout(SECONDS):
            await client.publish([b"one", b"two"])
            assert [(await anext(client)).payload for _ in range(2)] == [b"one", b"two"]
        assert distant.hub.counters.get("challenges", door="fyrehose") >= 1


async def test_a_turn_brings_only_so_many_bytes(
    server: Server, bind: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.warm()
    monkeypatch.setattr(fyrehose_udp, "_BYTES_PER_TURN", 6000)
    peers = [bind(server), bind(server)]
    for number in range(16):
        peers[number % 2].sock.sendto(push(b"") * 1000, address_of(server))
    heads = [server.hub.log.head]
    async with asyncio.timeout(SECONDS):
        while heads[-1] < 16_000:
            await asyncio.sleep(0)
            heads.append(server.hub.log.head)
    assert max(after - before for before, after in pairwise(heads)) <= 4000
