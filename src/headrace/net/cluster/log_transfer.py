"""Messages on their way from one node's log to another's: the bulk of Prepare and NewState.

What a primary has just numbered, and what a node asks for because it lacks it, is packed with the uuid of the log it is
from (:mod:`headrace.log.replication_frames`). Whoever gets it may have some of it already, or want only the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.cluster import Serve
from headrace.errors import TrimmedError
from headrace.hub.compact_batches import compact
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.log.replication_frames import pack
from headrace.message import Batch
from headrace.wire.parcel.body import NewState, Prepare

SERVE_BYTES: Final = 1 << 20
"""What one NewState carries, about."""


def numbered(hub: Hub, body: Prepare) -> bytes:
    """What a Prepare numbers: this hub has appended it, and not committed it yet."""
    batches = hub.appended_from(body.first)
    return pack(hub.log.uuid, [each for each in batches if each.last <= body.last])


def served(log: Log, asked: Serve) -> tuple[NewState, bytes]:
    """The answer to one who asks for messages, with as many of them as a parcel takes."""
    try:
        read = log.read(asked.first, asked.last, SERVE_BYTES, uncommitted=True)
    except TrimmedError:
        return NewState(asked.view, log.first, log.first - 1, asked.commit), b""
    batches: list[Batch] = []
    for each in read:
        # What was sealed comes with a column for everything: kept like that it would grow from node to node.
        batches += [each] if each.columns is None else compact(each.to_arrow())
    last = batches[-1].last if batches else asked.first - 1
    bulk = pack(log.uuid, batches) if batches else b""
    return NewState(asked.view, asked.first, last, asked.commit), bulk


def between(batches: Sequence[Batch], first: int, last: int) -> Iterator[Batch]:
    """The messages ``first`` to ``last`` of those that have come."""
    for batch in batches:
        begin, end = max(first - batch.first, 0), min(last - batch.first + 1, len(batch))
        if begin < end:
            yield batch if end - begin == len(batch) else batch.slice(begin, end)
