"""Splits merged rows into the compact batches that they were before.

A hub that follows another gets the messages of many publishers as one body of rows. Without splitting, every row would
have its own origin, publisher, topic and time in the log. So rows are split where these change, if that pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.message import Batch

_SHARED: Final = ("origin", "publisher", "topic", "time", "node")
_WORTH: Final = 8
"""Average rows per piece below which one batch with columns is smaller and quicker."""
_FEW: Final = 8
"""With fewer cuts than this, splitting always pays."""


def compacted(batch: Batch) -> Iterator[Batch]:
    """Give a batch that was read from a log its compact form: sealed messages have a column for everything."""
    if batch.columns is None or batch.is_entries:
        yield batch
        return
    op = batch.op
    for each in compact(batch.to_arrow()):
        # Rows of one batch stay together.
        inner = batch.tied is not None and op + len(each) - 1 < batch.last_op
        yield replace(each, op=op, tied=inner or batch.tied)
        op += len(each)


def compact(rows: pa.RecordBatch, op: int = 0) -> list[Batch]:
    """Split numbered messages in the envelope's schema into batches, in order; ``op`` is the first one's position."""
    count = rows.num_rows
    if count == 1:
        return [_batch(rows, op)]
    changes = np.zeros(count - 1, np.bool_)
    for name in _SHARED:
        column = rows.column(name)
        if pa.types.is_string(column.type):
            values = column.dictionary_encode().indices.to_numpy()
        else:
            values = column.cast(pa.int64()).to_numpy()
        changes |= values[1:] != values[:-1]
    cuts = np.flatnonzero(changes) + 1
    if not len(cuts) or (len(cuts) >= _FEW and (len(cuts) + 1) * _WORTH > count):
        return [_batch(rows, op)]
    edges = [0, *cuts.tolist(), count]
    return [_batch(rows.slice(begin, end - begin), op and op + begin) for begin, end in pairwise(edges)]


def _batch(rows: pa.RecordBatch, op: int) -> Batch:
    return replace(Batch.from_arrow(rows), op=op)
