"""All subscriptions at one point of the sequence: the index that a task matches its part of the sequence with.

An index goes through the sequence message by message, which the hub's own engine matches; it may skip messages, but no
change. An entry that changes a subscription has no number: it stands after a message, and counts for exactly the
messages after that one. So messages and entries come by two streams, and the entries' numbers merge them.

Making one takes long where there are many subscriptions. So a Python process keeps its newest one from task to task
(:func:`take_index`, :func:`keep_index`), and then only changed subscriptions are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.archive.folder import Folder
from headrace.errors import LostRangeError, TrimmedError, UsageError
from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.routing.subscriptions import (
    PART,
    Subscriptions,
    rows_of_tables,
)
from headrace.matching import FENCE_WINDOW, warm
from headrace.message import Batch
from headrace.spark.hub_connections import link, wait_for_head
from headrace.spark.jobs.match.past import Past
from headrace.spark.jobs.match.tables import SubscriptionTable, SubscriptionTables
from headrace.spark.options import HubOptions, SourceOptions
from headrace.spark.source.range_rows import REWOUND, TRIMMED, LogRange, another_log
from headrace.wire.attribute.messages import MatcherPush

ENTRIES: Final = f"{PART}/*"
"""The topics of the entries that change subscriptions."""


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

    def begin(self) -> None:
        """Read the first change; raises if the log no longer has it."""
        if not self._begun:
            self._begun, self._next = True, next(self._coming, None)

    def before(self, seq: int) -> Iterator[Change]:
        """Take the changes that count for message ``seq`` and were not taken yet."""
        self.begin()
        while self._next is not None and self._next.seq < seq:
            yield self._next
            self._next = next(self._coming, None)


class SubscriptionIndex:
    """All subscriptions, as they are for message ``place``: with every entry before it."""

    def __init__(
        self,
        table: SubscriptionTable,
        *,
        json_attributes: bool = False,
        fence_window: int = FENCE_WINDOW,
        past: Past | None = None,
    ) -> None:
        """``past`` reads what fences have to know of before the messages in hand."""
        self.place = table.seq
        self.op = table.op
        """The log's own position up to which the index has every entry; a table may have some of after its message."""
        self.changed = table.seq
        """The message that the last change stands after: the index is the same for all after it, up to ``place``."""
        self.found = 0
        """Clients found so far."""
        # A task has much to match: compiled code is worth waiting for.
        warm()
        self.subscriptions = Subscriptions()
        self._matching = LocalMatcher(
            self.subscriptions,
            lambda _client, _subscription: True,
            json_attributes=json_attributes,
            window=fence_window,
            read=past,
        )
        self.subscriptions.add(rows_of_tables(table.rows.to_batches()))
        self._matching.matcher.rebuild(everything=True)

    def __len__(self) -> int:
        return len(self.subscriptions)

    def pushes(
        self, rows: pa.RecordBatch, changes: Changes, shares: int
    ) -> Iterator[tuple[int, MatcherPush]]:
        """Match the next messages, which have no gap; yield the pushes to each share of their clients.

        ``changes`` go on from ``op``.
        """
        first, last = rows.column("seq")[0].as_py(), rows.column("seq")[-1].as_py()
        begin = 0
        for change in changes.before(last):
            end = max(change.seq - first + 1, 0)
            yield from self._match(rows.slice(begin, end - begin), shares)
            self.subscriptions.apply(change.client, change.payload, change.seq, change.op)
            self.changed, begin = change.seq, end
        yield from self._match(rows.slice(begin), shares)
        self.place = max(self.place, last)
        if self._matching.matcher.rebuild_due:
            self._matching.matcher.rebuild()

    def _match(self, rows: pa.RecordBatch, shares: int) -> Iterator[tuple[int, MatcherPush]]:
        if not rows.num_rows or not len(self._matching):
            return
        for batch, matches in self._matching.pieces(Batch.over(rows)):
            self.found += len(matches.clients)
            yield from self._matching.shares(batch, matches, shares, without=None)


_kept: dict[tuple[str, str], SubscriptionIndex] = {}
_keeping = threading.Lock()


def take_index(
    access: HubOptions,
    span: LogRange,
    tables: str,
    *,
    json_attributes: bool = False,
    fence_window: int = FENCE_WINDOW,
) -> tuple[SubscriptionIndex, Changes]:
    """Return an index that has no change after the beginning of a range, and the changes that it lacks.

    It is the one that the process has kept, or made from a table; no other task has it. :func:`keep_index` gives it
    back.
    """
    with _keeping:
        kept = _kept.pop((span.log, tables), None)
    if kept is not None and kept.changed < span.first:
        changes = Changes(_entries(access, span, kept))
        try:
            changes.begin()
        except LostRangeError:
            # The process had nothing to do for so long that retention went by; a table may be newer.
            kept = None
        else:
            return kept, changes
    table = SubscriptionTables(Folder.at(tables)).find(span.first - 1)
    past = Past(SourceOptions(access), span)
    index = SubscriptionIndex(table, json_attributes=json_attributes, fence_window=fence_window, past=past)
    return index, Changes(_entries(access, span, index))


def keep_index(span: LogRange, tables: str, index: SubscriptionIndex) -> None:
    """Keep an index for the next task of this process; of two, the one that is further."""
    with _keeping:
        other = _kept.get((span.log, tables))
        if other is None or other.op <= index.op:
            _kept.clear()  # What is there else is of another run.
            _kept[span.log, tables] = index


def forget_indexes() -> None:
    """Forget what the process has kept."""
    with _keeping:
        _kept.clear()


def _entries(access: HubOptions, span: LogRange, index: SubscriptionIndex) -> Iterator[pa.RecordBatch]:
    """Read the entries of subscriptions that count for a range and that an index does not have; it then has them."""
    # An entry after the last message counts only for what comes later, and more may follow it.
    first, last = index.place, span.last - 1
    if first > last:
        return
    with link(access) as client:
        if client.log != span.log:
            raise UsageError(another_log(span.log, client.log))
        # Only a hub that has the message after them has them all.
        head = wait_for_head(client, span.last, access).head
        if head < span.last:
            raise LostRangeError(head + 1, span.last, REWOUND)
        # From a position: of the entries after the index's message some may be gone, and others not.
        stream = client.entries(first, last, topic=ENTRIES, from_op=index.op + 1)
        try:
            yield from stream
        except TrimmedError as trimmed:
            raise LostRangeError(first, max(trimmed.oldest - 1, first), TRIMMED) from None
        # That is where the range's last message is, which is no entry.
        index.op = stream.position or index.op


def _changes(entries: Iterable[pa.RecordBatch]) -> Iterator[Change]:
    for rows in entries:
        columns = (rows.column(name).to_pylist() for name in ("seq", "op", "topic", "payload"))
        for seq, op, topic, payload in zip(*columns, strict=True):
            part, _, client = topic.partition("/")
            # Without a client it is a connector's sign of life.
            if part == PART and client:
                yield Change(seq, op, client, payload)
