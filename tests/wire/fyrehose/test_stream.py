"""fyrehose in a stream: every packet, however it is cut, and never too much of it at once."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.fyrehose_frames import (
    CLIENT,
    CLIENT_STREAM,
    EXAMPLE,
    FROM_ZERO,
    HUB,
    HUB_STREAM,
    PACKETS,
    PUSHES,
    WRITTEN,
    as_streamed,
    by_name,
    client_frames,
    cuts,
    fed,
    flat,
    hub_frames,
    plainly,
    scanned,
    streams,
)
from tests.wire.golden import Golden, check_golden, cut, read, read_bytewise, read_whole

from headrace.errors import LimitError, MalformedError, UnexpectedError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.fyrehose import kernels
from headrace.wire.fyrehose import stream as fyrehose
from headrace.wire.fyrehose.stream import (
    MAX_DATA,
    MAX_PACKET,
    ClientDecoder,
    Deliver,
    DeliverRun,
    Keepalive,
    LoneDatagram,
    Push,
    PushRun,
    Request,
    ServerDecoder,
    Type,
    parse,
    parse_client_datagram,
    parse_datagram,
    parse_datagrams,
    serialize,
)

GOLDEN: list[Golden] = [*WRITTEN, EXAMPLE, FROM_ZERO, PUSHES]
"""What the protocol's page shows."""


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_compiled() -> None:
    kernels.warm()


class TestGolden:
    @by_name(PACKETS)
    def test_reads(self, golden: Golden) -> None:
        assert parse(golden.wire) == golden.frame

    @by_name(WRITTEN)
    def test_writes(self, golden: Golden) -> None:
        assert serialize(golden.frame) == golden.wire

    @by_name(golden for golden in PACKETS if isinstance(golden.frame, HUB_STREAM))
    @pytest.mark.parametrize("following", [b"\x02", b"\x02\x00\x01", b"\x10\x7f", b"\x04"])
    def test_streams_to_the_hub(self, golden: Golden, following: bytes) -> None:
        check_golden(replace(golden, frame=as_streamed(golden.frame)), ServerDecoder, following)

    @by_name(golden for golden in PACKETS if isinstance(golden.frame, CLIENT_STREAM))
    @pytest.mark.parametrize("following", [b"\x01", b"\x01\x00\x01", b"\x20\x7f"])
    def test_streams_to_a_client(self, golden: Golden, following: bytes) -> None:
        check_golden(replace(golden, frame=as_streamed(golden.frame)), ClientDecoder, following)

    @by_name(golden for golden in PACKETS if not isinstance(golden.frame, HUB_STREAM))
    def test_hub_stream_refuses_what_only_it_sends_and_proof(self, golden: Golden) -> None:
        with pytest.raises(UnexpectedError, match="only 0x02 PUSH, 0x04 REQUEST, 0x10 KEEPALIVE"):
            read_whole(ServerDecoder(), golden.wire)

    @by_name(golden for golden in PACKETS if not isinstance(golden.frame, HUB))
    def test_hub_datagram_refuses_what_only_it_sends(self, golden: Golden) -> None:
        with pytest.raises(UnexpectedError):
            parse_datagram(golden.wire)

    @by_name(golden for golden in PACKETS if not isinstance(golden.frame, CLIENT_STREAM))
    def test_client_stream_refuses_what_only_clients_send_and_what_is_for_datagrams(
        self, golden: Golden
    ) -> None:
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


class TestLoading:
    def test_numba_is_loaded_only_for_batches(self) -> None:
        program = """
import sys
from headrace.message import Run
from headrace.wire.fyrehose import stream as f

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
        assert sorted(Type) == [1, 2, 4, 8, 16, 32, 64, 128]
