"""The inner loops of the publisher door, compiled: many publishes in one call, no Python object per publish.

They find where things are and move bytes. :mod:`headrace.wire.attribute.publish` gives those bytes a meaning, refuses
what is wrong, takes the memory, and imports this module only for several publishes side by side.

Invariants, which hold for hostile bytes:

- ``scan_publishes`` reads inside ``data`` only, and all that it finds lies in ``data``. It ends before the first
  message that is not a whole and well-formed publish.
- ``gather_payloads`` is called on what the scan has found.
- Each kernel without its decorator (``.py_func``) is its own reference: plain Python on the same arrays.

Numba renews its cache when this file changes
and not when another does, so the constants that are compiled in stand here; a test holds them and the codec's
together.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.wire.numba_kernels import BYTES, BYTES_IN, INTS, INTS_2, kernel, load, types

HEADER_BYTES: Final = 4
ITEM_BYTES: Final = 3
MAX_BODY: Final = 2000
PUBLISH: Final = 1
ATTRIBUTES: Final = 1
PAYLOAD: Final = 2

TEXT_BEGIN, TEXT_END, PAYLOAD_BEGIN, PAYLOAD_END, END = range(5)
"""The columns of edges: of the attributes' text, of the payload, and where the publish ends. An item that is
absent begins and ends at 0."""

COLUMNS: Final = 5

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]
Edges = npt.NDArray[np.int32]

_EDGES_IN = types.Array(types.int32, 2, "C", readonly=True)


def warm() -> None:
    """Load every kernel and run it once; compiling them takes long the first time."""
    load(__name__)
    data = np.frombuffer(bytes((PUBLISH, 0, ITEM_BYTES, 0, PAYLOAD, 0, 0)), np.uint8)
    edges = np.empty((1, COLUMNS), np.int32)
    scan_publishes(data, edges)
    gather_payloads(data, edges, np.empty(0, np.uint8), np.empty(2, np.int32))


@kernel(types.intp(BYTES_IN, INTS_2))
def scan_publishes(data: Bytes, edges: Edges) -> int:
    """Fill a row of ``edges`` for each publish at the beginning of ``data``, and return how many those are."""
    size = len(data)
    at = 0
    for count in range(len(edges)):
        if size - at < HEADER_BYTES or data[at] != PUBLISH:
            return count
        length = (int(data[at + 1]) << 8) | int(data[at + 2])
        at += HEADER_BYTES
        end = at + length
        if length == 0 or length > MAX_BODY or end > size:
            return count
        row = edges[count]
        row[:] = 0
        while end - at >= ITEM_BYTES:
            begin = at + ITEM_BYTES
            stop = begin + ((int(data[at + 1]) << 8) | int(data[at + 2]))
            if stop > end:
                return count
            if data[at] == ATTRIBUTES:
                row[TEXT_BEGIN] = begin
                row[TEXT_END] = stop
            elif data[at] == PAYLOAD:
                row[PAYLOAD_BEGIN] = begin
                row[PAYLOAD_END] = stop
            at = stop
        if at != end:
            return count
        row[END] = end
    return len(edges)


@kernel(types.void(BYTES_IN, _EDGES_IN, BYTES, INTS))
def gather_payloads(data: Bytes, edges: Edges, content: Bytes, offsets: Offsets) -> None:
    """Copy the payloads side by side into ``content``, and fill ``offsets``, one more than there are payloads."""
    at = 0
    offsets[0] = 0
    for index in range(len(edges)):
        begin, end = edges[index, PAYLOAD_BEGIN], edges[index, PAYLOAD_END]
        content[at : at + end - begin] = data[begin:end]
        at += end - begin
        offsets[index + 1] = at
