from __future__ import annotations

import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import Golden, check_golden, cut, read, read_bytewise, read_whole

from headrace.errors import LimitError, MalformedError, UnexpectedError, WireError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire import fyrehose, kernels
from headrace.wire.fyrehose import (
    MAX_DATA,
    MAX_DATAGRAM,
    MAX_DELIVER_DATAGRAM,
    MAX_PACKET,
    MAX_PUSH_DATAGRAM,
    BadDatagram,
    ClientDecoder,
    Deliver,
    DeliverRun,
    Forward,
    Frame,
    Keepalive,
    KeepaliveAck,
    LoneDatagram,
    Push,
    PushDatagrams,
    PushRun,
    Request,
    ServerDecoder,
    Type,
    deliver_packets,
    deliver_run,
    parse,
    parse_client_datagram,
    parse_datagram,
    parse_datagrams,
    push_run,
    serialize,
)

EXAMPLE = Golden(
    "KEEPALIVE as the document's example has it", Keepalive("127.0.0.1", 2323), "02 7f000001 0913"
)
"""On a datagram only; we write 0x10."""

FROM_ZERO = Golden(
    "REQUEST from 0", Request("127.0.0.1", 2323, 1, 9), "04 7f000001 0913 000000000000 000000000009"
)
"""0 is read as 1."""

PUSHES = Golden("PUSH twice in a datagram", [Push(b"hi"), Push(b"")], "02 0002 6869 02 0000")

WRITTEN = [
    Golden("PUSH hello", Push(b"hello"), "02 0005 68656c6c6f"),
    Golden("PUSH of nothing", Push(b""), "02 0000"),
    Golden("DELIVER hello", Deliver(7, b"hello"), "01 0005 000000000007 68656c6c6f"),
    Golden("DELIVER hollow", Deliver(8, b""), "01 0000 000000000008"),
    Golden("DELIVER of the last number", Deliver(MAX_SEQUENCE, b"!"), "01 0001 ffffffffffff 21"),
    Golden("REQUEST 7 to 9", Request("127.0.0.1", 2323, 7, 9), "04 7f000001 0913 000000000007 000000000009"),
    Golden(
        "FORWARD 7 to 9", Forward("192.0.2.10", 40000, 7, 9), "08 c000020a 9c40 000000000007 000000000009"
    ),
    Golden("KEEPALIVE", Keepalive("127.0.0.1", 2323), "10 7f000001 0913"),
    Golden("KEEPALIVE from wherever it comes", Keepalive("0.0.0.0", 0), "10 00000000 0000"),
    Golden("KEEPALIVE-ACK", KeepaliveAck("127.0.0.1", 2323), "20 7f000001 0913"),
]

GOLDEN: list[Golden] = [*WRITTEN, EXAMPLE, FROM_ZERO, PUSHES]

PACKETS = [*WRITTEN, FROM_ZERO]

HUB = (Push, Request, Keepalive)
CLIENT = (Deliver, Forward, KeepaliveAck)
CLIENT_STREAM = (Deliver, KeepaliveAck)


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_compiled() -> None:
    kernels.warm()


def by_name(goldens: Iterable[Golden]) -> Any:
    return pytest.mark.parametrize("golden", list(goldens), ids=lambda golden: golden.name)


def as_streamed(frame: Frame) -> Any:
    """The frame a stream decoder makes of a packet on its own."""
    match frame:
        case Push(data):
            return PushRun(Run.of([data]))
        case Deliver(seq, data):
            return DeliverRun(np.array([seq]), Run.of([data]))
        case _:
            return frame


def flat(frames: Iterable[Any]) -> list[Any]:
    """Frames with their runs taken apart."""
    single: list[Any] = []
    for frame in frames:
        match frame:
            case PushRun(run):
                single += map(Push, run)
            case DeliverRun(seqs, run):
                single += map(Deliver, seqs.tolist(), run)
            case _:
                single.append(frame)
    return single


def fed(decoder: Any, chunks: Iterable[bytes]) -> tuple[list[Any], str | None]:
    """The single frames that feeding chunks gives, and the error that ended it."""
    frames: list[Any] = []
    try:
        for chunk in chunks:
            frames.extend(decoder.feed(chunk))
    except WireError as error:
        return flat(frames), str(error)
    return flat(frames), None


def scanned(decoder: Any, chunks: Iterable[bytes]) -> tuple[list[Any], str | None]:
    """The same by scanning a receive buffer, whose unconsumed bytes are moved to its front."""
    frames: list[Any] = []
    buffer = np.zeros(1 << 18, np.uint8)
    filled = 0
    for chunk in chunks:
        buffer[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
        found, consumed, error = decoder.scan(buffer, 0, filled)
        frames += found
        if error is not None:
            return flat(frames), str(error)
        buffer[: filled - consumed] = buffer[consumed:filled].copy()
        filled -= consumed
        buffer[filled:] = 0xEE
    return flat(frames), None


def plainly(wire: bytes, types: Iterable[int]) -> tuple[list[Frame], int | None]:
    """The single frames of a stream, and where it is refused: packet by packet, as the protocol says it."""
    frames: list[Frame] = []
    at = 0
    while at < len(wire):
        if wire[at] not in types:
            return frames, at
        size = {1: 9, 2: 3, 4: 19, 8: 19, 16: 7, 32: 7}[wire[at]]
        if wire[at] in (1, 2):
            if len(wire) - at < 3:
                break
            length = int.from_bytes(wire[at + 1 : at + 3])
            if length > 65526:
                return frames, at
            size += length
        if len(wire) - at < size:
            break
        try:
            frames.append(parse(wire[at : at + size]))
        except WireError:
            return frames, at
        at += size
    return frames, None


numbers = st.integers(1, MAX_SEQUENCE) | st.integers(1, 300)
payloads = st.binary(max_size=24) | st.integers(250, 2000).map(lambda size: bytes([size % 251]) * size)
ports = st.integers(0, 65535)
addresses = st.ip_addresses(v=4).map(str)
ranges = st.tuples(numbers, numbers).map(sorted)

pushes = st.builds(Push, payloads)
delivers = st.builds(Deliver, numbers, payloads)
requests = st.builds(lambda a, p, r: Request(a, p, *r), addresses, ports, ranges)
forwards = st.builds(lambda a, p, r: Forward(a, p, *r), addresses, ports, ranges)
keepalives = st.builds(Keepalive, addresses, ports)
acks = st.builds(KeepaliveAck, addresses, ports)

hub_frames = pushes | pushes | pushes | requests | keepalives
client_frames = delivers | delivers | delivers | acks
frames = pushes | delivers | requests | forwards | keepalives | acks

wrong = st.sampled_from(
    [
        b"",
        b"\x00",
        b"\x03",
        b"\xff\xff\xff",
        b"\x02\xff\xff",
        b"\x02\xff\xf7",
        b"\x01\xff\xf7",
        b"\x01\xff\xff\x00\x00",
        b"\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x01\x00\x01\x00\x00\x00\x00\x00\x00x",
        bytes.fromhex("04 7f000001 0913 000000000009 000000000007"),
        bytes.fromhex("04 7f000001 0913 000000000000 000000000000"),
    ]
)
ends = wrong | st.binary(max_size=12)
"""What may stand behind good frames in a stream: the beginning of one, or nothing good."""


def streams(of: st.SearchStrategy[Frame]) -> st.SearchStrategy[bytes]:
    """Good packets, perhaps a bad end, perhaps more good packets behind it."""
    good = st.lists(of, max_size=12).map(lambda several: b"".join(map(serialize, several)))
    return st.builds(lambda *parts: b"".join(parts), good, ends, good)


cuts = st.lists(st.integers(0, 100_000), max_size=8)


class TestGolden:
    @by_name(PACKETS)
    def test_reads(self, golden: Golden) -> None:
        assert parse(golden.wire) == golden.frame

    @by_name(WRITTEN)
    def test_writes(self, golden: Golden) -> None:
        assert serialize(golden.frame) == golden.wire

    @by_name(golden for golden in PACKETS if isinstance(golden.frame, HUB))
    @pytest.mark.parametrize("following", [b"\x02", b"\x02\x00\x01", b"\x10\x7f", b"\x04"])
    def test_streams_to_the_hub(self, golden: Golden, following: bytes) -> None:
        check_golden(replace(golden, frame=as_streamed(golden.frame)), ServerDecoder, following)

    @by_name(golden for golden in PACKETS if isinstance(golden.frame, CLIENT_STREAM))
    @pytest.mark.parametrize("following", [b"\x01", b"\x01\x00\x01", b"\x20\x7f"])
    def test_streams_to_a_client(self, golden: Golden, following: bytes) -> None:
        check_golden(replace(golden, frame=as_streamed(golden.frame)), ClientDecoder, following)

    @by_name(golden for golden in PACKETS if not isinstance(golden.frame, HUB))
    def test_hub_refuses_what_only_it_sends(self, golden: Golden) -> None:
        with pytest.raises(UnexpectedError, match="only 0x02 PUSH, 0x04 REQUEST, 0x10 KEEPALIVE"):
            read_whole(ServerDecoder(), golden.wire)
        with pytest.raises(UnexpectedError):
            parse_datagram(golden.wire)

    @by_name(golden for golden in PACKETS if not isinstance(golden.frame, CLIENT_STREAM))
    def test_client_stream_refuses_what_only_clients_send_and_forward(self, golden: Golden) -> None:
        with pytest.raises(UnexpectedError, match="only 0x01 DELIVER, 0x20 KEEPALIVE_ACK"):
            read_whole(ClientDecoder(), golden.wire)

    @by_name(golden for golden in PACKETS if not isinstance(golden.frame, CLIENT))
    def test_client_datagram_refuses_what_only_clients_send(self, golden: Golden) -> None:
        with pytest.raises(UnexpectedError):
            parse_client_datagram(golden.wire)

    @by_name(golden for golden in PACKETS if isinstance(golden.frame, HUB))
    def test_datagram_to_the_hub(self, golden: Golden) -> None:
        assert parse_datagram(golden.wire) == [golden.frame]

    @by_name(golden for golden in PACKETS if isinstance(golden.frame, CLIENT))
    def test_datagram_to_a_client(self, golden: Golden) -> None:
        assert parse_client_datagram(golden.wire) == [golden.frame]

    def test_several_pushes_share_a_datagram(self) -> None:
        assert parse_datagram(PUSHES.wire) == PUSHES.frame

    def test_the_documents_example_is_a_keepalive_as_a_datagram(self) -> None:
        assert parse_datagram(EXAMPLE.wire) == [EXAMPLE.frame]
        assert parse_datagrams([EXAMPLE.wire]) == [LoneDatagram(0, EXAMPLE.frame)]

    def test_the_documents_example_is_the_beginning_of_a_push_on_a_stream(self) -> None:
        decoder = ServerDecoder()
        assert read_whole(decoder, EXAMPLE.wire) == []
        assert decoder.unfinished == 7


class TestStreams:
    def test_pushes_side_by_side_are_one_run(self) -> None:
        wire = b"".join(serialize(Push(b"%d" % i)) for i in range(50))
        [frame] = read_whole(ServerDecoder(), wire)
        assert frame == PushRun(Run.of([b"%d" % i for i in range(50)]))

    def test_other_frames_part_runs_and_keep_their_place(self) -> None:
        keepalive, request = Keepalive("10.0.0.1", 9), Request("10.0.0.1", 9, 1, 2)
        order = [Push(b"a"), Push(b"b"), keepalive, Push(b"c"), request, keepalive, Push(b"d"), Push(b"")]
        found = read_whole(ServerDecoder(), b"".join(map(serialize, order)))
        assert found == [
            PushRun(Run.of([b"a", b"b"])),
            keepalive,
            PushRun(Run.of([b"c"])),
            request,
            keepalive,
            PushRun(Run.of([b"d", b""])),
        ]

    def test_delivers_side_by_side_are_one_run_with_their_numbers(self) -> None:
        order = [Deliver(5, b"e"), Deliver(3, b""), Deliver(MAX_SEQUENCE, b"z" * 300)]
        [frame] = read_whole(ClientDecoder(), b"".join(map(serialize, order)))
        assert frame == DeliverRun(np.array([5, 3, MAX_SEQUENCE]), Run.of([b"e", b"", b"z" * 300]))
        assert frame.seqs.dtype == np.int64
        assert frame.run.offsets.dtype == np.int32

    def test_runs_that_differ_are_unequal(self) -> None:
        run = DeliverRun(np.array([1]), Run.of([b"a"]))
        assert run != DeliverRun(np.array([2]), Run.of([b"a"]))
        assert run != DeliverRun(np.array([1]), Run.of([b"b"]))
        assert run != Deliver(1, b"a")
        assert PushRun(Run.of([b"a"])) != PushRun(Run.of([b"a", b""]))

    @given(streams(hub_frames), cuts)
    def test_hub_side_any_chunking_any_way_gives_what_single_packets_give(
        self, wire: bytes, places: list[int]
    ) -> None:
        whole = fed(ServerDecoder(), [wire])
        assert fed(ServerDecoder(), cut(wire, places)) == whole
        assert fed(ServerDecoder(), (wire[i : i + 1] for i in range(len(wire)))) == whole
        assert scanned(ServerDecoder(), [wire]) == whole
        assert scanned(ServerDecoder(), cut(wire, places)) == whole
        expected, refused = plainly(wire, (2, 4, 16))
        assert whole[0] == expected
        assert (whole[1] is None) == (refused is None)
        assert refused is None or f"at byte {refused} " in str(whole[1])

    @given(streams(client_frames), cuts)
    def test_client_side_any_chunking_any_way_gives_what_single_packets_give(
        self, wire: bytes, places: list[int]
    ) -> None:
        whole = fed(ClientDecoder(), [wire])
        assert fed(ClientDecoder(), cut(wire, places)) == whole
        assert fed(ClientDecoder(), (wire[i : i + 1] for i in range(len(wire)))) == whole
        assert scanned(ClientDecoder(), [wire]) == whole
        assert scanned(ClientDecoder(), cut(wire, places)) == whole
        expected, refused = plainly(wire, (1, 32))
        assert whole[0] == expected
        assert (whole[1] is None) == (refused is None)
        assert refused is None or f"at byte {refused} " in str(whole[1])

    @pytest.mark.parametrize("make", [ServerDecoder, ClientDecoder])
    @given(st.binary(max_size=200), cuts)
    def test_any_bytes_at_all(self, make: Any, wire: bytes, places: list[int]) -> None:
        whole = fed(make(), [wire])
        assert fed(make(), cut(wire, places)) == whole
        assert scanned(make(), cut(wire, places)) == whole

    def test_frames_before_the_error_come_first_and_then_everything_is_refused(self) -> None:
        decoder = ServerDecoder()
        found = decoder.feed(serialize(Push(b"a")) * 2 + b"\x03" + serialize(Push(b"b")))
        assert next(found) == PushRun(Run.of([b"a", b"a"]))
        with pytest.raises(MalformedError, match=r"TYPE 3 at byte 8 is malformed: one of 0x02") as first:
            next(found)
        with pytest.raises(MalformedError) as second:
            next(decoder.feed(serialize(Push(b"c"))))
        assert second.value is first.value
        assert decoder.unfinished == 0

    def test_scan_gives_the_error_with_the_frames_before_it_and_then_again(self) -> None:
        decoder = ServerDecoder()
        wire = serialize(Push(b"a")) * 2 + b"\x01"
        found, consumed, error = decoder.scan(wire, 0, len(wire))
        assert found == [PushRun(Run.of([b"a", b"a"]))]
        assert consumed == 8
        assert isinstance(error, UnexpectedError)
        assert error.offset == 8
        assert decoder.scan(wire, 0, len(wire)) == ([], 0, error)

    def test_frames_not_taken_wait(self) -> None:
        decoder = ServerDecoder()
        keepalive = Keepalive("10.0.0.1", 9)
        decoder.feed(serialize(keepalive) * 2)
        assert list(decoder.feed(serialize(keepalive))) == [keepalive] * 3

    @pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
    @pytest.mark.parametrize("count", [1, 5])
    def test_takes_any_buffer_and_leaves_it_free(self, make: Any, count: int) -> None:
        wire = serialize(Push(b"abc")) * count + b"\x02\x00"
        [frame] = read(ServerDecoder(), [make(wire)])
        assert list(frame.run) == [b"abc"] * count

    @pytest.mark.parametrize("end", [b"", b"\x02\x00", b"\x03"])
    @pytest.mark.parametrize("count", [1, 5])
    def test_what_is_found_has_memory_of_its_own(self, count: int, end: bytes) -> None:
        buffer = bytearray(serialize(Deliver(9, b"abc")) * count + end)
        decoder = ClientDecoder()
        found, _, _ = decoder.scan(buffer, 0, len(buffer))
        buffer[:] = bytes(len(buffer))
        buffer.clear()
        assert found == [DeliverRun(np.full(count, 9), Run.of([b"abc"] * count))]

    def test_scan_stays_within_its_window(self) -> None:
        buffer = np.frombuffer(serialize(Push(b"a")) * 4, np.uint8)
        found, consumed, error = ServerDecoder().scan(buffer, 4, 11)
        assert (flat(found), consumed, error) == ([Push(b"a")], 4, None)
        assert ServerDecoder().scan(buffer, 4, 4) == ([], 0, None)

    def test_position_counts_the_connections_bytes(self) -> None:
        decoder = ServerDecoder()
        for _ in range(3):
            list(decoder.feed(serialize(Push(b"abcd")) + b"\x02"))
            list(decoder.feed(b"\x00\x00"))
        with pytest.raises(MalformedError) as caught:
            list(decoder.feed(b"\x00"))
        assert caught.value.offset == 3 * 10

    def test_the_longest_packets(self) -> None:
        push, deliver = Push(b"p" * MAX_DATA), Deliver(1, b"d" * MAX_DATA)
        assert len(serialize(deliver)) == MAX_PACKET
        assert fed(ServerDecoder(), [serialize(push)]) == ([push], None)
        assert fed(ServerDecoder(), [serialize(push) * 3]) == ([push] * 3, None)
        assert fed(ClientDecoder(), [serialize(deliver) * 3]) == ([deliver] * 3, None)

    @pytest.mark.parametrize("length", [MAX_DATA + 1, 0xFFFF])
    def test_a_length_over_the_limit_is_refused_at_once(self, length: int) -> None:
        head = length.to_bytes(2)
        with pytest.raises(LimitError, match=f"fyrehose: LENGTH {length} at byte 0 .* 65526"):
            read_bytewise(ServerDecoder(), b"\x02" + head)
        with pytest.raises(LimitError):
            read_bytewise(ClientDecoder(), b"\x01" + head)

    @pytest.mark.parametrize("before", [0, 1, 2])
    @pytest.mark.parametrize("behind", [0, 1, 2])
    def test_there_is_no_message_0(self, before: int, behind: int) -> None:
        good, bad = Deliver(1, b"a"), bytes.fromhex("01 0001 000000000000 61")
        wire = serialize(good) * before + bad + serialize(good) * behind
        found, error = fed(ClientDecoder(), [wire])
        assert found == [good] * before
        assert error == f"fyrehose: SEQUENCE 0 at byte {10 * before} is malformed: at least 1"

    def test_a_run_never_outgrows_its_offsets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fyrehose, "MAX_RUN_BYTES", 25)
        found = read_whole(ServerDecoder(), serialize(Push(b"0123456789")) * 5)
        assert [len(frame.run) for frame in found] == [2, 2, 1]
        found = read_whole(ClientDecoder(), serialize(Deliver(1, b"0123456789")) * 5)
        assert [len(frame.run) for frame in found] == [2, 2, 1]
        arrivals = parse_datagrams([serialize(Push(b"0123456789"))] * 5)
        assert [(arrival.first, len(arrival.run)) for arrival in arrivals] == [(0, 2), (2, 2), (4, 1)]

    def test_a_long_packet_in_small_pieces_is_looked_at_few_times(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = 0
        scan = ServerDecoder._scan

        def counted(self: ServerDecoder, *arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            return scan(self, *arguments)

        monkeypatch.setattr(ServerDecoder, "_scan", counted)
        push = Push(b"x" * MAX_DATA)
        assert flat(read_bytewise(ServerDecoder(), serialize(push))) == [push]
        assert looks <= 3


class TestMemory:
    @pytest.mark.parametrize("make", [ServerDecoder, ClientDecoder])
    def test_a_stated_length_takes_no_memory(self, make: Any) -> None:
        head = b"\x02\xff\xf6" if make is ServerDecoder else b"\x01\xff\xf6" + bytes(5) + b"\x01"
        decoders = [make() for _ in range(100)]
        tracemalloc.start()
        for decoder in decoders:
            assert list(decoder.feed(head)) == []
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100 * 2_000

    @given(streams(hub_frames) | st.binary(max_size=2000), cuts)
    def test_stays_within_a_small_multiple_of_what_came(self, wire: bytes, places: list[int]) -> None:
        chunks = list(cut(wire, places))
        tracemalloc.start()
        fed(ServerDecoder(), chunks)
        fed(ClientDecoder(), chunks)
        parse_datagrams(chunks)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # Every 3 bytes can be an empty PUSH, here taken apart into objects; errors hold tracebacks.
        assert peak < 100_000 + 100 * len(wire)

    def test_keeps_one_unfinished_packet_at_most(self) -> None:
        decoder = ServerDecoder()
        for _ in range(50):
            list(decoder.feed(serialize(Push(b"x" * 60_000)) * 2 + b"\x02\xff\xf6" + b"y" * 5_000))
            assert decoder.unfinished <= MAX_PACKET
            list(decoder.feed(b"y" * (MAX_DATA - 5_000)))
            assert decoder.unfinished == 0


class TestBatches:
    @given(st.lists(payloads, max_size=30), st.integers(1, 1 << 47), st.integers(0, 40) | st.just(MAX_DATA))
    def test_delivers_are_what_single_packets_are(
        self, batch: list[bytes], first: int, max_data: int
    ) -> None:
        expected = [
            serialize(Deliver(first + i, data if len(data) <= max_data else b""))
            for i, data in enumerate(batch)
        ]
        too_long = sum(len(data) > max_data for data in batch)
        packets, hollow = deliver_run(Run.of(batch), first, max_data=max_data)
        assert bytes(packets) == b"".join(expected)
        assert hollow == too_long
        packets, edges, hollow = deliver_packets(Run.of(batch), first, max_data=max_data)
        assert [bytes(packets[a:b]) for a, b in itertools.pairwise(edges.tolist())] == expected
        assert hollow == too_long

    @given(st.lists(payloads, max_size=30))
    def test_pushes_are_what_single_packets_are(self, batch: list[bytes]) -> None:
        assert push_run(Run.of(batch)) == b"".join(serialize(Push(data)) for data in batch)

    @given(st.lists(payloads, min_size=1, max_size=20), st.data())
    def test_a_slice_of_a_run_is_written_like_its_payloads(self, batch: list[bytes], data: Any) -> None:
        begin = data.draw(st.integers(0, len(batch) - 1))
        end = data.draw(st.integers(begin, len(batch)))
        part = Run.of(batch).slice(begin, end)
        assert bytes(deliver_run(part, 1)[0]) == bytes(deliver_run(Run.of(batch[begin:end]), 1)[0])
        assert push_run(part) == push_run(Run.of(batch[begin:end]))

    @given(st.lists(payloads, min_size=1, max_size=30), st.integers(1, 1 << 47))
    def test_a_batch_goes_through_whole(self, batch: list[bytes], first: int) -> None:
        [pushed] = ServerDecoder().feed(push_run(Run.of(batch)))
        packets, _ = deliver_run(pushed.run, first)
        [delivered] = ClientDecoder().feed(packets)
        assert delivered == DeliverRun(np.arange(first, first + len(batch)), Run.of(batch))

    def test_nobody_can_change_what_many_send(self) -> None:
        packets, _ = deliver_run(Run.of([b"a", b"b"]), 1)
        assert isinstance(packets, memoryview)
        assert packets.readonly

    def test_a_payload_too_long_for_the_transport_goes_out_hollow(self) -> None:
        for size, limit, hollow in [
            (MAX_DATA, MAX_DATA, 0),
            (MAX_DATA + 1, MAX_DATA, 1),
            (MAX_DELIVER_DATAGRAM, MAX_DELIVER_DATAGRAM, 0),
            (MAX_DELIVER_DATAGRAM + 1, MAX_DELIVER_DATAGRAM, 1),
        ]:
            alone = deliver_run(Run.of([bytes(size)]), 1, max_data=limit)
            assert (len(alone[0]), alone[1]) == (9 + size * (not hollow), hollow)
            among = deliver_run(Run.of([b"a", bytes(size), b"b"]), 1, max_data=limit)
            assert (len(among[0]), among[1]) == (29 + size * (not hollow), hollow)

    def test_a_payload_too_long_to_push_refuses_the_batch(self) -> None:
        for batch in ([bytes(MAX_DATA + 1)], [b"a", bytes(MAX_DATA + 1)]):
            with pytest.raises(LimitError, match="LENGTH 65527 is over the limit: 65526"):
                push_run(Run.of(batch))
        for batch in ([bytes(MAX_PUSH_DATAGRAM + 1)], [b"a", bytes(MAX_PUSH_DATAGRAM + 1)]):
            with pytest.raises(LimitError, match="LENGTH 65505 is over the limit: 65504"):
                push_run(Run.of(batch), max_data=MAX_PUSH_DATAGRAM)

    @pytest.mark.parametrize("max_data", [-1, MAX_DATA + 1])
    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_max_data_is_within_what_length_can_say(self, max_data: int, count: int) -> None:
        run = Run.of([b"a"] * count)
        with pytest.raises(WireError, match="max_data"):
            deliver_run(run, 1, max_data=max_data)
        with pytest.raises(WireError, match="max_data"):
            push_run(run, max_data=max_data)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_numbers_end_at_48_bits(self, count: int) -> None:
        run = Run.of([b"a"] * count)
        packets, _ = deliver_run(run, MAX_SEQUENCE - count + 1)
        assert flat(ClientDecoder().feed(packets))[-1] == Deliver(MAX_SEQUENCE, b"a")
        with pytest.raises(LimitError, match="SEQUENCE"):
            deliver_run(run, MAX_SEQUENCE - count + 2)
        with pytest.raises(MalformedError, match="SEQUENCE 0 is malformed: at least 1"):
            deliver_run(run, 0)

    @pytest.mark.parametrize(
        "offsets",
        [[-1, 2], [-3, -1], [0, 5], [3, 1], [0, 4, 2], [0, 5, 2], [2, 0, 4], [-2, -1, 0], [0, -1, 4]],
    )
    def test_offsets_that_make_no_sense_are_refused(self, offsets: list[int]) -> None:
        run = Run(np.frombuffer(b"abcd", np.uint8), np.array(offsets, np.int32))
        for write in (
            lambda: deliver_run(run, 1),
            lambda: deliver_run(run, 1, max_data=1),
            lambda: deliver_packets(run, 1),
            lambda: push_run(run),
        ):
            with pytest.raises(MalformedError, match="offsets of payload"):
                write()


class TestDatagrams:
    @given(frames)
    def test_single_packets(self, frame: Frame) -> None:
        wire = serialize(frame)
        if isinstance(frame, HUB):
            assert parse_datagram(wire) == [frame]
        else:
            with pytest.raises(UnexpectedError):
                parse_datagram(wire)
        if isinstance(frame, CLIENT):
            assert parse_client_datagram(wire) == [frame]
        else:
            with pytest.raises(UnexpectedError):
                parse_client_datagram(wire)

    @given(st.lists(pushes, min_size=1, max_size=10), st.lists(delivers, min_size=1, max_size=10))
    def test_several_that_delimit_themselves(self, several: list[Push], delivered: list[Deliver]) -> None:
        assert parse_datagram(b"".join(map(serialize, several))) == several
        assert parse_client_datagram(b"".join(map(serialize, delivered))) == delivered

    @given(st.lists(hub_frames, min_size=2, max_size=5))
    def test_other_packets_stand_alone(self, several: list[Frame]) -> None:
        wire = b"".join(map(serialize, several))
        if all(isinstance(frame, Push) for frame in several):
            assert parse_datagram(wire) == several
        else:
            with pytest.raises(MalformedError, match="stands alone"):
                parse_datagram(wire)

    @pytest.mark.parametrize(
        ("wire", "problem"),
        [
            ("", "TYPE 0x at byte 0 is malformed: one byte"),
            ("00", "TYPE 0 "),
            ("02", "packet size 3 at byte 0 is malformed: at most the datagram's 1 bytes"),
            ("02 0001", "packet size 4 "),
            ("02 0000 02", "packet size 3 at byte 3 "),
            ("02 0000 03", "TYPE 3 at byte 3 "),
            ("02 ffff", "LENGTH 65535 at byte 0 is over the limit: 65526"),
            ("10 7f000001 09", "packet size 7 "),
            ("10 7f000001 0913 00", "stands alone"),
            ("02 7f000001 0913 00", "packet size 32515 "),
            ("02 00 0000 0000 00", "TYPE 0 at byte 3 "),
            ("04 7f000001 0913 000000000009 000000000008", "FROM_SEQ 9 .* at most TO_SEQ, 8"),
            ("04 7f000001 0913 000000000000 000000000000", "FROM_SEQ 1 .* at most TO_SEQ, 0"),
            ("02 0000 01 0000 000000000001", "TYPE 'DELIVER' at byte 3 is not allowed here"),
        ],
    )
    def test_what_is_wrong_is_named(self, wire: str, problem: str) -> None:
        with pytest.raises(WireError, match=problem):
            parse_datagram(bytes.fromhex(wire))

    def test_no_datagram_is_longer_than_udp_has(self) -> None:
        push = Push(bytes(MAX_PUSH_DATAGRAM))
        deliver = Deliver(1, bytes(MAX_DELIVER_DATAGRAM))
        assert len(serialize(push)) == len(serialize(deliver)) == MAX_DATAGRAM
        assert parse_datagram(serialize(push)) == [push]
        assert parse_client_datagram(serialize(deliver)) == [deliver]
        with pytest.raises(LimitError, match="datagram size 65508"):
            parse_datagram(serialize(Push(bytes(MAX_PUSH_DATAGRAM + 1))))
        for long in ([Push(bytes(MAX_PUSH_DATAGRAM + 1))], [push, Push(b"")]):
            datagram = b"".join(map(serialize, long))
            several = parse_datagrams([serialize(push), datagram, serialize(push)])
            assert [type(arrival) for arrival in several] == [PushDatagrams, BadDatagram, PushDatagrams]

    @given(st.binary(min_size=7, max_size=7).map(lambda tail: b"\x02" + tail[1:]))
    def test_seven_bytes_that_begin_with_2_are_a_keepalive_unless_they_can_be_pushes(
        self, wire: bytes
    ) -> None:
        try:
            found = parse_datagram(wire)
        except WireError:
            assert wire[1] == 0
        else:
            assert isinstance(found[0], Keepalive) == (wire[1] != 0)
            assert wire[1] == 0 or found == [parse(b"\x10" + wire[1:])]

    @given(
        st.lists(
            st.lists(pushes, min_size=1, max_size=3).map(lambda several: b"".join(map(serialize, several)))
            | hub_frames.map(serialize)
            | st.just(EXAMPLE.wire)
            | st.binary(max_size=12)
            | wrong,
            max_size=12,
        )
    )
    def test_many_at_once_are_what_each_is(self, datagrams: list[bytes]) -> None:
        expected: list[Any] = []
        for datagram in datagrams:
            try:
                expected.append(parse_datagram(datagram))
            except WireError as error:
                expected.append(str(error))
        found: list[Any] = []
        for arrival in parse_datagrams(datagrams):
            match arrival:
                case PushDatagrams(first, counts, run):
                    assert first == len(found)
                    assert counts.sum() == len(run)
                    payload = map(Push, run)
                    found += [list(itertools.islice(payload, count)) for count in counts.tolist()]
                case LoneDatagram(index, frame):
                    assert index == len(found)
                    found.append([frame])
                case BadDatagram(index, error):
                    assert index == len(found)
                    found.append(str(error))
        assert found == expected

    def test_pushes_of_datagrams_side_by_side_are_one_run(self) -> None:
        hello, bad, keepalive = PUSHES.wire, b"\x03", EXAMPLE.wire
        found = parse_datagrams([hello, hello, bad, hello, keepalive, hello])
        assert [type(arrival) for arrival in found] == [
            PushDatagrams,
            BadDatagram,
            PushDatagrams,
            LoneDatagram,
            PushDatagrams,
        ]
        assert found[0].run == Run.of([b"hi", b""] * 2)
        assert found[0].counts.tolist() == [2, 2]

    def test_none_at_all(self) -> None:
        assert parse_datagrams([]) == []


class TestLoading:
    def test_numba_is_loaded_only_for_batches(self) -> None:
        program = """
import sys
from headrace.message import Run
from headrace.wire import fyrehose as f

[frame] = f.ServerDecoder().feed(f.serialize(f.Push(b"hi")))
packets, _ = f.deliver_run(frame.run, 1)
list(f.ClientDecoder().feed(packets))
f.push_run(frame.run), f.parse_datagrams([f.push_run(frame.run)])
assert "numba" not in sys.modules, "loaded for one packet"
list(f.ServerDecoder().feed(f.push_run(frame.run) * 2))
assert "numba" in sys.modules
"""
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_the_types_are_one_hot(self) -> None:
        assert sorted(Type) == [1, 2, 4, 8, 16, 32]
