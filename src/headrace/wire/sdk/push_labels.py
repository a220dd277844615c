"""Pushes to many clients at once: a message's push is written once, and here it gets what each client is told of it.

A *label* is the name of a subscription and the event of its fence, either of which may be empty. The bytes are those
of :func:`headrace.wire.sdk.commands.label_push`, for a batch of messages and all their clients in one call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.message import Run
from headrace.wire.numba_kernels import BYTES, BYTES_IN, INTS, OFFSETS_IN, WIDE, inline, kernel, types

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Wide = npt.NDArray[np.int64]

LONGEST_HEAD = len("#4294967295\r\n")

_SUBS = np.frombuffer(b',"subs":[', np.uint8)
_EVENTS = np.frombuffer(b',"events":{', np.uint8)
_COMMA = np.frombuffer(b",", np.uint8)
_COLON = np.frombuffer(b":[", np.uint8)
_NEXT = np.frombuffer(b"],", np.uint8)
_END_NAMES = np.frombuffer(b"]", np.uint8)
_END_EVENTS = np.frombuffer(b"]}", np.uint8)
_END = np.frombuffer(b"}\r\n", np.uint8)
_MARKS = len(',"subs":[],"events":{]}') + len(',],:[,"}')
"""Bytes around labels, at most, besides those that each label brings."""


class Labels(NamedTuple):
    """Labels, sorted; a label's code is its place."""

    name_of: Ints
    """The place of each label's name among ``names``; the empty name is the first."""
    names: Run
    """The distinct names as JSON."""
    events: Run
    """Each label's event as JSON; nothing for none."""
    room: Wide
    """Most bytes that each label takes."""


def encode_labels(labels: Iterable[tuple[str, str]]) -> Labels:
    """Encode labels, which must be sorted and distinct."""
    told = list(labels)
    names: dict[str, int] = {"": 0}
    name_of = np.array([names.setdefault(name, len(names)) for name, _ in told], np.int32)
    named = Run.of(map(msgspec.json.encode, names))
    events = Run.of(msgspec.json.encode(event) if event else b"" for _, event in told)
    room = 2 * np.diff(named.offsets)[name_of].astype(np.int64) + np.diff(events.offsets) + len("],:[,,")
    return Labels(name_of, named, events, room)


def label_pushes(pushes: Run, rows: Ints, first: Wide, codes: Ints, labels: Labels) -> Run:
    """Write push ``rows[i]`` with the labels ``codes[first[i]:first[i + 1]]``, which are sorted, as item ``i``."""
    sizes = np.diff(pushes.offsets)[rows].astype(np.int64)
    room = int(sizes.sum()) + int(labels.room[codes].sum()) + len(rows) * (LONGEST_HEAD + _MARKS)
    out, ends = np.empty(room, np.uint8), np.zeros(len(rows) + 1, np.int32)
    names, events = (labels.names.data, labels.names.offsets), (labels.events.data, labels.events.offsets)
    write_pushes(pushes.data, pushes.offsets, rows, first, codes, labels.name_of, *names, *events, out, ends)
    return Run(out[: ends[-1]], ends)


@inline
def _put(out: Bytes, at: int, data: Bytes, begin: int, end: int, write: bool) -> int:
    """Copy bytes to ``at``, or only count them; return where they end."""
    if write:
        for offset in range(end - begin):
            out[at + offset] = data[begin + offset]
    return at + end - begin


@inline
def _put_labels(
    codes: Ints,
    begin: int,
    end: int,
    name_of: Ints,
    names: Bytes,
    name_begin: Ints,
    events: Bytes,
    event_begin: Ints,
    out: Bytes,
    at: int,
    write: bool,
) -> int:
    """Write labels to ``at``, or only count their bytes; return where they end."""
    last = 0
    for place in range(begin, end):
        name = name_of[codes[place]]
        if name != last:
            mark = _SUBS if last == 0 else _COMMA
            at = _put(out, at, mark, 0, len(mark), write)
            at = _put(out, at, names, name_begin[name], name_begin[name + 1], write)
            last = name
    if last != 0:
        at = _put(out, at, _END_NAMES, 0, len(_END_NAMES), write)
    last = -1
    for place in range(begin, end):
        code = codes[place]
        if event_begin[code] == event_begin[code + 1] or (place > begin and codes[place - 1] == code):
            continue
        name = name_of[code]
        if name != last:
            mark = _EVENTS if last < 0 else _NEXT
            at = _put(out, at, mark, 0, len(mark), write)
            at = _put(out, at, names, name_begin[name], name_begin[name + 1], write)
            at = _put(out, at, _COLON, 0, len(_COLON), write)
            last = name
        else:
            at = _put(out, at, _COMMA, 0, len(_COMMA), write)
        at = _put(out, at, events, event_begin[code], event_begin[code + 1], write)
    if last >= 0:
        at = _put(out, at, _END_EVENTS, 0, len(_END_EVENTS), write)
    return at


@kernel(
    types.void(
        *(BYTES_IN, OFFSETS_IN, INTS, WIDE, INTS),
        *(INTS, BYTES_IN, OFFSETS_IN, BYTES_IN, OFFSETS_IN, BYTES, INTS),
    )
)
def write_pushes(
    pushes: Bytes,
    push_begin: Ints,
    rows: Ints,
    first: Wide,
    codes: Ints,
    name_of: Ints,
    names: Bytes,
    name_begin: Ints,
    events: Bytes,
    event_begin: Ints,
    out: Bytes,
    ends: Ints,
) -> None:
    """Write pushes with their labels side by side, and where each ends."""
    at = 0
    for place in range(len(rows)):
        begin, end = push_begin[rows[place]], push_begin[rows[place] + 1]
        some, others = first[place], first[place + 1]
        size = _put_labels(
            codes, some, others, name_of, names, name_begin, events, event_begin, out, 0, False
        )
        if size == 0:
            at = _put(out, at, pushes, begin, end, True)
        else:
            body = begin
            while pushes[body] != ord("\n"):
                body += 1
            body += 1
            length = end - body + size
            digits = 1
            while length >= 10**digits:
                digits += 1
            out[at] = ord("#")
            for digit in range(digits):
                out[at + digits - digit] = ord("0") + length // 10**digit % 10
            out[at + digits + 1], out[at + digits + 2] = ord("\r"), ord("\n")
            at = _put(out, at + digits + 3, pushes, body, end - len(_END), True)
            at = _put_labels(
                codes, some, others, name_of, names, name_begin, events, event_begin, out, at, True
            )
            at = _put(out, at, _END, 0, len(_END), True)
        ends[place + 1] = at
