"""Rows that are read and written without Arrow: messages without attributes, as most are.

This is the quick way for messages that are published or followed one at a time. For everything else (attributes,
different topics, compressed buffers, another layout) the functions return ``None``, and the caller takes the general
way, :mod:`headrace.wire.link.message`. Bytes of peers are checked: offsets must ascend within their buffer and text be
UTF-8; if not, the general way reports the error.

A message that travels alone has a body of a kilobyte, all of it Arrow's metadata and the envelope's texts but for the
payload and three numbers. So the first body of a **shape** (the same texts, and a payload of the same length) is made
or read in full, and what surrounds the payload and the numbers is kept. To write the next one is to join it with them;
to read it is to compare it. A shape is known by all of those bytes: what was checked about them holds for the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack
from typing import Final, NamedTuple

import numpy as np

from headrace.message import SCHEMA, Batch, Message, Run, joined_offsets, merged_numbers
from headrace.wire.link.message import PUBLISHED
from headrace.wire.link.record_batch import Buffer, Columns, Decoded, Layout

KEPT_BYTES = 1 << 20
"""Columns of equal rows up to this size are cached for the next body, which often has as many rows."""

MOST_LONE: Final = 8 << 10
"""The longest payload of a message with a shape: the longer it is, the less does the rest matter."""

_SHAPES: Final = 256
"""Shapes kept, each of a kilobyte or two."""

_MOST_TEXT: Final = 256
"""The longest text of a shape, in characters."""

_MOST_COLUMNS: Final = 4 << 10
"""Most bytes of the columns of a shape."""

_NUMBER: Final = Struct("<q")
_TWO: Final = Struct("<qq")

_published = cache(lambda: Layout(PUBLISHED))
_envelope = cache(lambda: Layout(SCHEMA))


# Rows to be published


def published_body(payloads: Sequence[bytes], topic: str) -> bytes:
    """Make a body of rows to be published from payloads that share a topic."""
    count = len(payloads)
    if count == 1 and len(payloads[0]) <= MOST_LONE and len(topic) <= _MOST_TEXT:
        before, after = _around_published(topic, len(payloads[0]))
        return b"".join((before, payloads[0], after))
    return _published_in_full(payloads, topic)


@lru_cache(maxsize=_SHAPES)
def _around_published(topic: str, size: int) -> tuple[bytes, bytes]:
    """The bytes before and after a lone payload of ``size`` bytes."""
    body = _published_in_full([bytes(size)], topic)
    end = len(body) - -size % 8
    return body[: end - size], body[end:]


def _published_in_full(payloads: Sequence[bytes], topic: str) -> bytes:
    count = len(payloads)
    edges = pack(f"<{count + 1}i", 0, *accumulate(map(len, payloads)))
    data: Buffer | list[Buffer] = payloads[0] if count == 1 else [*payloads]
    return _published().encode(count, _published_columns(count, topic, edges, data))


def published_parts(runs: Sequence[Run], topic: str) -> list[Buffer]:
    """Make such a body in parts from the payloads of runs, which are not copied."""
    count = sum(run.count for run in runs)
    edges = joined_offsets(runs).data.cast("B")
    payloads: list[Buffer] = [run.content.data.cast("B").toreadonly() for run in runs if run.size]
    return _published().parts(count, _published_columns(count, topic, edges, payloads))


def published_size(count: int, payload_bytes: int, topic: str) -> int:
    """The size of such a body, without its head and padding."""
    return payload_bytes + count * (16 + len(topic.encode()))


def _published_columns(count: int, topic: str, edges: Buffer, payloads: Buffer | list[Buffer]) -> Columns:
    # A character has up to four bytes, and each row three offsets.
    kept = (4 * len(topic) + 12) * count <= KEPT_BYTES
    same = (_same_columns if kept else _same_columns.__wrapped__)(count, topic)
    return {**same, "payload": (b"", edges, payloads)}


@lru_cache(maxsize=4)
def _same_columns(count: int, topic: str) -> Columns:
    """The columns of rows that differ only in their payloads."""
    name = topic.encode()
    return {"topic": (b"", _steps(count, len(name)), name * count), **_empty_maps(count)}


def parse_published(body: Buffer) -> tuple[str, Run] | None:
    """The topic and the payloads of a body of rows to be published, if they share one and have no attributes."""
    view = memoryview(body)
    at = _lone_places(_published())
    begin = at.payload(view)
    if not begin:
        return _parse_published_in_full(body)
    shape = _published_shape(bytes(view[:begin]))
    if shape is None or shape.size > len(view):
        return _parse_published_in_full(body)
    return shape.row.topic, Run.one(bytes(view[shape.begin : shape.end]))


@lru_cache(maxsize=_SHAPES)
def _published_shape(before: bytes) -> _Shape | None:
    """What the bytes before a lone payload tell."""
    whole = _lone_places(_published()).filled(before)
    found = _parse_published_in_full(whole)
    if found is None:
        return None
    return _shape(_published(), whole, Message(0, b"", topic=found[0]))


def _parse_published_in_full(body: Buffer) -> tuple[str, Run] | None:
    found = _plain(_published().decode(body))
    if found is None:
        return None
    _, offsets, texts = found.column("topic")
    topic = _shared_text(offsets, texts, found.length)
    if topic is None:
        return None
    run = _run(found)
    return None if run is None else (topic, run)


# The envelope


def batches_body(batches: Sequence[Batch], most: int) -> bytes | None:
    """Make a body of consecutive messages; ``None`` if it may exceed ``most`` bytes or they have columns."""
    count = size = 0
    for batch in batches:
        if batch.columns is not None:
            return None
        length = len(batch)
        count += length
        # A character has up to four bytes; the fixed-size parts of a row, offsets included, are 52 bytes.
        shared = len(batch.origin) + len(batch.publisher) + len(batch.topic)
        size += batch.run.size + length * (52 + 4 * shared)
    if size > most:
        return None
    if count == 1 and batches[0].run.size <= MOST_LONE:
        return _lone_body(batches[0])
    return _body_in_full(batches, count)


def _lone_body(only: Batch) -> bytes:
    payload, number = only.run.lone, only.number
    if payload is None:
        payload = only.run[0]
    pieces = _around_envelope(
        only.origin, only.node, only.publisher, only.topic, number is None, len(payload)
    )
    first, second, third, last = pieces
    stamp = _TWO.pack(only.first, only.time)
    return b"".join((first, stamp, second, _NUMBER.pack(number or 0), third, payload, last))


@lru_cache(maxsize=_SHAPES)
def _around_envelope(
    origin: str, node: int, publisher: str, topic: str, unnumbered: bool, size: int
) -> tuple[bytes, bytes, bytes, bytes]:
    """The bytes before, between and after the two first numbers, the publisher's number, and the payload."""
    number = None if unnumbered else 0
    like = Batch(
        Run.one(bytes(size)), origin=origin, node=node, publisher=publisher, number=number, topic=topic
    )
    body = _body_in_full([like], 1)
    at = _lone_places(_envelope())
    numbered, begin = at.number(memoryview(body)), len(body) - -size % 8 - size
    return (
        body[: at.head],
        body[at.head + _TWO.size : numbered],
        body[numbered + _NUMBER.size : begin],
        body[begin + size :],
    )


def _body_in_full(batches: Sequence[Batch], count: int) -> bytes:
    first = batches[0].first
    if count == 1:
        only = batches[0]
        number = only.number
        payload: Buffer | list[Buffer] = only.run[0] if only.run.lone is None else only.run.lone
        seqs, times = pack("<q", first), pack("<q", only.time)
        nodes = pack("<i", only.node)
        edges: Buffer = pack("<ii", 0, len(payload))
        present = b"\0" if number is None else b""
        numbers, missing = pack("<q", number or 0), int(number is None)
    else:
        counts = np.array([len(batch) for batch in batches])
        seqs = np.arange(first, first + count, dtype=np.int64).tobytes()
        times = np.repeat(np.array([batch.time for batch in batches], np.int64), counts).tobytes()
        nodes = np.repeat(np.array([batch.node for batch in batches], np.int32), counts).tobytes()
        each, absent = merged_numbers(batches, counts)
        numbers, missing = each.tobytes(), int(absent.sum())
        present = np.packbits(~absent, bitorder="little").tobytes() if missing else b""
        lone = [batch.run.lone for batch in batches if batch.run.lone is not None]
        if len(lone) == count:
            edges = pack(f"<{count + 1}i", 0, *accumulate(map(len, lone)))
            payload = list(lone)
        else:
            edges = joined_offsets([batch.run for batch in batches]).data.cast("B")
            payload = [batch.run.content.data.cast("B") for batch in batches]
    empty = (_empty_maps if 4 * count <= KEPT_BYTES else _empty_maps.__wrapped__)(count)
    columns: Columns = {
        "seq": (b"", seqs),
        "time": (b"", times),
        "origin": _texts([batch.origin for batch in batches], batches, count),
        "node": (b"", nodes),
        "publisher": _texts([batch.publisher for batch in batches], batches, count),
        "number": (present, numbers),
        "topic": _texts([batch.topic for batch in batches], batches, count),
        **empty,
        "payload": (b"", edges, payload),
    }
    return _envelope().encode(count, columns, missing)


@lru_cache(maxsize=4)
def _empty_maps(count: int) -> Columns:
    offsets = bytes(4 * count + 4)
    return {name: _envelope().empty_map(name, offsets) for name in ("attributes", "numbers")}


def parse_messages(body: Buffer) -> list[Message] | None:
    """The messages of a body of rows, if they have no attributes."""
    view = memoryview(body)
    at = _lone_places(_envelope())
    begin = at.payload(view)
    numbered = at.number(view) if begin else 0
    after = at.head + _TWO.size
    if not after <= numbered <= begin - _NUMBER.size:
        return _parse_messages_in_full(body)
    # The numbers are left out of what is compared.
    front = b"".join((view[: at.head], view[after:numbered], view[numbered + _NUMBER.size : begin]))
    shape = _envelope_shape(front, numbered)
    if shape is None or shape.size > len(view):
        return _parse_messages_in_full(body)
    seq, time = _TWO.unpack_from(view, at.head)
    row = shape.row
    number = None if row.number is None else _NUMBER.unpack_from(view, numbered)[0]
    payload = bytes(view[shape.begin : shape.end])
    return [Message(seq, payload, time, row.origin, row.node, row.publisher, number, row.topic)]


@lru_cache(maxsize=_SHAPES)
def _envelope_shape(front: bytes, numbered: int) -> _Shape | None:
    """What the bytes around the numbers and before a lone payload tell."""
    at = _lone_places(_envelope())
    between = numbered - _TWO.size
    before = b"".join(
        (front[: at.head], bytes(_TWO.size), front[at.head : between], bytes(_NUMBER.size), front[between:])
    )
    whole = at.filled(before)
    found = _parse_messages_in_full(whole)
    return None if found is None else _shape(_envelope(), whole, found[0])


def _parse_messages_in_full(body: Buffer) -> list[Message] | None:
    found = _plain(_envelope().decode(body))
    if found is None:
        return None
    count = found.length
    absent = found.nulls("number")
    validity, _ = found.column("number")
    if absent and (absent != count or validity != bytes((count + 7) // 8)):
        return None
    seqs, times, numbers = (_integers(found, name, "q", 8) for name in ("seq", "time", "number"))
    nodes = _integers(found, "node", "i", 4)
    origins, publishers, topics = (_each_text(found, name) for name in ("origin", "publisher", "topic"))
    payloads = _run(found)
    columns = (
        seqs, payloads, times, origins, nodes, publishers, [None] * count if absent else numbers, topics
    )  # fmt: skip
    rows = zip(*(column for column in columns if column is not None), strict=True)
    return None if None in columns else [Message(*row) for row in rows]


# Shapes


class _Shape(NamedTuple):
    """What bodies of one shape have in common."""

    row: Message
    """A row with its texts."""
    begin: int
    """Where the payload begins and ends."""
    end: int
    size: int
    """Length of the body."""


def _shape(layout: Layout, whole: bytes, row: Message) -> _Shape | None:
    """The shape of a body of one row that was read in full; ``None`` if its columns do not lie one after another."""
    found = layout.read_head(whole)
    if found is None:
        return None
    data = found.places[-1]
    begin, end = unpack("<ii", whole[found.places[-2]])
    return _Shape(row, data.start + begin, data.start + end, found.end)


class _LonePlaces:
    """Where a layout has what takes a body of one row apart; its last column is the payload."""

    __slots__ = ("_count_at", "_number_at", "_payload_at", "head")

    def __init__(self, layout: Layout) -> None:
        self.head = layout.head_bytes
        """Length of the head; the columns follow it."""
        self._count_at = layout.count_at
        self._payload_at = layout.place_at("payload", 2)
        self._number_at = layout.place_at("number", 1) if "number" in layout.buffers else 0

    def payload(self, body: memoryview) -> int:
        """Where the payload begins, if the body has one row and is short; 0 if not."""
        if len(body) < self.head or _NUMBER.unpack_from(body, self._count_at)[0] != 1:
            return 0
        at, size = _TWO.unpack_from(body, self._payload_at)
        if 0 <= at <= _MOST_COLUMNS and 0 <= size <= MOST_LONE and self.head + at + size <= len(body):
            return int(self.head + at)
        return 0

    def number(self, body: memoryview) -> int:
        """Where the publisher's number is, as the head has it."""
        return int(self.head + _NUMBER.unpack_from(body, self._number_at)[0])

    def filled(self, before: bytes) -> bytes:
        """A whole body of these bytes before its payload, and zeros."""
        size = _TWO.unpack_from(before, self._payload_at)[1]
        return before + bytes(size + -size % 8)


_lone_places = cache(_LonePlaces)


def _plain(found: Decoded | None) -> Decoded | None:
    """Return the rows if there are any and their maps are empty; check their number before memory is taken for it."""
    if found is None or found.length < 1:
        return None
    _, offsets, _ = found.column("payload")
    if len(offsets) != 4 * found.length + 4:
        return None
    return found if found.is_empty_map("attributes") and found.is_empty_map("numbers") else None


def _integers(found: Decoded, name: str, code: str, size: int) -> tuple[int, ...] | None:
    _, values = found.column(name)
    return unpack(f"<{found.length}{code}", values) if len(values) == size * found.length else None


def _is(view: memoryview, data: bytes) -> bool:
    """Compare a view with data: comparing the view itself goes item by item, which takes longer than a copy."""
    return len(view) == len(data) and bytes(view) == data


# Text


def _steps(count: int, size: int) -> bytes:
    """The offsets of ``count`` texts of one length."""
    if count == 1:
        return pack("<ii", 0, size)
    return (np.arange(count + 1, dtype=np.int32) * np.int32(size)).tobytes()


def _texts(values: Sequence[str], batches: Sequence[Batch], count: int) -> tuple[bytes, bytes, bytes]:
    """A column of texts, each as often as its batch has rows."""
    name = values[0].encode()
    if len(values) == 1 or all(value == values[0] for value in values):
        return b"", _steps(count, len(name)), name * count
    names = [value.encode() for value in values]
    lengths = np.repeat([len(each) for each in names], [len(batch) for batch in batches])
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = b"".join(each * len(batch) for each, batch in zip(names, batches, strict=True))
    return b"", offsets.tobytes(), data


def _shared_text(offsets: memoryview, data: memoryview, count: int) -> str | None:
    """The text that every row of a column has."""
    if len(data) % count or not _is(offsets, _steps(count, len(data) // count)):
        return None
    one = bytes(data[: len(data) // count])
    if count > 1 and not _is(data, one * count):
        return None
    try:
        return one.decode()
    except UnicodeDecodeError:
        return None


def _each_text(found: Decoded, name: str) -> list[str] | None:
    """The texts of a column."""
    _, offsets, data = found.column(name)
    count = found.length
    shared = _shared_text(offsets, data, count)
    if shared is not None:
        return [shared] * count
    edges = _edges(offsets, len(data), count)
    if edges is None:
        return None
    try:
        return [bytes(data[begin:end]).decode() for begin, end in pairwise(edges)]
    except UnicodeDecodeError:
        return None


def _edges(offsets: memoryview, size: int, count: int) -> tuple[int, ...] | None:
    if len(offsets) != 4 * count + 4:
        return None
    edges = unpack(f"<{count + 1}i", offsets)
    ascending = edges[0] >= 0 and edges[-1] <= size and all(a <= b for a, b in pairwise(edges))
    return edges if ascending else None


def _run(found: Decoded) -> Run | None:
    """The payloads; :func:`_plain` has checked the number of their offsets."""
    _, offsets, data = found.column("payload")
    if found.length == 1:
        begin, end = unpack("<ii", offsets)
        return Run.one(bytes(data[begin:end])) if 0 <= begin <= end <= len(data) else None
    # The head before the body may have any length, but numpy needs aligned numbers: copy them.
    edges = np.frombuffer(bytes(offsets), np.int32)
    if edges[0] < 0 or edges[-1] > len(data) or bool((edges[1:] < edges[:-1]).any()):
        return None
    return Run(np.frombuffer(data, np.uint8), edges)
