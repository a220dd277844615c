"""Packs and unpacks what a hub passes on to the hub that numbers messages: messages and log entries in any order.

Batches are packed as nodes pack their logs (:mod:`~headrace.log.replication_frames`), as if they were a whole log:
counted from 1 on, without time and node. The numbering hub numbers and stamps them, and adds a mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

import pyarrow.compute as pc

from headrace.errors import MalformedError
from headrace.log.replication_frames import pack, unpack
from headrace.message import NOT_A_MESSAGE, Batch


def pack_passed(uuid: UUID, batches: Sequence[Batch]) -> bytes:
    """Pack batches for the hub that numbers the log ``uuid``."""
    return pack(uuid, list(_counted(batches)))


def unpack_passed(body: memoryview, rows: int) -> tuple[UUID, list[Batch]]:
    """Unpack the uuid of the log, and batches that have ``rows`` rows in all."""
    try:
        uuid, batches = unpack(bytes(body), 1, rows)
    except MalformedError as error:
        raise MalformedError("link", "body", error.value, error.limit) from None
    for batch in batches:
        if batch.columns is not None and "origin" in batch.columns.schema.names:
            origins = column_texts(batch, "origin")
            if batch.is_entries or NOT_A_MESSAGE in origins:
                raise MalformedError(
                    "link", "body", origins, "messages and log entries in batches of their own"
                )
    return uuid, batches


def column_texts(batch: Batch, name: str) -> list[str]:
    """Return the distinct values of a text column of a batch."""
    if batch.columns is None or name not in batch.columns.schema.names:
        value: str = getattr(batch, name)
        return [value]
    distinct: list[str] = batch.columns.column(name).unique().to_pylist()
    return distinct


def number_range(batch: Batch) -> tuple[int, int] | None:
    """Return the lowest and the highest publisher's number in a batch, if it has any."""
    if batch.columns is None or "number" not in batch.columns.schema.names:
        return None if batch.number is None else (batch.number, batch.number + len(batch) - 1)
    found = pc.min_max(batch.columns.column("number")).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def _counted(batches: Sequence[Batch]) -> Iterator[Batch]:
    op, last = 1, 0
    for batch in batches:
        counted = batch.numbered(op, last if batch.is_entries else last + 1, 0, 0)
        op, last = counted.last_op + 1, counted.last
        yield counted
