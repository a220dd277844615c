"""fyrehose in bulk: what is written in one go is what single packets would be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.fyrehose_frames import (
    flat,
    payloads,
)

from headrace.errors import LimitError, MalformedError, WireError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.fyrehose import kernels
from headrace.wire.fyrehose.stream import (
    MAX_DATA,
    MAX_DELIVER_DATAGRAM,
    MAX_PUSH_DATAGRAM,
    ClientDecoder,
    Deliver,
    DeliverRun,
    Push,
    ServerDecoder,
    deliver_packets,
    deliver_run,
    push_run,
    serialize,
)


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_compiled() -> None:
    kernels.warm()


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
