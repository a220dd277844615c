"""Dead letters: copies of messages that a consumer gives up.

A **dead letter** is a copy of a message under the consumer's dead-letter topic, with its attributes and :data:`ADDED`.
Dead letters and, right after them, the entry that marks their originals as done are appended together, so neither is in
the log without the other. The entry marks the letters as done, too: they are not the consumer's own messages. A dead
letter that fails at another consumer is not copied again: two consumers of everything would send each other's failures
back and forth forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.hub.consumers.cursors import Consumer
from headrace.hub.consumers.settlements import Settled, encode, entries
from headrace.hub.sequence_ranges import Range
from headrace.message import Batch, Message, Run, envelope_rows, map_column
from headrace.protocols import DEAD_LETTER

ADDED: Final = ("dead.consumer", "dead.seq", "dead.topic", "dead.origin", "dead.tries")
"""Attributes that a dead letter has in addition to those of its original."""


class Burial(NamedTuple):
    """Dead letters, if there are any, and the entry to be appended right after them."""

    letters: Batch | None
    entry: Batch


def bury(consumer: Consumer, settled: Settled, rows: pa.RecordBatch, tries: int) -> Burial:
    """Make dead letters, and the entry that marks their originals as done.

    ``rows`` are the consumer's; only those within the settled ranges become dead letters.
    """
    rows = within(rows, settled.ranges)
    dead = rows.num_rows
    rows = rows.filter(pc.not_equal(rows.column("origin"), DEAD_LETTER))
    entry = entries(encode(settled, dead, rows.num_rows))
    if not rows.num_rows:
        return Burial(None, entry)
    columns = {
        "attributes": map_column("attributes", _attributes(consumer, rows, tries)),
        "numbers": rows.column("numbers"),
    }
    letters = Batch(
        Run.from_arrow(rows.column("payload")),
        origin=DEAD_LETTER,
        publisher=consumer.name,
        topic=consumer.dead_letter,
        columns=envelope_rows(columns),
    )
    return Burial(letters, entry)


def is_dead_letter(message: Message, consumer: Consumer) -> bool:
    """Return whether a message is a dead letter of a consumer; only hubs can publish with this origin."""
    return message.origin == DEAD_LETTER and message.publisher == consumer.name


def within(rows: pa.RecordBatch, ranges: Iterable[Range]) -> pa.RecordBatch:
    """Keep the rows whose numbers are in some ranges."""
    seqs = rows.column("seq").to_numpy()
    kept = np.zeros(len(seqs), np.bool_)
    for first, last in ranges:
        kept[np.searchsorted(seqs, first) : np.searchsorted(seqs, last, "right")] = True
    return rows.filter(pa.array(kept))


def _attributes(consumer: Consumer, rows: pa.RecordBatch, tries: int) -> Iterator[dict[str, str]]:
    names = ("attributes", "seq", "topic", "origin")
    for attributes, *was in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        yield {**dict(attributes), **dict(zip(ADDED, map(str, (consumer.name, *was, tries)), strict=True))}
