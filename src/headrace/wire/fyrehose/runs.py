"""fyrehose packets in bulk: a PUSH or a DELIVER for each payload of a run, written in one go.

A compiled kernel (:mod:`headrace.wire.fyrehose.kernels`) writes them side by side. A single packet is written in
Python, which is as quick for one and needs no kernels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.errors import LimitError, MalformedError, WireError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.fyrehose.packet import (
    DELIVER_HEADER,
    LOW,
    MAX_DATA,
    MAX_DELIVER_DATAGRAM,
    PUSH_HEADER,
    Push,
    Type,
    check,
    serialize,
)

Edges = npt.NDArray[np.int64]

_NO_EDGES = np.empty(0, np.int64)


def push_run(run: Run, *, max_data: int = MAX_DATA) -> bytes:
    """Write a PUSH per payload, back to back; a payload over ``max_data`` bytes refuses the batch."""
    check("max_data", max_data, 0, MAX_DATA)
    if len(run) == 1:
        payload = _lone_payload(run)
        check("LENGTH", len(payload), 0, max_data)
        return serialize(Push(payload))
    if not len(run):
        return b""
    from headrace.wire.fyrehose import kernels

    packets = np.empty(PUSH_HEADER.size * len(run) + max(run.size, 0), np.uint8)
    written, index = kernels.write_pushes(run.data, run.offsets, max_data, packets)
    if written < 0:
        begin, end = run.offsets[index : index + 2].tolist()
        if begin >= 0 and begin + max_data < end <= len(run.data):
            raise LimitError("fyrehose", "LENGTH", end - begin, max_data)
        raise _bad_offsets(run, index)
    return packets[:written].tobytes()


def deliver_run(run: Run, first_seq: int, *, max_data: int = MAX_DATA) -> tuple[bytes | memoryview, int]:
    """Write a DELIVER per payload, back to back, numbered from ``first_seq``.

    Returns the packets and how many of them are hollow: a payload over ``max_data`` bytes goes out with
    zero-length DATA, so that the sequence stays whole. With ``max_data=0`` all go out so.
    """
    if run.count != 1:
        packets, _, hollow = _write_delivers(run, first_seq, max_data, _NO_EDGES)
        return packets, hollow
    if max_data != MAX_DATA:
        check("max_data", max_data, 0, MAX_DATA)
    check("SEQUENCE", first_seq, 1, MAX_SEQUENCE)
    payload, hollow = _lone_payload(run) if run.lone is None else run.lone, 0
    if len(payload) > max_data:
        payload, hollow = b"", 1
    header = DELIVER_HEADER.pack(Type.DELIVER, len(payload), first_seq >> 32, first_seq & LOW)
    return header + payload, hollow


def deliver_packets(
    run: Run, first_seq: int, *, max_data: int = MAX_DELIVER_DATAGRAM
) -> tuple[bytes | memoryview, Edges, int]:
    """Write what :func:`deliver_run` writes, to be cut into datagrams.

    Returns the packets, their edges and how many are hollow: packet ``i`` is
    ``packets[edges[i]:edges[i + 1]]``.
    """
    return _write_delivers(run, first_seq, max_data, np.zeros(len(run) + 1, np.int64))


def empty_run(count: int, size: int) -> Run:
    """Room for so many payloads of so many bytes together, for a kernel to fill."""
    return Run(np.empty(size, np.uint8), np.empty(count + 1, np.int32))


def _write_delivers(
    run: Run, first_seq: int, max_data: int, edges: Edges
) -> tuple[bytes | memoryview, Edges, int]:
    check("max_data", max_data, 0, MAX_DATA)
    if not len(run):
        return b"", edges, 0
    check("SEQUENCE", first_seq, 1, MAX_SEQUENCE - len(run) + 1)
    from headrace.wire.fyrehose import kernels

    packets = np.empty(DELIVER_HEADER.size * len(run) + max(run.size, 0), np.uint8)
    written, rest = kernels.write_delivers(run.data, run.offsets, first_seq, max_data, packets, edges)
    if written < 0:
        raise _bad_offsets(run, rest)
    # Many connections send the same memory, so none may write to it.
    return packets[:written].data.toreadonly(), edges, rest


def _lone_payload(run: Run) -> bytes:
    if run.lone is not None:
        return run.lone
    begin, end = run.offsets.tolist()
    payload = run.data[begin:end].tobytes()
    if begin < 0 or len(payload) != end - begin:
        raise _bad_offsets(run, 0)
    return payload


def _bad_offsets(run: Run, index: int) -> WireError:
    begin, end = run.offsets[index : index + 2].tolist()
    limit = f"ascending, and within {len(run.data)} bytes"
    return MalformedError("fyrehose", f"offsets of payload {index}", (begin, end), limit)
