"""What the log's tests write: batches of every shape, and messages to compare with."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.log import Log
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch, Message, Run, map_column

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
"""Whether there is time for everything instead of a sample."""

TIMES = SCHEMA.field("time").type


def batch(first: int, *payloads: bytes, time: int = 0, **shared: Any) -> Batch:
    """A batch of messages that share everything."""
    return Batch(Run.of(payloads or (b"",)), first=first, time=time, **shared)


def entries(after: int, *payloads: bytes, time: int = 0, **shared: Any) -> Batch:
    """Entries of the log, which stand after a message."""
    return Batch(Run.of(payloads or (b"",)), first=after, time=time, origin=NOT_A_MESSAGE, **shared)


def columns(**values: Sequence[Any]) -> pa.RecordBatch:
    """What differs from message to message, by name."""
    arrays = [
        map_column(name, values[name])
        if name in ("attributes", "numbers")
        else pa.array(values[name], pa.int64()).cast(TIMES)
        if name == "time"
        else pa.array(values[name], SCHEMA.field(name).type)
        for name in values
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in values]))


def flat(batches: Iterable[Batch]) -> list[Message]:
    """Every message of many batches, comparable: a NaN equals itself."""
    return [comparable(message) for each in batches for message in each]


def operations(batches: Iterable[Batch]) -> list[tuple[int, Message]]:
    """Every message and entry of many batches with its operation; an entry has the number it stands after."""
    return [(each.op + place, found) for each in batches for place, found in enumerate(flat([each]))]


def messages_of(found: Iterable[tuple[int, Message]]) -> list[Message]:
    """The messages among operations."""
    return [message for _, message in found if message.origin != NOT_A_MESSAGE]


def check_operations(log: Log, expected: Sequence[tuple[int, Message]]) -> None:
    """What a log tells of operations is what a plain list tells; the list begins where the log does, or before."""
    kept = [(op, message) for op, message in expected if op >= log.first_op]
    assert operations(log.scan_ops(log.first_op)) == [each for each in kept if each[0] <= log.head_op]
    for op, message in kept:
        assert log.seq_of(op) == message.seq
        if message.origin != NOT_A_MESSAGE:
            assert log.op_of(message.seq) == op


def comparable(message: Message) -> Message:
    fields = {name: getattr(message, name) for name in SCHEMA.names}
    fields["numbers"] = {
        name: "NaN" if math.isnan(value) else value for name, value in message.numbers.items()
    }
    return Message(**fields)


def append(log: Log, *payloads: bytes, time: int | None = None, **shared: Any) -> Batch:
    """Append one batch behind the tail and commit it."""
    written = batch(log.tail + 1, *payloads, time=log.last_time if time is None else time, **shared)
    log.append([written])
    log.commit(log.tail_op)
    return written


def append_entries(log: Log, *payloads: bytes, time: int | None = None, **shared: Any) -> Batch:
    """Append entries behind the tail and commit them."""
    written = entries(log.tail, *payloads, time=log.last_time if time is None else time, **shared)
    log.append([written])
    log.commit(log.tail_op)
    return written


def seal_all(log: Log) -> None:
    log.rotate()
    while log.seal_next():
        pass


def content_of(directory: Path) -> dict[str, bytes]:
    """Every file under a directory and what is in it, except for the lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("lock", "synced")
    }


def restore(directory: Path, content: Mapping[str, bytes]) -> None:
    """Make a directory hold just that content."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        elif str(path.relative_to(directory)) not in content:
            path.unlink()
    for name, data in content.items():
        path = directory / name
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


TEXT = st.text(max_size=6)
PAYLOADS = st.binary(max_size=24)
INTS = st.integers(-(1 << 63), (1 << 63) - 1)
DOUBLES = st.floats(width=64)


@st.composite
def contents(draw: st.DrawFn, max_messages: int = 5) -> Batch:
    """Messages as a door submits them: not numbered yet, ``time`` (and a column of it) counted from 0."""
    payloads = draw(st.lists(PAYLOADS, min_size=1, max_size=max_messages))
    count = len(payloads)
    run = Run.of(payloads)
    if count == 1 and draw(st.booleans()):
        run = Run.one(payloads[0])
    elif draw(st.booleans()):
        # A slice of a larger buffer, as decoders give them.
        run = Run(np.concatenate([np.full(3, 255, np.uint8), run.data]), run.offsets + np.int32(3))
    shared: dict[str, Any] = {
        "origin": draw(TEXT),
        "node": draw(st.integers(0, 0xFFFF)),
        "publisher": draw(TEXT),
        "number": draw(st.none() | st.integers(0, 1 << 40)),
        "topic": draw(TEXT),
    }
    differing: dict[str, Sequence[Any]] = {}

    def each(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=count, max_size=count))

    for name, strategy in (
        ("topic", TEXT),
        ("number", st.none() | INTS),
        ("node", st.integers(0, 0xFFFF)),
        ("attributes", st.dictionaries(TEXT, TEXT, max_size=2)),
        ("numbers", st.dictionaries(TEXT, DOUBLES, max_size=2)),
    ):
        if draw(st.integers(0, 5)) == 0:
            differing[name] = each(strategy)
    time = draw(st.integers(0, 3))
    if draw(st.booleans()):
        differing["time"] = np.cumsum([time, *each(st.integers(0, 3))[1:]]).tolist()
    made = columns(**differing) if differing else None
    return Batch(run, time=time, columns=made, **shared)


@st.composite
def bookkeeping(draw: st.DrawFn, max_entries: int = 3) -> Batch:
    """Entries as the hub submits them."""
    made = draw(contents(max_entries))
    return replace(made, origin=NOT_A_MESSAGE, publisher="", number=None)


def submitted() -> st.SearchStrategy[Batch]:
    """Messages, or now and then entries."""
    return st.one_of(contents(), contents(), bookkeeping())


def place(content: Batch, first: int, now: int) -> Batch:
    """Number a door's messages, or put entries before message ``first``; times are from ``now`` on."""
    if content.is_entries:
        first -= 1
    differing = content.columns
    if differing is not None and "time" in differing.schema.names:
        index = differing.schema.get_field_index("time")
        moved = pa.array(differing.column(index).cast(pa.int64()).to_numpy() + now).cast(TIMES)
        differing = differing.set_column(index, SCHEMA.field("time"), moved)
    return replace(content, first=first, time=now + content.time, columns=differing)
