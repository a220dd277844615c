from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.fyrehose_frames import client_frames, delivers, hub_frames, payloads, plainly, pushes, streams

from headrace.message import MAX_RUN_BYTES, Run
from headrace.wire.fyrehose import kernels, packet
from headrace.wire.fyrehose.packet import Deliver, Push, Type, serialize
from headrace.wire.numba_kernels import Kernel

MANY = 1 << 20
"""More packets than any buffer here has."""

GUARD = 64
"""Bytes on either side of an output that a kernel must leave as they are."""

NAMES = [name for name in vars(kernels) if name.startswith(("measure_", "gather_", "write_"))]


def both(kernel: Any) -> list[Callable[..., Any]]:
    """A kernel as it is compiled and as it is written."""
    kernels.load(kernels.__name__)
    return [kernel.compiled, kernel.py_func]


def as_bytes(wire: bytes) -> Any:
    return np.frombuffer(wire, np.uint8)


class Output:
    """An array in the middle of a larger one, so that a write past it shows."""

    def __init__(self, size: int, dtype: Any) -> None:
        self._whole = np.full(size + 2 * GUARD, 0x5A, dtype)
        self.array = self._whole[GUARD : GUARD + size]

    def check(self) -> Any:
        assert (self._whole[:GUARD] == 0x5A).all()
        assert (self._whole[GUARD + len(self.array) :] == 0x5A).all()
        return self.array


def joined(frames: list[Any]) -> bytes:
    return b"".join(map(serialize, frames))


def test_constants_are_the_protocols() -> None:
    assert kernels.PUSH == Type.PUSH
    assert kernels.DELIVER == Type.DELIVER
    assert kernels.MAX_DATA == packet.MAX_DATA
    assert kernels.MAX_DATAGRAM == packet.MAX_DATAGRAM
    assert packet.PUSH_HEADER.size == kernels.PUSH_HEADER
    assert packet.DELIVER_HEADER.size == kernels.DELIVER_HEADER


def test_warm_runs_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: set[str] = set()
    for name in NAMES:
        kernel = getattr(kernels, name)

        def counted(*arguments: Any, name: str = name, kernel: Any = kernel) -> Any:
            ran.add(name)
            return kernel(*arguments)

        monkeypatch.setattr(kernels, name, counted)
    kernels.warm()
    assert ran == set(NAMES)


def test_kernels_do_without_a_place_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    double = Kernel(lambda number: 2 * number, "intp(intp)").compile()
    assert double(21) == 42


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_has_one_signature(name: str) -> None:
    kernels.load(kernels.__name__)
    assert len(getattr(kernels, name).compiled.signatures) == 1


def test_nothing_is_compiled_for_another_type() -> None:
    # An error that a test can meet, and never seconds of compiling while the hub runs.
    kernels.load(kernels.__name__)
    with pytest.raises(TypeError, match="No matching definition"):
        kernels.measure_pushes(np.zeros(4, np.float32), 0, 4, 10, 1)


@pytest.mark.parametrize(
    ("wire", "found"),
    [
        ("", (0, 0, 0)),
        ("02 00", (0, 0, 0)),
        ("02 0000", (1, 0, 3)),
        ("02 0001", (0, 0, 0)),
        ("02 0001 61 02 0002 62", (1, 1, 4)),
        ("02 0001 61 10", (1, 1, 4)),
        ("02 0000 02 fff7" + 65_527 * "00", (1, 0, 3)),
        ("02 fff6" + 65_526 * "00", (1, 65_526, 65_529)),
        ("02 ffe0" + 65_504 * "00", (1, 65_504, 65_507)),
    ],
)
def test_measures_pushes_up_to_their_limits(wire: str, found: tuple[int, int, int]) -> None:
    buffer = as_bytes(bytes.fromhex(wire))
    for measure in both(kernels.measure_pushes):
        assert measure(buffer, 0, len(buffer), MAX_RUN_BYTES, MANY) == found
    whole = found[0] > 0 and found[2] == len(buffer) <= kernels.MAX_DATAGRAM
    for measure in both(kernels.measure_datagrams):
        counts = np.zeros(1, np.int32)
        expected = (found[0], found[1], 1) if whole else (0, 0, 0)
        assert measure(buffer, np.array([0, len(buffer)]), 0, MAX_RUN_BYTES, counts) == expected


@pytest.mark.parametrize(
    ("wire", "found"),
    [
        ("01 0000 0000000000", (0, 0, 0)),
        ("01 0000 000000000001", (1, 0, 9)),
        ("01 0000 000000000000", (0, 0, 0)),
        ("01 0000 010000000000 01 0000 000000000000", (1, 0, 9)),
        ("01 0001 000000000001", (0, 0, 0)),
        ("01 fff7 000000000001" + 65_527 * "00", (0, 0, 0)),
        ("01 fff6 000000000001" + 65_526 * "00", (1, 65_526, 65_535)),
    ],
)
def test_measures_delivers_up_to_their_limits(wire: str, found: tuple[int, int, int]) -> None:
    buffer = as_bytes(bytes.fromhex(wire))
    for measure in both(kernels.measure_delivers):
        assert measure(buffer, 0, len(buffer), MAX_RUN_BYTES, MANY) == found


@given(
    streams(hub_frames),
    st.integers(0, 5),
    st.sampled_from([MAX_RUN_BYTES, 70_000, 40, 0]),
    st.sampled_from([MANY, 3, 1]),
)
def test_measures_pushes(wire: bytes, before: int, limit: int, most: int) -> None:
    expected, size = [], 0
    for frame in plainly(wire, (2, 4, 16))[0]:
        if not isinstance(frame, Push) or size + len(frame.data) > limit or len(expected) == most:
            break
        expected.append(frame)
        size += len(frame.data)
    buffer = as_bytes(b"\x02" * before + wire)
    for measure in both(kernels.measure_pushes):
        found = measure(buffer, before, len(buffer), limit, most)
        assert found == (len(expected), size, before + 3 * len(expected) + size)


@given(
    streams(client_frames),
    st.integers(0, 5),
    st.sampled_from([MAX_RUN_BYTES, 70_000, 40, 0]),
    st.sampled_from([MANY, 3, 1]),
)
def test_measures_delivers(wire: bytes, before: int, limit: int, most: int) -> None:
    expected, size = [], 0
    for frame in plainly(wire, (1, 32))[0]:
        if not isinstance(frame, Deliver) or size + len(frame.data) > limit or len(expected) == most:
            break
        expected.append(frame)
        size += len(frame.data)
    buffer = as_bytes(b"\x01" * before + wire)
    for measure in both(kernels.measure_delivers):
        found = measure(buffer, before, len(buffer), limit, most)
        assert found == (len(expected), size, before + 9 * len(expected) + size)


@given(st.lists(pushes, max_size=12), st.integers(0, 5))
def test_gathers_pushes(frames: list[Push], before: int) -> None:
    buffer = as_bytes(bytes(before) + joined(frames) + b"\x02\x00\x09more")
    expected = Run.of(frame.data for frame in frames)
    for gather in both(kernels.gather_pushes):
        data, offsets = Output(expected.size, np.uint8), Output(len(frames) + 1, np.int32)
        gather(buffer, before, data.array, offsets.array)
        assert Run(data.check(), offsets.check()) == expected


@given(st.lists(delivers, max_size=12), st.integers(0, 5))
def test_gathers_delivers(frames: list[Deliver], before: int) -> None:
    buffer = as_bytes(bytes(before) + joined(frames) + b"\x01\x00\x09more")
    expected = Run.of(frame.data for frame in frames)
    for gather in both(kernels.gather_delivers):
        seqs = Output(len(frames), np.int64)
        data, offsets = Output(expected.size, np.uint8), Output(len(frames) + 1, np.int32)
        gather(buffer, before, seqs.array, data.array, offsets.array)
        assert seqs.check().tolist() == [frame.seq for frame in frames]
        assert Run(data.check(), offsets.check()) == expected


@given(
    st.lists(
        st.lists(pushes, min_size=1, max_size=3).map(joined)
        | st.lists(hub_frames, max_size=3).map(joined)
        | st.binary(max_size=10),
        max_size=8,
    ),
    st.sampled_from([MAX_RUN_BYTES, 40]),
)
def test_measures_datagrams(datagrams: list[bytes], limit: int) -> None:
    expected, size = [], 0
    for datagram in datagrams:
        frames, refused = plainly(datagram, (2,))
        added = sum(len(frame.data) for frame in frames if isinstance(frame, Push))
        whole = refused is None and len(joined(frames)) == len(datagram)
        if not frames or not whole or size + added > limit:
            break
        expected.append(len(frames))
        size += added
    buffer = as_bytes(b"".join(datagrams))
    edges = np.cumsum([0, *map(len, datagrams)])
    for measure in both(kernels.measure_datagrams):
        counts = Output(len(datagrams), np.int32)
        found = measure(buffer, edges, 0, limit, counts.array)
        assert found == (sum(expected), size, len(expected))
        assert counts.check()[: len(expected)].tolist() == expected
        if expected:
            rest = measure(buffer, edges, 1, limit, counts.array)
            assert rest[2] >= len(expected)


@given(st.lists(payloads, max_size=12), st.integers(1, 1 << 47), st.sampled_from([65_526, 300, 3, 0]))
def test_writes_delivers(batch: list[bytes], first: int, max_data: int) -> None:
    run = Run.of(batch)
    kept = [data if len(data) <= max_data else b"" for data in batch]
    packets_expected = [serialize(Deliver(first + i, data)) for i, data in enumerate(kept)]
    expected = b"".join(packets_expected)
    for write in both(kernels.write_delivers):
        packets, edges = Output(9 * len(run) + run.size, np.uint8), Output(len(run) + 1, np.int64)
        written, hollow = write(run.data, run.offsets, first, max_data, packets.array, edges.array)
        assert packets.check()[:written].tobytes() == expected
        assert hollow == sum(len(data) > max_data for data in batch)
        assert np.array_equal(edges.check(), np.cumsum([0, *map(len, packets_expected)]))


def test_writes_no_edges_unless_there_is_one_more_than_payloads() -> None:
    run = Run.of([b"a", b"b"])
    for write in both(kernels.write_delivers):
        for size in (0, 2, 4):
            packets, edges = Output(20, np.uint8), Output(size, np.int64)
            assert write(run.data, run.offsets, 1, 10, packets.array, edges.array) == (20, 0)
            assert (edges.check() == 0x5A).all()


@given(st.lists(payloads, max_size=12))
def test_writes_pushes(batch: list[bytes]) -> None:
    run = Run.of(batch)
    for write in both(kernels.write_pushes):
        packets = Output(3 * len(run) + run.size, np.uint8)
        assert write(run.data, run.offsets, 65_526, packets.array) == (len(packets.array), len(run))
        assert packets.check().tobytes() == joined(list(map(Push, batch)))


@given(st.lists(payloads, min_size=1, max_size=8), st.integers(0, 300))
def test_names_the_first_push_too_long(batch: list[bytes], max_data: int) -> None:
    run = Run.of(batch)
    too_long = [index for index, data in enumerate(batch) if len(data) > max_data]
    for write in both(kernels.write_pushes):
        packets = Output(3 * len(run) + run.size, np.uint8)
        found = write(run.data, run.offsets, max_data, packets.array)
        packets.check()
        assert found == ((-1, too_long[0]) if too_long else (len(packets.array), len(run)))


@given(
    st.binary(max_size=40),
    st.lists(st.integers(-50, 100) | st.sampled_from([-(2**31), 2**31 - 1]), min_size=2, max_size=6),
    st.integers(0, 200),
)
def test_offsets_of_any_kind_never_lead_outside(data: bytes, offsets: list[int], room: int) -> None:
    source, edges = as_bytes(data), np.array(offsets, np.int32)
    sound = offsets == sorted(offsets) and offsets[0] >= 0 and offsets[-1] <= len(data)
    size = offsets[-1] - offsets[0]
    count = len(offsets) - 1
    for write in both(kernels.write_delivers):
        packets = Output(room, np.uint8)
        written, _ = write(source, edges, 1, 65_526, packets.array, np.empty(0, np.int64))
        packets.check()
        assert (written >= 0) == (sound and 9 * count + size <= room)
    for write in both(kernels.write_pushes):
        packets = Output(room, np.uint8)
        written, _ = write(source, edges, 65_526, packets.array)
        packets.check()
        assert (written >= 0) == (sound and 3 * count + size <= room)


@given(st.lists(payloads, min_size=1, max_size=5))
def test_inputs_may_be_read_only_and_lie_anywhere(batch: list[bytes]) -> None:
    run = Run.of(batch)
    unaligned = np.frombuffer(b"?" + run.offsets.tobytes() + b"???", np.uint8)[1:-3].view(np.int32)
    assert not unaligned.flags.writeable
    packets = np.empty(3 * len(run) + run.size, np.uint8)
    for data in (run.data, run.data.copy(), np.frombuffer(b"?" + run.data.tobytes(), np.uint8)[1:]):
        for offsets in (run.offsets, run.offsets.copy(), unaligned):
            kernels.write_pushes(data, offsets, 65_526, packets)
            assert packets.tobytes() == joined(list(map(Push, batch)))
    for buffer in (packets, np.frombuffer(packets.tobytes(), np.uint8)):
        assert kernels.measure_pushes(buffer, 0, len(buffer), MAX_RUN_BYTES, MANY)[0] == len(batch)


@given(st.binary(max_size=300))
def test_any_bytes_measure_to_whole_valid_packets(wire: bytes) -> None:
    buffer = as_bytes(wire)
    for kernel, kind in ((kernels.measure_pushes, 2), (kernels.measure_delivers, 1)):
        compiled, written = (measure(buffer, 0, len(buffer), MAX_RUN_BYTES, MANY) for measure in both(kernel))
        assert compiled == written
        frames, _ = plainly(wire[: compiled[2]], (kind,))
        assert len(frames) == compiled[0]
        assert joined(frames) == wire[: compiled[2]]
