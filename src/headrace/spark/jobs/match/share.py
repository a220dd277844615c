"""A share of the subscriptions at one point of the sequence, for one task.

Clients are distributed by the ring (:class:`headrace.matching.Ring`), on which each share has 16 evenly spaced
positions, so that shares are about equal. A share goes through the sequence row by row: messages are matched by the
hub's own engine, and an entry that changes a subscription takes effect at once, for exactly the messages after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import WireError
from headrace.hub.routing.local_matcher import LocalMatcher, pushes
from headrace.hub.routing.subscriptions import PART, Subscriptions
from headrace.matching import Ring
from headrace.matching.ring import PLACE_BYTES, VNODES
from headrace.message import NOT_A_MESSAGE, Batch
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


class Share:
    """Share ``number`` of ``shares``, with all entries up to ``place``."""

    def __init__(self, table: SubscriptionTable, number: int, shares: int, *, json_attributes: bool) -> None:
        self.place = table.seq
        self.changed = table.seq
        """The last entry that changed the share: it is the same from there to ``place``."""
        self.matched = 0
        """Messages matched, and clients found."""
        self.found = 0
        self._ring = ring(shares)
        self._number = number
        self._subscriptions = Subscriptions()
        self._matching = LocalMatcher(
            self._subscriptions, lambda _client, _subscription: True, json_attributes=json_attributes
        )
        for rows in table.rows.to_batches():
            self._load(rows)
        self._matching.matcher.rebuild(everything=True)

    def __len__(self) -> int:
        return len(self._subscriptions)

    def pushes(self, rows: pa.RecordBatch) -> Iterator[MatcherPush]:
        """Match the next rows of the sequence, entries included; yield the pushes to the share's clients."""
        begin = 0
        for at in _changes(rows):
            client = self._own(rows, at)
            if client is None:
                continue
            yield from self._match(rows.slice(begin, at - begin))
            self._apply(client, rows, at)
            begin = at + 1
        yield from self._match(rows.slice(begin))
        self.place = rows.column("seq")[-1].as_py()
        if self._matching.matcher.rebuild_due:
            self._matching.matcher.rebuild()

    def follow(self, entries: pa.RecordBatch) -> None:
        """Apply entries, without the messages between them."""
        for at in _changes(entries):
            client = self._own(entries, at)
            if client is not None:
                self._apply(client, entries, at)

    def _match(self, rows: pa.RecordBatch) -> Iterator[MatcherPush]:
        if not rows.num_rows or not len(self._matching):
            return
        for batch, matches in self._matching.pieces(Batch.over(rows)):
            self.matched += len(batch)
            self.found += len(matches.clients)
            yield from pushes(batch, matches, self._subscriptions, without=None)

    def _own(self, rows: pa.RecordBatch, at: int) -> str | None:
        """Return the client of an entry, if it is one of this share's."""
        name: str = rows.column("topic")[at].as_py().partition("/")[2]
        try:
            client = parse_client_id(name)
        except WireError:
            return None
        return name if int(self._ring.owner(client)) == self._number else None

    def _apply(self, client: str, rows: pa.RecordBatch, at: int) -> None:
        self.changed = rows.column("seq")[at].as_py()
        self._subscriptions.apply(client, rows.column("payload")[at].as_py(), self.changed)

    def _load(self, rows: pa.RecordBatch) -> None:
        clients = np.frombuffer(bytes.fromhex("".join(rows.column("client").to_pylist())), np.uint8)
        owners = self._ring.owners(clients.reshape(rows.num_rows, -1))
        own = rows.filter(pa.array(owners == self._number))
        columns = (own.column(name).to_pylist() for name in ("client", "connector", "seq", "fields"))
        self._subscriptions.add(
            (bytes.fromhex(client), connector.encode(), seq, msgspec.json.encode(dict(fields)))
            for client, connector, seq, fields in zip(*columns, strict=True)
        )


def _changes(rows: pa.RecordBatch) -> list[int]:
    """Find the rows of entries that change subscriptions."""
    is_entry = pc.equal(rows.column("origin"), NOT_A_MESSAGE)
    if not pc.any(is_entry).as_py():
        return []
    changes = pc.and_(is_entry, pc.starts_with(rows.column("topic"), f"{PART}/"))
    found: list[int] = np.flatnonzero(changes.to_numpy(zero_copy_only=False)).tolist()
    return found
