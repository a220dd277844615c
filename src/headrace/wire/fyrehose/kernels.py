"""The inner loops of fyrehose, compiled: many packets in one call, no Python object per packet.

Strategy: a decoder *measures* first (how many whole packets stand side by side, how many payload bytes they
have), its caller takes exactly that much memory, and a *gather* fills it. An encoder's caller takes the most
that a batch can need, and the kernel says how much it *wrote*. Kernels never allocate, so they can run
without the interpreter's lock and leave nothing to collect.

Invariants, which hold for hostile bytes and for inconsistent offsets alike:

- no kernel reads outside ``begin:end`` (or the payloads' buffer), nor writes past the arrays it was given: a
  measure checks each packet, an encoder checks each payload, and a gather is only called on what a measure
  has passed;
- each kernel without its decorator (``.py_func``) is its own reference: plain Python on the same arrays.

Payload arrays may be read-only (``bytes``, mapped files), and offsets may
lie at any address (inside a received buffer).

The cache is renewed when this file changes and not when another does, so the constants that are compiled in
stand here and not in :mod:`headrace.wire.fyrehose.stream`; a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.wire.numba_kernels import (
    BYTES,
    BYTES_IN,
    INDEX,
    INTS,
    OFFSETS_IN,
    WIDE,
    WIDE_IN,
    before_compiling,
    inline,
    kernel,
    load,
    types,
)

DELIVER: Final = 0x01
PUSH: Final = 0x02
PUSH_HEADER: Final = 3
DELIVER_HEADER: Final = 9
MAX_DATA: Final = 65_526
MAX_DATAGRAM: Final = 65_507

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]
Wide = npt.NDArray[np.int64]


def warm() -> None:
    """Load every kernel and run it once, so that the next call meets compiled code and warm caches."""
    load(__name__)
    payload = np.frombuffer(b"x", np.uint8)
    offsets = np.array([0, 1], np.int32)
    packet = np.empty(DELIVER_HEADER + 1, np.uint8)
    seqs, edges = np.empty(1, np.int64), np.empty(2, np.int64)
    counts = np.empty(1, np.int32)

    write_delivers(payload, offsets, 1, MAX_DATA, packet, edges)
    measure_delivers(packet, 0, len(packet), MAX_DATA, 1)
    gather_delivers(packet, 0, seqs, np.empty(1, np.uint8), offsets)
    write_pushes(payload, offsets, MAX_DATA, packet)
    measure_pushes(packet, 0, PUSH_HEADER + 1, MAX_DATA, 1)
    measure_datagrams(packet, np.array([0, PUSH_HEADER + 1]), 0, MAX_DATA, counts)
    gather_pushes(packet, 0, np.empty(1, np.uint8), offsets)


def _copy(target: Bytes, at: int, source: Bytes, begin: int, count: int) -> None:
    """Copy ``count`` bytes; both ranges must have been checked."""
    target[at : at + count] = source[begin : begin + count]


@before_compiling
def _compile_copy() -> None:
    """Compile :func:`_copy` to a bare memcpy.

    Compiled slices cost some 50 ns in views and overlap checks: more than the copy of most payloads.
    """
    import numba.core.cgutils
    import numba.extending

    # Numba is only partly typed; here all of it counts as untyped.
    extending: Any = numba.extending
    cgutils: Any = numba.core.cgutils

    def emit(_context: Any, target: Any, at: Any, source: Any, begin: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            target, at, source, begin, count = values
            into = context.make_array(signature.args[0])(context, builder, target)
            out_of = context.make_array(signature.args[2])(context, builder, source)
            cgutils.raw_memcpy(
                builder, builder.gep(into.data, [at]), builder.gep(out_of.data, [begin]), count, itemsize=1
            )
            return context.get_dummy_value()

        return numba.types.void(target, at, source, begin, count), codegen

    memcpy = extending.intrinsic(emit)

    def overload(target: Any, at: Any, source: Any, begin: Any, count: Any) -> Any:  # noqa: ARG001
        def copy(target: Any, at: Any, source: Any, begin: Any, count: Any) -> None:
            memcpy(target, at, source, begin, count)

        return copy

    extending.overload(_copy)(overload)


@inline
def _length(buffer: Bytes, at: int) -> int:
    """LENGTH of the packet that begins at ``at``."""
    return (int(buffer[at + 1]) << 8) | int(buffer[at + 2])


@inline
def _sequence(buffer: Bytes, at: int) -> int:
    """SEQUENCE of the DELIVER that begins at ``at``."""
    number = 0
    for index in range(at + PUSH_HEADER, at + DELIVER_HEADER):
        number = (number << 8) | int(buffer[index])
    return number


@kernel(types.UniTuple(INDEX, 3)(BYTES_IN, INDEX, INDEX, INDEX, INDEX))
def measure_pushes(buffer: Bytes, begin: int, end: int, limit: int, most: int) -> tuple[int, int, int]:
    """Return the count, the payload bytes and the end of the whole PUSHes side by side from ``begin``.

    At most ``limit`` payload bytes and ``most`` PUSHes are counted. It stops before whatever is not a whole and valid
    PUSH.
    """
    count, size, at = 0, 0, begin
    while count < most and end - at >= PUSH_HEADER and buffer[at] == PUSH:
        length = _length(buffer, at)
        if length > MAX_DATA or PUSH_HEADER + length > end - at or size + length > limit:
            break
        count += 1
        size += length
        at += PUSH_HEADER + length
    return count, size, at


@kernel(types.void(BYTES_IN, INDEX, BYTES, INTS))
def gather_pushes(buffer: Bytes, begin: int, data: Bytes, offsets: Offsets) -> None:
    """Copy the payloads of measured PUSHes side by side; ``offsets`` has one more entry than there are."""
    at, filled = begin, 0
    offsets[0] = 0
    for index in range(1, len(offsets)):
        length = _length(buffer, at)
        _copy(data, filled, buffer, at + PUSH_HEADER, length)
        at += PUSH_HEADER + length
        filled += length
        offsets[index] = filled


@kernel(types.UniTuple(INDEX, 3)(BYTES_IN, INDEX, INDEX, INDEX, INDEX))
def measure_delivers(buffer: Bytes, begin: int, end: int, limit: int, most: int) -> tuple[int, int, int]:
    """Return the same as :func:`measure_pushes` does, for DELIVERs; SEQUENCE 0 is not valid."""
    count, size, at = 0, 0, begin
    while count < most and end - at >= DELIVER_HEADER and buffer[at] == DELIVER:
        length = _length(buffer, at)
        if length > MAX_DATA or DELIVER_HEADER + length > end - at or size + length > limit:
            break
        if _sequence(buffer, at) == 0:
            break
        count += 1
        size += length
        at += DELIVER_HEADER + length
    return count, size, at


@kernel(types.void(BYTES_IN, INDEX, WIDE, BYTES, INTS))
def gather_delivers(buffer: Bytes, begin: int, seqs: Wide, data: Bytes, offsets: Offsets) -> None:
    """Copy the payloads of measured DELIVERs side by side, and read their sequence numbers."""
    at, filled = begin, 0
    offsets[0] = 0
    for index in range(len(seqs)):
        length = _length(buffer, at)
        seqs[index] = _sequence(buffer, at)
        _copy(data, filled, buffer, at + DELIVER_HEADER, length)
        at += DELIVER_HEADER + length
        filled += length
        offsets[index + 1] = filled


@kernel(types.UniTuple(INDEX, 3)(BYTES_IN, WIDE_IN, INDEX, INDEX, INTS))
def measure_datagrams(
    buffer: Bytes, edges: Wide, first: int, limit: int, counts: Offsets
) -> tuple[int, int, int]:
    """Return the PUSHes, their payload bytes and the end of the datagrams from ``first`` that are all PUSHes.

    Datagram ``i`` is ``buffer[edges[i]:edges[i + 1]]``; ``counts[i]`` becomes the number of PUSHes in it. It
    stops before the first datagram that is too long, or not one or more whole PUSHes and nothing else.
    """
    total, size, datagram = 0, 0, first
    while datagram < len(edges) - 1:
        at, end = int(edges[datagram]), int(edges[datagram + 1])
        count, added = 0, 0
        while end - at >= PUSH_HEADER and buffer[at] == PUSH:
            length = _length(buffer, at)
            if length > MAX_DATA or PUSH_HEADER + length > end - at:
                break
            count += 1
            added += length
            at += PUSH_HEADER + length
        if count == 0 or at != end or size + added > limit:
            break
        if end - int(edges[datagram]) > MAX_DATAGRAM:
            break
        counts[datagram] = count
        total += count
        size += added
        datagram += 1
    return total, size, datagram


@kernel(types.UniTuple(INDEX, 2)(BYTES_IN, OFFSETS_IN, types.int64, INDEX, BYTES, WIDE))
def write_delivers(
    data: Bytes, offsets: Offsets, first_seq: int, max_data: int, packets: Bytes, edges: Wide
) -> tuple[int, int]:
    """Write a DELIVER per payload; return how many bytes that took and how many payloads were left out.

    A payload over ``max_data`` is left out: its DELIVER has no DATA. Packet ``i`` lies between ``edges[i]``
    and ``edges[i + 1]``; no edges are written if their array has another length than ``offsets``. Offsets
    that leave ``data`` or run backwards give -1 and the index of the payload.
    """
    at, hollow = 0, 0
    marked = len(edges) == len(offsets)
    begin = int(offsets[0])
    for index in range(len(offsets) - 1):
        end = int(offsets[index + 1])
        length = end - begin
        if begin < 0 or length < 0 or end > len(data):
            return -1, index
        if length > max_data:
            hollow += 1
            length = 0
        if DELIVER_HEADER + length > len(packets) - at:
            return -1, index
        if marked:
            edges[index] = at
        seq = first_seq + index
        packets[at] = DELIVER
        packets[at + 1] = length >> 8
        packets[at + 2] = length & 0xFF
        packets[at + 3] = (seq >> 40) & 0xFF
        packets[at + 4] = (seq >> 32) & 0xFF
        packets[at + 5] = (seq >> 24) & 0xFF
        packets[at + 6] = (seq >> 16) & 0xFF
        packets[at + 7] = (seq >> 8) & 0xFF
        packets[at + 8] = seq & 0xFF
        _copy(packets, at + DELIVER_HEADER, data, begin, length)
        at += DELIVER_HEADER + length
        begin = end
    if marked:
        edges[len(offsets) - 1] = at
    return at, hollow


@kernel(types.UniTuple(INDEX, 2)(BYTES_IN, OFFSETS_IN, INDEX, BYTES))
def write_pushes(data: Bytes, offsets: Offsets, max_data: int, packets: Bytes) -> tuple[int, int]:
    """Write a PUSH per payload; return how many bytes that took and how many payloads.

    A payload over ``max_data``, and offsets that leave ``data`` or run backwards, give -1 and the index of
    the payload.
    """
    at = 0
    begin = int(offsets[0])
    for index in range(len(offsets) - 1):
        end = int(offsets[index + 1])
        length = end - begin
        if begin < 0 or length < 0 or end > len(data) or length > max_data:
            return -1, index
        if PUSH_HEADER + length > len(packets) - at:
            return -1, index
        packets[at] = PUSH
        packets[at + 1] = length >> 8
        packets[at + 2] = length & 0xFF
        _copy(packets, at + PUSH_HEADER, data, begin, length)
        at += PUSH_HEADER + length
        begin = end
    return at, len(offsets) - 1
