"""This process's own matcher: the index of its share of the subscriptions, and its pushes to others.

Its owner decides which subscriptions those are (``wanted``): all at the process's own connector and, if there are
connectors elsewhere, the share that the ring gives to this matcher. For clients elsewhere it makes one push per
message, and a mark after each batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from zlib import crc32

import numpy as np

from headrace.errors import LimitError
from headrace.hub.routing.client_session import Rows
from headrace.hub.routing.subscription_parts import (
    UNNAMED,
    Label,
    Part,
    Subscription,
)
from headrace.hub.routing.subscriptions import (
    SubscriptionChange,
    Subscriptions,
)
from headrace.matching import FENCE_WINDOW, Matcher, Matches
from headrace.matching.index.grouping import radix_order
from headrace.matching.owners import merge_owners, number_owners
from headrace.message import Batch
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, NODE_ID_BYTES, MatcherPush, msg_id

if TYPE_CHECKING:
    from headrace.matching.tracks import Read

NO_CAP: Final = 1 << 40
"""No limit: everything in the log's state is matched, since the doors refuse excess before it gets into the log."""

STEP: Final = 1000
"""Number of subscriptions that are judged in one step of sorting out."""

_ROUTE: Final = np.dtype([("part", f"V{CLIENT_ID_BYTES}"), ("connector", f"S{NODE_ID_BYTES}")])
"""Where a push goes: a part, and the connector of its client."""

logger = logging.getLogger("headrace")


class LocalMatcher:
    """An index over some of the subscriptions, kept up with the state; :meth:`sort_out` takes in older ones."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        wanted: Callable[[bytes, Subscription], bool],
        *,
        json_attributes: bool = False,
        window: int = FENCE_WINDOW,
        read: Read | None = None,
    ) -> None:
        """``window`` and ``read`` are for fences, as for :class:`~headrace.matching.Matcher`."""
        self.matcher = Matcher(
            max_subscriptions=NO_CAP,
            max_predicates=NO_CAP,
            json_attributes=json_attributes,
            window=window,
            read=read,
        )
        self.unready = False
        """Whether the matcher cannot be used yet. After resetting it, sort everything out."""
        self._subscriptions = subscriptions
        self._wanted = wanted
        subscriptions.observers.append(self._follow)

    def __len__(self) -> int:
        return len(self.matcher)

    def pieces(self, batch: Batch, *, record: bool = True) -> Iterator[tuple[Batch, Matches]]:
        """Yield the clients of each message of a batch, some messages at a time; for any thread.

        Fences ignore messages that are not to be ``record``-ed, since those are not in the log.
        """
        for begin, matches in self.matcher.pieces(batch, record=record):
            yield batch.slice(begin, begin + len(matches)), matches

    def clients_of(self, matches: Matches) -> Matches:
        """The clients of matched parts, each once a message; for any thread."""
        return merge_owners(matches)

    def pushes(self, batch: Batch, matches: Matches, *, without: bytes | None) -> Iterator[MatcherPush]:
        """Return the pushes of a matched batch, in order; clients of the connector ``without`` are left out.

        A push names parts; the connector knows their clients.
        """
        return (push for _, push in self.shares(batch, matches, 1, without=without))

    def shares(
        self, batch: Batch, matches: Matches, shares: int, *, without: bytes | None
    ) -> Iterator[tuple[int, MatcherPush]]:
        """Return the same, with each push divided by shares of the clients; a client is in one share."""
        if not len(matches.clients):
            return
        clients, numbers = number_owners(matches)
        ids = [client.tobytes() for client in clients]
        kept = [self._subscriptions.get(client) for client in ids]
        connectors = np.array([b"" if each is None else each.connector for each in kept], _ROUTE["connector"])
        pushed = np.array([each is not None and each.connector != without for each in kept])[numbers]
        share = np.array([crc32(client) % shares for client in ids], np.uint64)
        hits = np.flatnonzero(pushed).astype(np.int32)
        if not len(hits):
            return
        # Hits are in the order of messages: each hit's place among the pushes is its message, then its share.
        rows = np.repeat(np.arange(len(matches), dtype=np.uint64), np.diff(matches.offsets))
        places = rows * np.uint64(shares) + share[numbers]
        if shares > 1:
            hits = radix_order(places, hits)
        routes = np.empty(len(hits), _ROUTE)
        routes["part"] = matches.clients.view(_ROUTE["part"])[hits, 0]
        routes["connector"] = connectors[numbers[hits]]
        data, nodes = routes.tobytes(), _nodes(batch)
        begins = np.flatnonzero(np.diff(places[hits], prepend=~np.uint64(0)))
        ends = np.append(begins[1:], len(hits)) * _ROUTE.itemsize
        found = zip(
            places[hits[begins]].tolist(), (begins * _ROUTE.itemsize).tolist(), ends.tolist(), strict=True
        )
        for place, begin, end in found:
            row, number = divmod(place, shares)
            yield number, MatcherPush(msg_id(batch.first + row, nodes[row]), batch.run[row], data[begin:end])

    def rows(self, client: bytes, batch: Batch) -> Rows:
        """Return the places of a batch's messages that are for one client; for any thread."""
        kept = self._subscriptions.get(client)
        parts = {} if kept is None else kept.parts(client)
        matches = self.matcher.match_some(parts, batch)
        found: Rows = {}
        for row in np.flatnonzero(np.diff(matches.offsets)).tolist():
            add_row(found, row, *(parts[part].label for part in matches[row]))
        return found

    def sort_out(self) -> Iterator[None]:
        """Judge again which subscriptions are wanted, some at each step, after the basis of ``wanted`` has changed."""
        for place, client in enumerate(list(self._subscriptions.clients())):
            subscription = self._subscriptions.get(client)
            if subscription is None:
                continue  # It was withdrawn meanwhile, here as well.
            wanted = self._wanted(client, subscription)
            for part, each in subscription.parts(client).items():
                if wanted and part not in self.matcher:
                    self._subscribe(client, part, each)
                elif not wanted:
                    self.matcher.withdraw(part)
            if place % STEP == STEP - 1:
                yield

    def _follow(self, change: SubscriptionChange) -> None:
        client, old, new, changed = change
        # With another connector, or none, all may be wanted now, or none.
        names = changed if old is not None and new is not None and old.connector == new.connector else None
        before = {} if old is None else old.parts(client, names)
        after = {} if new is None or not self._wanted(client, new) else new.parts(client, names)
        for part in before.keys() - after.keys():
            self.matcher.withdraw(part)
        for part, each in after.items():
            if before.get(part) != each or part not in self.matcher:
                self._subscribe(client, part, each)

    def _subscribe(self, client: bytes, part: bytes, each: Part) -> None:
        if self.unready:
            return
        try:
            self.matcher.subscribe(part, each.predicates, None if part == client else client)
        except LimitError as error:
            self.matcher.withdraw(part)
            logger.error("the subscription %s is not matched: %s", part.hex(), error)


def add_row(rows: Rows, row: int, *labels: Label) -> None:
    """Note that a message is for a client, and the label that goes with it: none for an unnamed subscription."""
    rows[row] = tuple(sorted({*rows.get(row, ()), *(label for label in labels if label != UNNAMED)}))


def mark(seq: int, node: int) -> MatcherPush:
    """Make a mark: a push to nobody; the matcher with this node id has pushed everything up to ``seq``."""
    return MatcherPush(msg_id(seq, node))


def _nodes(batch: Batch) -> list[int]:
    """Return the node that numbered each message."""
    if batch.columns is not None and "node" in batch.columns.schema.names:
        nodes: list[int] = batch.columns.column("node").to_pylist()
        return nodes
    return [batch.node] * len(batch)
