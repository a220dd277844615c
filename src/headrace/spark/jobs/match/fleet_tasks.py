"""The fleet's tasks: match ranges of the sequence, then push what was found to each share of the clients in order.

A micro-batch is cut into ranges as the source cuts it (:mod:`headrace.spark.source.planning`), so it is read once,
whatever the number of tasks. :func:`match_ranges` matches a range with all subscriptions, and writes the pushes into
*blocks*, one sequence of them for each share of the clients. Spark brings a share's blocks together and sorts them by
the sequence. :func:`push_blocks` sends them to the dispatcher, so one task pushes everything for a client, in the order
of the sequence and without a hole. A micro-batch of one range needs no share: :func:`match_and_push` does both.

A repeated task gives the same blocks, and pushes them from the first on; connectors drop repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from headrace.errors import LostRangeError
from headrace.matching import FENCE_WINDOW
from headrace.spark.jobs.job import spark_ddl
from headrace.spark.jobs.match.dispatcher_connection import DispatcherDoor, RepeatablePush
from headrace.spark.jobs.match.subscription_index import keep_index, take_index
from headrace.spark.options import SourceOptions
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.source.range_rows import LogRange, read_range
from headrace.wire.attribute.messages import MatcherPush, seq_of, serialize
from headrace.wire.attribute.push_parts import split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BLOCK_BYTES: Final = 256 << 10
"""Pushes are sent in blocks of about this size, or smaller ones where there are many shares."""

WAITING_BYTES: Final = 16 << 20
"""Most bytes of blocks that a task fills at a time, about."""

BLOCKS_A_BATCH: Final = 64
"""Blocks that Spark gives to a task at a time, and converts at a time."""

_BLOCKS: Final = pa.schema(
    [
        pa.field("share", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("pushes", pa.int64()),
        pa.field("data", pa.binary()),
        pa.field("done", pa.binary()),
    ]
)
"""Pushes to a share of the clients, serialized, and the sequence number of the first; or facts about a range."""

_DONE: Final = pa.schema([pa.field("pushes", pa.int64()), pa.field("done", pa.binary())])
"""What a task tells the driver: how much it pushed, or facts about a range."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The settings of every task."""

    options: SourceOptions
    dispatcher: DispatcherDoor
    tables: str
    """The folder with the run's tables."""
    shares: int
    json_attributes: bool = False
    fence_window: int = FENCE_WINDOW
    answers: bool = True
    """Whether the dispatcher answers heartbeats."""


class RangeFacts(msgspec.Struct, frozen=True):
    """What a task says about the range that it has matched."""

    first: int
    last: int
    op: int
    """The log's own position up to which every subscription counted."""
    subscriptions: int
    read: int
    """Messages that the task read."""
    found: int
    """Clients that it found."""


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the tasks of a micro-batch did."""

    ranges: list[RangeFacts]
    pushed: int

    @property
    def last(self) -> int:
        """The last message up to which everything was matched and pushed."""
        return self.ranges[-1].last


def run_tasks(fleet: Fleet, ranges: DataFrame) -> BatchFacts | None:
    """Match a micro-batch, whose rows are its ranges, and push what is found; ``None`` if there is nothing in it."""
    parts = ranges.rdd.getNumPartitions()
    if parts <= 1:
        pushed = ranges.mapInArrow(partial(match_and_push, fleet), spark_ddl(_DONE))
    else:
        # Rows are blocks, so the usual thousands of them in an Arrow batch would be too much.
        ranges.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BLOCKS_A_BATCH)
        blocks = ranges.mapInArrow(partial(match_ranges, fleet, fleet.shares), spark_ddl(_BLOCKS))
        ordered = _by_share(blocks, fleet.shares).sortWithinPartitions("seq")
        pushed = ordered.mapInArrow(partial(push_blocks, fleet), spark_ddl(_DONE))
    return batch_facts(pushed.collect())


def batch_facts(told: Iterable[Any]) -> BatchFacts | None:
    """Put together what tasks told; raises where the ranges leave a hole."""
    ranges, pushed = [], 0
    for row in told:
        pushed += row["pushes"] or 0
        if row["done"] is not None:
            ranges.append(msgspec.json.decode(row["done"], type=RangeFacts))
    ranges.sort(key=lambda each: each.first)
    for before, after in pairwise(ranges):
        if after.first != before.last + 1:
            raise LostRangeError(before.last + 1, after.first - 1, "no task has matched them")
    return BatchFacts(ranges, pushed) if ranges else None


def match_ranges(fleet: Fleet, shares: int, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match ranges; yield the blocks of pushes for each share, in order, and at last facts about each range."""
    for batch in ranges:
        for each in batch.to_pylist():
            yield from match_range(fleet, LogRange(**each), shares)
    hide_from_collector("match")


def match_range(fleet: Fleet, span: LogRange, shares: int) -> Iterator[pa.RecordBatch]:
    """Match one range."""
    access = fleet.options.access
    index, changes = take_index(
        access,
        span,
        fleet.tables,
        json_attributes=fleet.json_attributes,
        fence_window=fleet.fence_window,
    )
    blocks = [_Block(share, min(BLOCK_BYTES, WAITING_BYTES // shares)) for share in range(shares)]
    read, found = 0, index.found
    for rows in read_range(fleet.options, span):
        seqs, following = rows.column("seq"), span.first + read
        if seqs[0].as_py() != following or seqs[-1].as_py() != following + rows.num_rows - 1:
            raise LostRangeError(following, seqs[-1].as_py(), "the hub did not send all of it")
        read += rows.num_rows
        for share, push in index.pushes(rows, changes, shares):
            if blocks[share].add(push):
                yield blocks[share].take()
    if span.first + read <= span.last:
        raise LostRangeError(span.first + read, span.last, "the hub did not send all of it")
    for block in blocks:
        if block:
            yield block.take()
    facts = RangeFacts(span.first, span.last, index.op, len(index), read, index.found - found)
    keep_index(span, fleet.tables, index)
    # Any share may take it along: ranges begin at different numbers.
    yield _row(share=span.first % shares, seq=span.first, done=msgspec.json.encode(facts))


def push_blocks(fleet: Fleet, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Push blocks, which come in order, and yield how many pushes they had; facts are passed on."""
    pushed = 0
    told: list[bytes] = []
    with closing(RepeatablePush(fleet.dispatcher, fleet.options.access.patience, fleet.answers)) as push:
        for batch in blocks:
            for block in batch.to_pylist():
                if block["done"] is not None:
                    told.append(block["done"])
                    continue
                push.send(block["data"])
                pushed += block["pushes"]
            push.keep()
        push.finish()
    counts = pa.array([pushed, *(0 for _ in told)], pa.int64())
    yield pa.RecordBatch.from_arrays([counts, pa.array([None, *told], pa.binary())], schema=_DONE)


def match_and_push(fleet: Fleet, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Match a micro-batch of one range, and push as it goes."""
    return push_blocks(fleet, match_ranges(fleet, 1, ranges))


class _Block:
    """The pushes of one share that are not in a row yet."""

    def __init__(self, share: int, most: int) -> None:
        self._share = share
        self._most = most
        self._parts: list[bytes] = []
        self._seq = self._count = self._size = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, push: MatcherPush) -> bool:
        """Add a push; return whether the block is full."""
        if not self._parts:
            self._seq = seq_of(push.msg_id) or 0
        self._parts += map(serialize, split(push))
        self._count += 1
        self._size += len(push.payload) + len(push.clients)
        return self._size >= self._most

    def take(self) -> pa.RecordBatch:
        """Return the block as a row, and begin another."""
        row = _row(share=self._share, seq=self._seq, pushes=self._count, data=b"".join(self._parts))
        self._parts, self._count, self._size = [], 0, 0
        return row


def _row(**values: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values], _BLOCKS)


def _by_share(blocks: DataFrame, shares: int) -> DataFrame:
    """Bring the blocks of each share together, each share in a partition of its own where Spark lets us choose."""
    if hasattr(blocks, "repartitionById"):
        return blocks.repartitionById(shares, "share")
    return blocks.repartition(shares, "share")
