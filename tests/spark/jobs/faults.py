"""Faults put into a log at random places, and what must be found of them.

Every fault has a stretch of the sequence for itself, so that what is expected of one does not depend on another.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from tests.spark.jobs.rows import BEGIN

from headrace.message import SCHEMA

Expected = tuple[str, int, int]

STRETCH = 64


def sound(count: int, *, publishers: int = 50) -> pa.Table:
    """A log without a fault, made quickly: ``publishers`` take turns, each numbers its messages."""
    seqs = np.arange(1, count + 1, dtype=np.int64)
    codes = pa.array((seqs % publishers).astype(np.int32))
    names = pa.array([f"publisher {each}" for each in range(publishers)])
    columns = {
        "seq": pa.array(seqs),
        "time": pa.array(BEGIN + seqs * 10).cast(SCHEMA.field("time").type),
        "origin": pa.repeat("tube", count),
        "node": pa.repeat(pa.scalar(7, pa.int32()), count),
        "publisher": pa.DictionaryArray.from_arrays(codes, names).cast(pa.string()),
        "number": pa.array(seqs // publishers),
        "topic": pa.repeat("t", count),
        "attributes": maps("attributes", count),
        "numbers": maps("numbers", count),
        "payload": pa.repeat(pa.scalar(b"x" * 16, pa.binary()), count),
    }
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def maps(name: str, count: int) -> pa.Array:
    kind = SCHEMA.field(name).type
    nothing = [pa.nulls(0, kind.key_type), pa.nulls(0, kind.item_type)]
    return pa.MapArray.from_arrays(np.zeros(count + 1, np.int32), *nothing).cast(kind)


def inject(log: pa.Table, faults: int, random: Random) -> tuple[pa.Table, set[Expected]]:
    """The log with so many faults of every kind, and what is to be found."""
    seqs = log.column("seq").to_numpy()
    order = np.arange(log.num_rows)
    numbers, times = (
        log.column("number").to_numpy().copy(),
        log.column("time").cast(pa.int64()).to_numpy().copy(),
    )
    expected: set[Expected] = set()
    gone = np.zeros(log.num_rows, bool)
    again: list[tuple[int, int, int]] = []
    stretches = random.sample(range(4, log.num_rows // STRETCH - 4), faults)
    for stretch in stretches:
        at = stretch * STRETCH + random.randrange(8, 16)
        length = random.randrange(1, 12)
        first, last = int(seqs[at]), int(seqs[at + length - 1])
        match random.choice(
            ["hole", "repeat", "repeat later", "swap", "move", "number", "same number", "time"]
        ):
            case "hole":
                gone[at : at + length] = True
                expected.add(("hole", first, last))
            case "repeat":
                again.append((at + length, at, at + length))
                expected.add(("repeat", first, last))
            case "repeat later":
                again.append((at + 30, at, at + length))
                expected.add(("repeat", first, last))
            case "swap":
                order[[at, at + 1]] = order[[at + 1, at]]
                expected.add(("disorder", first, first))
            case "move":
                gap = length + random.randrange(1, 12)
                order[at : at + gap] = np.roll(order[at : at + gap], -length)
                expected.add(("disorder", first, last))
            case "number":
                numbers[at] = max(numbers[at] - random.randrange(2, 50), 0)
                expected.add(("number", first, first))
            case "same number":
                numbers[at] -= 1
                expected.add(("number", first, first))
            case "time":
                times[at] -= random.randrange(11, 10_000)
                expected.add(("time", first, first))
    changed = log.set_column(5, SCHEMA.field("number"), pa.array(numbers))
    changed = changed.set_column(1, SCHEMA.field("time"), pa.array(times).cast(SCHEMA.field("time").type))
    pieces, at = [], 0
    for where, begin, end in sorted(again):
        pieces += [order[at:where], np.arange(begin, end)]
        at = where
    taken = np.concatenate([*pieces, order[at:]])
    return changed.take(pa.array(taken[~gone[taken]])), expected
