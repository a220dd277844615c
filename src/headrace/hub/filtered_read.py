"""Reads the log through a filter: the one place where readers of some messages skip the others.

The log skips what its index of topics rules out (:meth:`headrace.log.Log.find`); the rest is judged row by row. One
call does a bounded amount of work, so a search of a long log takes many calls, and other readers have their turns in
between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headrace.hub.topic_test import TopicTest
from headrace.log.topics.found import Found
from headrace.log.topics.segment_topics import TopicChoice
from headrace.message import SCHEMA, Batch, merge

LEAST_COST: Final = 64 << 10
"""Minimum cost of a call, in bytes read, since even looking into an index costs something."""

_MANY_ROWS: Final = 1024
"""Batches with this many rows are judged one by one; smaller ones are joined first."""


class Searched(Protocol):
    """Something that can be searched: a log, or one of its sealed segments."""

    def find(self, first: int, last: int, topics: TopicChoice | None, max_bytes: int) -> Found:
        """Read messages that may be of chosen topics."""


class RowTest(Protocol):
    """A reader's conditions (:class:`~headrace.hub.filters.Filter`)."""

    @property
    def topics(self) -> TopicTest:
        """The topics that it wants."""

    def passes(self, batch: Batch) -> bool | None:
        """Whether all messages of a batch pass, or none; ``None`` if each has to be checked."""

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass."""


class Passing(NamedTuple):
    """The rows that pass, in order; no other message up to ``upto`` does."""

    rows: list[pa.RecordBatch]
    """None of them is empty."""
    upto: int
    cost: int
    """Bytes that were read, about."""


def read_passing(
    log: Searched, first: int, last: int, wanted: RowTest, max_bytes: int, room: int | None = None
) -> Passing:
    """Search about ``max_bytes`` of messages from ``first`` on, not past ``last``, and return the rows that pass.

    ``last`` must be committed. ``room`` bounds the memory of the rows that are compared: values that a batch has once,
    such as a long topic, are repeated in each of its rows.
    """
    topics = None if wanted.topics.everything else wanted.topics
    batches, upto, cost = log.find(first, last, topics, max_bytes)
    likely = [batch for batch in batches if wanted.passes(batch) is not False]
    if room is not None and likely:
        fitting = beginning(likely, room)
        if fitting[-1].last < likely[-1].last:
            upto = fitting[-1].last
        likely = fitting
    passing = (wanted.apply(rows) for rows in _gathered(likely))
    return Passing([rows for rows in passing if rows.num_rows], upto, max(cost, LEAST_COST))


def beginning(batches: list[Batch], room: int) -> list[Batch]:
    """Return the batches that fit ``room`` as rows: at least one message."""
    for place, batch in enumerate(batches):
        taken = batch.size + spread(batch)
        if taken > room:
            return batches[:place] or [batch.slice(0, max(1, len(batch) * room // taken))]
        room -= taken
    return batches


def spread(batch: Batch) -> int:
    """Return a bound for the bytes of a batch's rows without payloads, as ``plain_rows.batches_body`` counts them."""
    return len(batch) * (52 + 4 * (len(batch.origin) + len(batch.publisher) + len(batch.topic)))


def _gathered(batches: Sequence[Batch]) -> Iterator[pa.RecordBatch]:
    """Yield batches as rows: small ones joined, large ones as they are."""
    small: list[Batch] = []
    for batch in batches:
        if len(batch) < _MANY_ROWS or batch.columns is None:
            small.append(batch)
            continue
        if small:
            yield _joined(small)
            small = []
        yield batch.to_arrow()
    if small:
        yield _joined(small)


def _joined(batches: list[Batch]) -> pa.RecordBatch:
    """Join batches that need not follow one another."""
    rows = merge(batches)
    if batches[-1].last - batches[0].first + 1 == rows.num_rows:
        return rows
    seqs = np.concatenate([np.arange(batch.first, batch.last + 1) for batch in batches])
    return rows.set_column(0, SCHEMA.field("seq"), pa.array(seqs))
