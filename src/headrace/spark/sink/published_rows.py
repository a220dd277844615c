"""Convert rows of a DataFrame to rows to be published, and to the bodies in which they are staged.

Rows with a payload alone go to the network from Arrow's own memory, several of Spark's batches in one body
(:class:`~headrace.client.link.stager.PayloadGatherer`). Others are converted by Arrow, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.link.rows import check_text, published_rows
from headrace.client.link.stager import PayloadGatherer, pieces
from headrace.errors import UsageError
from headrace.message import Run
from headrace.wire.link.message import PUBLISHED, Buffer, body_of


def bodies(batches: Iterable[pa.RecordBatch], topic: str) -> Iterator[list[Buffer]]:
    """Convert the sink's rows to bodies, in parts; refuse what :func:`published` does."""
    check_text("a topic", topic)
    gathered = PayloadGatherer(topic)
    for rows in batches:
        if not rows.num_rows:
            continue
        if rows.schema.names == ["payload"]:
            column = _whole(rows.column(0), "payload").cast(PUBLISHED.field("payload").type)
            yield from gathered.add(Run.from_arrow(column))
        else:
            for piece in pieces(published(rows, topic)):
                yield [body_of(piece)]
    yield from gathered.rest()


def published(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Convert the sink's rows to the schema of rows to be published.

    ``topic`` is for rows that have none. A null payload, service or map value is an error.
    """
    columns: dict[str, Any] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        match name:
            case "service":
                columns["topic"] = _whole(column, name)
            case "topic":
                columns["topic"] = pc.fill_null(column, topic) if column.null_count else column
            case "payload":
                columns[name] = _whole(column, name)
            case _:
                columns[name] = _maps(column, name)
    return published_rows(pa.RecordBatch.from_pydict(columns), topic)


def _whole(column: pa.Array, name: str) -> pa.Array:
    if column.null_count:
        raise UsageError(f"column {name} is null in {column.null_count} rows: leave them out with where()")
    return column


def _maps(column: pa.Array, name: str) -> pa.Array:
    kind = PUBLISHED.field(name).type
    column = column.cast(kind)
    if column.null_count:
        # A null row may still have entries between its offsets: replace it by an empty map.
        column = pc.if_else(pc.is_valid(column), column, pa.scalar([], kind))
    begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    if column.items.slice(begin, end - begin).null_count:
        raise UsageError(f"column {name} has null values: leave them out with map_filter()")
    return column
