"""A share of the subscriptions at one point of the sequence, for one task.

Clients are distributed by the ring (:class:`headrace.matching.Ring`), on which each share has 16 evenly spaced
positions, so that shares are about equal. A share goes through the sequence message by message, which the hub's own
engine matches. An entry that changes a subscription has no number: it stands after a message, and counts for exactly
the messages after that one. So messages and entries come by two streams, and the entries' numbers merge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import WireError
from headrace.hub.routing.local_matcher import LocalMatcher, pushes
from headrace.hub.routing.subscriptions import PART, Subscriptions, rows_of_tables
from headrace.matching import Ring, warm
from headrace.matching.ring import PLACE_BYTES, VNODES
from headrace.message import Batch
from headrace.spark.jobs.match.tables import SubscriptionTable
from headrace.wire.attribute.messages import MatcherPush
from headrace.wire.sdk.auth import parse_client_id

ENTRIES: Final = f"{PART}/*"
"""The topics of the entries that change subscriptions."""


def ring(shares: int) -> Ring:
    """Make a ring of so many shares, whose names order them."""
    ring = Ring()
    step = (1 << 8 * PLACE_BYTES) // (VNODES * shares)
    for share in range(shares):
        ring.join(f"{share:08d}", (share * step).to_bytes(PLACE_BYTES))
    return ring


class Change(NamedTuple):
    """An entry that changes a client's subscription: after message ``seq``, at the log's own position ``op``."""

    seq: int
    op: int
    client: str
    payload: bytes


class Changes:
    """The changes of a range, in order; each is taken once, when the messages before it have been matched."""

    def __init__(self, entries: Iterable[pa.RecordBatch] = ()) -> None:
        """``entries`` are rows as the link's ``entries`` request gives them."""
        self._coming = _changes(entries)
        self._begun = False
        self._next: Change | None = None

    def before(self, seq: int) -> Iterator[Change]:
        """Take the changes that count for message ``seq`` and were not taken yet."""
        if not self._begun:
            self._begun, self._next = True, next(self._coming, None)
        while self._next is not None and self._next.seq < seq:
            yield self._next
            self._next = next(self._coming, None)


class Share:
    """Share ``number`` of ``shares``, as it is for message ``place``: with every entry before it."""

    def __init__(self, table: SubscriptionTable, number: int, shares: int, *, json_attributes: bool) -> None:
        self.place = table.seq
        self.op = table.op
        """The log's own position up to which the share has every entry; a table may have some of after its message."""
        self.changed = table.seq
        """The message that the last change stands after: the share is the same for all after it, up to ``place``."""
        self.matched = 0
        """Messages matched, and clients found."""
        self.found = 0
        # A task has much to match: compiled code is worth waiting for.
        warm()
        self._ring = ring(shares)
        self._number = number
        self._subscriptions = Subscriptions()
        self._matching = LocalMatcher(
            self._subscriptions, lambda _client, _subscription: True, json_attributes=json_attributes
        )
        self._subscriptions.add(rows_of_tables(map(self._own, table.rows.to_batches())))
        self._matching.matcher.rebuild(everything=True)

    def __len__(self) -> int:
        return len(self._subscriptions)

    def pushes(self, rows: pa.RecordBatch, changes: Changes) -> Iterator[MatcherPush]:
        """Match the next messages, which have no gap; yield the pushes to the share's clients.

        ``changes`` go on from ``op``.
        """
        first, last = rows.column("seq")[0].as_py(), rows.column("seq")[-1].as_py()
        begin = 0
        for change in changes.before(last):
            if not self._owns(change.client):
                continue
            end = max(change.seq - first + 1, 0)
            yield from self._match(rows.slice(begin, end - begin))
            self._subscriptions.apply(change.client, change.payload, change.seq, change.op)
            self.changed, begin = change.seq, end
        yield from self._match(rows.slice(begin))
        self.place = max(self.place, last)
        if self._matching.matcher.rebuild_due:
            self._matching.matcher.rebuild()

    def _match(self, rows: pa.RecordBatch) -> Iterator[MatcherPush]:
        if not rows.num_rows or not len(self._matching):
            return
        for batch, matches in self._matching.pieces(Batch.over(rows)):
            self.matched += len(batch)
            self.found += len(matches.clients)
            yield from pushes(batch, matches, self._subscriptions, without=None)

    def _owns(self, name: str) -> bool:
        try:
            client = parse_client_id(name)
        except WireError:
            return False
        return int(self._ring.owner(client)) == self._number

    def _own(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        clients = np.frombuffer(bytes.fromhex("".join(rows.column("client").to_pylist())), np.uint8)
        owners = self._ring.owners(clients.reshape(rows.num_rows, -1))
        return rows.filter(pa.array(owners == self._number))


def _changes(entries: Iterable[pa.RecordBatch]) -> Iterator[Change]:
    for rows in entries:
        columns = (rows.column(name).to_pylist() for name in ("seq", "op", "topic", "payload"))
        for seq, op, topic, payload in zip(*columns, strict=True):
            part, _, client = topic.partition("/")
            if part == PART:
                yield Change(seq, op, client, payload)
