"""Rows that need no Arrow to be read or written: messages without attributes, as most are.

What is published or followed one message at a time passes here. Whatever these functions do not take (attributes,
topics that differ, compressed buffers, another layout) returns ``None`` and goes the way of
:mod:`headrace.wire.link.message`, which takes everything and has the same answers. Nothing a peer sends is believed:
offsets must ascend within their buffer and text be UTF-8, or it is the general way that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from struct import pack, unpack

import numpy as np
import numpy.typing as npt

from headrace.message import SCHEMA, Batch, Message, Run
from headrace.wire.link.message import PUBLISHED
from headrace.wire.link.record_batch import Buffer, Decoded, Layout

KEPT_BYTES = 1 << 20
"""Columns in which all rows are the same are kept for the next body, which often has as many, if they are no larger."""

_NO_OFFSETS = bytes(4)
"""The offsets of a column without rows."""

_published = cache(lambda: Layout(PUBLISHED))
_envelope = cache(lambda: Layout(SCHEMA))

_EMPTY_MAPS: tuple[Buffer, ...] = (b"", b"", _NO_OFFSETS, b"", b"", _NO_OFFSETS, b"")
_EMPTY_NUMBERS: tuple[Buffer, ...] = (b"", b"", _NO_OFFSETS, b"", b"", b"")
"""What follows the offsets of a map column without entries: entries, keys and values."""


# Rows to be published


def published_body(payloads: Sequence[bytes], topic: str) -> bytes:
    """Payloads that share a topic, as a body of rows to be published."""
    count = len(payloads)
    edges = pack(f"<{count + 1}i", 0, *accumulate(map(len, payloads)))
    return _published().encode(
        count, _published_nodes(count), _published_buffers(count, topic, edges, [*payloads])
    )


def published_parts(runs: Sequence[Run], topic: str) -> list[Buffer]:
    """The payloads of runs, one run behind the other, as such a body in parts: payloads stay where they lie."""
    count = sum(run.count for run in runs)
    edges = _joined_edges(runs, count)
    # Nobody writes to a run.
    payloads: list[Buffer] = [run.content.data.cast("B").toreadonly() for run in runs if run.size]
    return _published().parts(
        count, _published_nodes(count), _published_buffers(count, topic, edges, payloads)
    )


def published_size(count: int, payload_bytes: int, topic: str) -> int:
    """How long such a body is, but for its head and some padding."""
    return payload_bytes + count * (16 + len(topic.encode()))


def _published_nodes(count: int) -> tuple[int, ...]:
    return (count, 0, count, 0, 0, 0, 0, 0, 0, 0, count, 0, 0, 0, 0, 0, 0, 0, count, 0)


def _published_buffers(
    count: int, topic: str, edges: Buffer, payloads: list[Buffer]
) -> list[Buffer | list[Buffer]]:
    # A character has up to four bytes, and each row has three offsets.
    kept = (4 * len(topic) + 12) * count <= KEPT_BYTES
    steps, names, empty = (_same_columns if kept else _same_columns.__wrapped__)(count, topic)
    return [
        b"", steps, names,
        b"", empty, *_EMPTY_MAPS,
        b"", empty, *_EMPTY_NUMBERS,
        b"", edges, payloads,
    ]  # fmt: skip


@lru_cache(maxsize=4)
def _same_columns(count: int, topic: str) -> tuple[bytes, bytes, bytes]:
    """What rows share that differ in payloads alone: offsets and texts of their topic, offsets of no entries."""
    name = topic.encode()
    return _steps(count, len(name)), name * count, bytes(4 * count + 4)


def parse_published(body: Buffer) -> tuple[str, Run] | None:
    """The topic and the payloads of a body of rows to be published, if they share all else and have no attributes."""
    found = _some_rows(_published().decode(body))
    if found is None:
        return None
    count, nodes, buffers = found
    if nodes != _published_nodes(count):
        return None
    topic = _shared_text(buffers[1], buffers[2], count)
    if topic is None or not _without_entries(buffers[4:20], count):
        return None
    run = _run(buffers[-2], buffers[-1], count)
    return None if run is None else (topic, run)


# The envelope


def batches_body(batches: Sequence[Batch], most: int) -> bytes | None:
    """Messages that follow one another as a body of rows; ``None`` if it may be over ``most`` bytes or is not plain."""
    count = size = 0
    for batch in batches:
        if batch.columns is not None:
            return None
        length = len(batch)
        count += length
        # A character has up to four bytes; all that is of one size in a row, offsets included, is 52 bytes.
        shared = len(batch.origin) + len(batch.publisher) + len(batch.topic)
        size += batch.run.size + length * (52 + 4 * shared)
    if size > most:
        return None
    first = batches[0].first
    if count == 1:
        only = batches[0]
        number = only.number
        payload: Buffer | list[Buffer] = only.run[0] if only.run.lone is None else only.run.lone
        seqs, times = pack("<q", first), pack("<q", only.time)
        nodes = pack("<i", only.node)
        edges: Buffer = pack("<ii", 0, len(payload))
        numbers = (b"\0" if number is None else b"", pack("<q", number or 0), int(number is None))
    else:
        counts = np.array([len(batch) for batch in batches])
        seqs = np.arange(first, first + count, dtype=np.int64).tobytes()
        times = np.repeat(np.array([batch.time for batch in batches], np.int64), counts).tobytes()
        nodes = np.repeat(np.array([batch.node for batch in batches], np.int32), counts).tobytes()
        numbers = _numbers(batches, counts)
        lone = [batch.run.lone for batch in batches if batch.run.lone is not None]
        if len(lone) == count:
            edges = pack(f"<{count + 1}i", 0, *accumulate(map(len, lone)))
            payload = list(lone)
        else:
            edges = _joined_edges([batch.run for batch in batches], count)
            payload = [batch.run.content.data.cast("B") for batch in batches]
    empty = bytes(4 * count + 4)
    buffers = [
        b"", seqs,
        b"", times,
        b"", *_texts([batch.origin for batch in batches], batches, count),
        b"", nodes,
        b"", *_texts([batch.publisher for batch in batches], batches, count),
        numbers[0], numbers[1],
        b"", *_texts([batch.topic for batch in batches], batches, count),
        b"", empty, *_EMPTY_MAPS,
        b"", empty, *_EMPTY_NUMBERS,
        b"", edges, payload,
    ]  # fmt: skip
    return _envelope().encode(count, _envelope_nodes(count, numbers[2]), buffers)


def parse_messages(body: Buffer) -> list[Message] | None:
    """The messages of a body of rows, if they have no attributes."""
    found = _some_rows(_envelope().decode(body))
    if found is None:
        return None
    count, nodes, buffers = found
    absent = nodes[11]
    if absent not in (0, count) or nodes != _envelope_nodes(count, absent):
        return None
    columns = _columns(found)
    if columns is None:
        return None
    seqs, times, numbers, nodes_of = columns
    payloads = _run(buffers[-2], buffers[-1], count)
    origins, publishers, topics = (_each_text(buffers[at], buffers[at + 1], count) for at in (5, 10, 15))
    if payloads is None or origins is None or publishers is None or topics is None:
        return None
    rows = zip(
        seqs, payloads, times, origins, nodes_of, publishers,
        [None] * count if absent else numbers, topics, strict=True,
    )  # fmt: skip
    return [Message(*row) for row in rows]


def _some_rows(found: Decoded | None) -> Decoded | None:
    """Rows, if there are any, and offsets for so many: no number is believed that takes more memory than came."""
    if found is None or found.length < 1 or len(found.buffers[-2]) != 4 * found.length + 4:
        return None
    return found


def _columns(found: Decoded) -> tuple[tuple[int, ...], ...] | None:
    """The columns of whole numbers: seq, time, number and node; none may be too short, nor a map have entries."""
    count, nodes, buffers = found
    if not _without_entries(buffers[18:34], count):
        return None
    if nodes[11] and buffers[12] != bytes((count + 7) // 8):
        return None  # Not all numbers are absent after all.
    columns = []
    for at, size in ((1, 8), (3, 8), (13, 8), (8, 4)):
        if len(buffers[at]) != size * count:
            return None
        columns.append(unpack(f"<{count}{'q' if size == 8 else 'i'}", buffers[at]))
    return tuple(columns)


def _without_entries(maps: Sequence[memoryview], count: int) -> bool:
    """Whether both map columns have entries in no row: from the first one's offsets to the second one's values."""
    attributes, numbers = maps[0], maps[len(_EMPTY_MAPS) + 2]
    children = (*maps[1:9], *maps[10:])
    none = bytes(4 * count + 4)
    return (
        _is(attributes, none) and _is(numbers, none) and all(each in (b"", _NO_OFFSETS) for each in children)
    )


def _is(view: memoryview, data: bytes) -> bool:
    """Whether a view shows some data: a view's own comparison goes item by item, which takes longer than a copy."""
    return len(view) == len(data) and bytes(view) == data


def _envelope_nodes(count: int, absent: int) -> tuple[int, ...]:
    plain = (count, 0)
    nothing = (0, 0) * 3
    return (*plain * 5, count, absent, *plain, *plain, *nothing, *plain, *nothing, *plain)


def _joined_edges(runs: Sequence[Run], count: int) -> memoryview:
    """The offsets of several runs' payloads, once they lie side by side."""
    edges = np.zeros(count + 1, np.int32)
    row = end = 0
    for run in runs:
        length = len(run)
        np.add(run.offsets[1:], end - int(run.offsets[0]), out=edges[row + 1 : row + 1 + length])
        row += length
        end += run.size
    return edges.data.cast("B")


def _numbers(batches: Sequence[Batch], counts: npt.NDArray[np.int64]) -> tuple[bytes, bytes, int]:
    """Publishers' own numbers: which there are, the numbers, and how many there are not."""
    total = int(counts.sum())
    absent = np.repeat(np.array([batch.number is None for batch in batches]), counts)
    firsts = np.array([batch.number or 0 for batch in batches], np.int64)
    starts = np.cumsum(counts) - counts
    numbers = np.repeat(firsts - starts, counts) + np.arange(total, dtype=np.int64)
    missing = int(absent.sum())
    there = np.packbits(~absent, bitorder="little").tobytes() if missing else b""
    return there, numbers.tobytes(), missing


# Text


def _steps(count: int, size: int) -> bytes:
    """The offsets of ``count`` texts of one length."""
    if count == 1:
        return pack("<ii", 0, size)
    return (np.arange(count + 1, dtype=np.int32) * np.int32(size)).tobytes()


def _texts(values: Sequence[str], batches: Sequence[Batch], count: int) -> tuple[bytes, bytes]:
    """A column of texts, each as often as its batch has rows: offsets and data."""
    name = values[0].encode()
    if len(values) == 1 or all(value == values[0] for value in values):
        return _steps(count, len(name)), name * count
    names = [value.encode() for value in values]
    lengths = np.repeat([len(each) for each in names], [len(batch) for batch in batches])
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = b"".join(each * len(batch) for each, batch in zip(names, batches, strict=True))
    return offsets.tobytes(), data


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


def _each_text(offsets: memoryview, data: memoryview, count: int) -> list[str] | None:
    """The texts of a column."""
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


def _run(offsets: memoryview, data: memoryview, count: int) -> Run | None:
    if len(offsets) != 4 * count + 4:
        return None
    if count == 1:
        begin, end = unpack("<ii", offsets)
        return Run.one(bytes(data[begin:end])) if 0 <= begin <= end <= len(data) else None
    # A head of any length stands before the body: numbers are copied to where numpy wants them.
    edges = np.frombuffer(bytes(offsets), np.int32)
    if edges[0] < 0 or edges[-1] > len(data) or bool((edges[1:] < edges[:-1]).any()):
        return None
    return Run(np.frombuffer(data, np.uint8), edges)
