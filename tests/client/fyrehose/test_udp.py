"""How datagrams are cut from what one read brings, and joined for one write."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.hubs import UdpHub
from tests.net.raw import ack, deliver, forward, push, until

from headrace.client.fyrehose.connection import FyrehoseTransport
from headrace.client.fyrehose.udp import FyrehoseUdp, _joined
from headrace.client.udp_offload import enlarge, segment_size
from headrace.config import Address
from headrace.errors import WireError
from headrace.message import Run
from headrace.wire.fyrehose.stream import DeliverRun, Forward, Keepalive


class Diary:
    """Writes down what a link brings."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes, bool]] = []
        self.runs = 0
        self.acks = 0
        self.forwards: list[tuple[int, int, bool]] = []
        self.errors: list[WireError] = []
        self.failed = 0

    def delivered(self, run: DeliverRun, *, from_backbone: bool) -> None:
        self.runs += 1
        self.messages += [
            (seq, data, from_backbone) for seq, data in zip(run.seqs.tolist(), run.run, strict=True)
        ]

    def acknowledged(self) -> None:
        self.acks += 1

    def forward(self, frame: Forward, *, from_backbone: bool) -> None:
        self.forwards.append((frame.first, frame.last, from_backbone))

    def refused(self, error: WireError) -> None:
        self.errors.append(error)

    def unsent(self, datagrams: int) -> None:
        self.failed += datagrams

    def lost(self, link: FyrehoseTransport, reason: str) -> None:
        raise AssertionError(reason)


@pytest.fixture
def hub() -> Iterator[UdpHub]:
    with UdpHub() as hub:
        yield hub


async def reading(hub: UdpHub, *datagrams: bytes, stranger: UdpHub | None = None) -> Diary:
    """What a link makes of datagrams that come together, followed by two messages of the hub."""
    diary = Diary()
    link = await FyrehoseUdp.dial(Address(*hub.endpoint), diary)
    try:
        to = ("127.0.0.1", link._sock.getsockname()[1])
        for datagram in datagrams:
            (stranger or hub).send(datagram, to)
        hub.send(deliver(98, b"98"), to)
        hub.send(deliver(99, b"99"), to)
        await until(lambda: diary.messages[-1:] == [(99, b"99", True)])
    finally:
        link.abort()
        link.abort()
    assert diary.messages[-2:] == [(98, b"98", True), (99, b"99", True)]
    del diary.messages[-2:]
    return diary


class TestReading:
    async def test_side_by_side_they_make_one_run(self, hub: UdpHub) -> None:
        diary = await reading(hub, *(deliver(seq, b"x" * seq) for seq in range(1, 40)))
        assert diary.messages == [(seq, b"x" * seq, True) for seq in range(1, 40)]
        assert diary.runs == 1

    async def test_several_in_a_datagram(self, hub: UdpHub) -> None:
        diary = await reading(hub, deliver(1, b"a") + deliver(2, b""), deliver(3, b"c"))
        assert diary.messages == [(1, b"a", True), (2, b"", True), (3, b"c", True)]
        assert diary.errors == []

    async def test_an_acknowledgement_among_them(self, hub: UdpHub) -> None:
        diary = await reading(hub, ack(), deliver(1, b"a"), ack(), ack(), deliver(2, b"b"), ack())
        assert (diary.acks, diary.messages) == (4, [(1, b"a", True), (2, b"b", True)])
        assert diary.errors == []

    async def test_a_forward_among_them(self, hub: UdpHub) -> None:
        diary = await reading(hub, deliver(1, b"a"), forward(3, 4, "10.0.0.9", 9), deliver(2, b"b"))
        assert (diary.forwards, diary.messages) == ([(3, 4, True)], [(1, b"a", True), (2, b"b", True)])

    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"\x01", id="cut in the header"),
            pytest.param(deliver(5, b"longer")[:-1], id="cut"),
            pytest.param(deliver(5, b"a") + ack(), id="an acknowledgement behind a message"),
            pytest.param(ack() + deliver(5, b"a"), id="a message behind an acknowledgement"),
            pytest.param(deliver(5, b"a") + b"\x01", id="something behind a message"),
            pytest.param(b"\x01\x00\x09" + bytes(5) + b"\x05", id="would go on in the next datagram"),
            pytest.param(deliver(0, b"a"), id="number 0"),
            pytest.param(push(b"a"), id="not for a client"),
            pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="not fyrehose"),
        ],
    )
    async def test_one_that_is_refused_disturbs_no_other(self, hub: UdpHub, bad: bytes) -> None:
        diary = await reading(hub, deliver(1, b"a"), bad, deliver(2, b"b"))
        assert diary.messages == [(1, b"a", True), (2, b"b", True)]
        assert len(diary.errors) == 1

    async def test_strangers_are_told_apart(self, hub: UdpHub) -> None:
        with UdpHub() as stranger:
            datagrams = (deliver(1, b"a"), ack(), forward(3, 4, "10.0.0.9", 9))
            diary = await reading(hub, *datagrams, stranger=stranger)
        assert diary.messages == [(1, b"a", False)]
        assert diary.acks == 0
        assert diary.forwards == [(3, 4, False)]

    async def test_the_longest_datagrams(self, hub: UdpHub) -> None:
        datagrams = [deliver(seq, bytes(65_498)) for seq in range(1, 31)]
        diary = await reading(hub, *datagrams)
        assert [seq for seq, _, _ in diary.messages] == list(range(1, 31))


class TestWriting:
    async def test_pushes_are_joined_where_they_fit(self, hub: UdpHub) -> None:
        link = await FyrehoseUdp.dial(Address(*hub.endpoint), Diary())
        try:
            payloads = [bytes([number]) * 30_000 for number in range(5)]
            await link.push(Run.of(payloads))
            got = [(await hub.receive())[0] for _ in range(3)]
        finally:
            link.abort()
        assert got == [
            push(payloads[0]) + push(payloads[1]),
            push(payloads[2]) + push(payloads[3]),
            push(payloads[4]),
        ]

    async def test_nothing_is_sent_once_it_is_closed(self, hub: UdpHub) -> None:
        diary = Diary()
        link = await FyrehoseUdp.dial(Address(*hub.endpoint), diary)
        await link.close(0.0)
        await link.push(Run.of([b"a", b"b"]))
        link.send([Keepalive("0.0.0.0", 0)])
        assert diary.failed == 0

    async def test_a_full_socket_is_waited_for(self, hub: UdpHub) -> None:
        link = await FyrehoseUdp.dial(Address(*hub.endpoint), Diary())
        full = Narrow(link._sock, refusals=5)
        link._sock = full  # type: ignore[assignment]
        try:
            await asyncio.gather(*(link.push(Run.of([payload])) for payload in (b"a", b"b", b"c")))
            assert full.refusals == 0
            assert {(await hub.receive())[0] for _ in range(3)} == {push(b"a"), push(b"b"), push(b"c")}
        finally:
            link.abort()

    async def test_and_no_longer_once_it_is_closed(self, hub: UdpHub) -> None:
        link = await FyrehoseUdp.dial(Address(*hub.endpoint), Diary())
        link._sock = Narrow(link._sock, refusals=1 << 30)  # type: ignore[assignment]
        pushing = asyncio.create_task(link.push(Run.of([b"a"])))
        await asyncio.sleep(0)
        link.abort()
        await pushing

    async def test_what_the_system_refuses_is_counted(self) -> None:
        diary = Diary()
        link = await FyrehoseUdp.dial(Address("127.0.0.1", 0), diary)
        try:
            await link.push(Run.of([b"a"]))
            link.send([Keepalive("0.0.0.0", 0)])
        finally:
            link.abort()
        assert diary.failed == 2


class Narrow:
    """A socket that has no room the first times."""

    def __init__(self, sock: socket.socket, refusals: int) -> None:
        self._sock = sock
        self.refusals = refusals

    def sendto(self, data: bytes, to: tuple[str, int]) -> int:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError
        return self._sock.sendto(data, to)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


@given(lengths=st.lists(st.integers(0, 2000), max_size=60), largest=st.integers(1, 3000))
def test_datagrams_hold_what_fits_and_all_there_is(lengths: list[int], largest: int) -> None:
    run = Run.of([b"", *(bytes(length) for length in lengths)]).slice(1, len(lengths) + 1)
    parts = list(_joined(run, largest))
    sizes = [3 + length for length in lengths]
    assert sum(end - begin for begin, end in parts) == sum(sizes)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    packets = iter(sizes)
    for begin, end in parts:
        inside = [next(packets)]
        while sum(inside) < end - begin:
            inside.append(next(packets))
        assert sum(inside) == end - begin
        assert sum(inside) <= largest or len(inside) == 1
    assert next(packets, None) is None


def test_the_size_of_joined_datagrams_is_told_beside_them() -> None:
    assert segment_size(500, []) == 500
    assert segment_size(500, [(socket.SOL_UDP, 104, (100).to_bytes(4, "little"))]) == 100
    assert segment_size(500, [(socket.SOL_UDP, 104, (500).to_bytes(4, "little"))]) == 500
    assert segment_size(500, [(socket.SOL_SOCKET, 104, (100).to_bytes(4, "little"))]) == 500


def test_a_buffer_is_made_as_large_as_may_be() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        enlarge(sock, socket.SO_RCVBUF, 4 << 20)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= before


async def test_there_is_no_such_host() -> None:
    with pytest.raises(OSError):
        await FyrehoseUdp.dial(Address("nowhere.invalid", 1), Diary())
    await asyncio.sleep(0)


class TestChallenge:
    async def test_the_hubs_is_answered_and_nobody_elses(self, hub: UdpHub) -> None:
        with UdpHub() as stranger:
            link = await FyrehoseUdp.dial(Address(*hub.endpoint), Diary())
            try:
                to = ("127.0.0.1", link._sock.getsockname()[1])
                stranger.send(b"\x40strange.", to)
                hub.send(b"\x40cookie!!", to)
                assert (await hub.receive())[0] == b"\x80cookie!!"
            finally:
                link.abort()


class TestWarning:
    """A hub that acknowledges and sends nothing may be sending elsewhere: behind an address translator, say."""

    @pytest.mark.parametrize(
        ("hub", "translated", "came", "warns"),
        [
            ("192.0.2.1", False, [], True),
            ("192.0.2.1", True, [], False),
            ("127.0.0.1", False, [], False),
            ("192.0.2.1", False, [deliver(1, b"x")], False),
            ("192.0.2.1", False, [b"\x40cookie!!"], False),
        ],
        ids=["distant", "told so", "on this machine", "served", "challenged"],
    )
    async def test_it_is_said_once(
        self, hub: str, translated: bool, came: list[bytes], warns: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        link = FyrehoseUdp(sock, (hub, 2323), Diary(), translated=translated)
        try:
            for datagram in (*came, *[ack("192.168.0.7", 9)] * 100):
                link._view[: len(datagram)] = datagram
                link._received([0, len(datagram)], (hub, 2323))
        finally:
            link.abort()
        said = [record.message for record in caplog.records if record.name == "headrace.client"]
        assert len(said) == warns
        assert all("translated=True" in each for each in said)
