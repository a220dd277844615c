"""This process's own matcher: the index of the subscriptions that are its to match, and what it pushes to others.

Its owner says which subscriptions those are (``wanted``): all that are at the process's own connector and, where there
are connectors elsewhere, the share that the ring gives to this matcher. For clients elsewhere it makes one push a
message, and a mark after each batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

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
from headrace.message import Batch
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, MatcherPush, msg_id

if TYPE_CHECKING:
    from headrace.matching.tracks import Read

NO_CAP: Final = 1 << 40
"""The log's state is obeyed whatever it holds: the doors refuse what is too much before it is in the log."""

STEP: Final = 1000
"""Subscriptions judged in one step of sorting out."""

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
        """The clients of each message of a batch, some messages at a time; for any thread.

        Fences take no notice of messages that are not to be ``record``-ed: those that are not in the log.
        """
        for begin, matches in self.matcher.pieces(batch, record=record):
            yield batch.slice(begin, begin + len(matches)), matches

    def rows(self, client: bytes, batch: Batch) -> Rows:
        """The places of the messages in a batch that are for one client; for any thread."""
        kept = self._subscriptions.get(client)
        parts = {} if kept is None else kept.parts(client)
        matches = self.matcher.match_some(parts, batch)
        found: Rows = {}
        for row in np.flatnonzero(np.diff(matches.offsets)).tolist():
            add_row(found, row, *(parts[part].label for part in matches[row]))
        return found

    def sort_out(self) -> Iterator[None]:
        """Judge anew which subscriptions are wanted, some at each step, after what ``wanted`` goes by has changed."""
        for place, client in enumerate(list(self._subscriptions.clients())):
            subscription = self._subscriptions.get(client)
            if subscription is None:
                continue  # It was withdrawn meanwhile, here as well.
            wanted = self._wanted(client, subscription)
            for part, each in subscription.parts(client).items():
                if wanted and part not in self.matcher:
                    self._subscribe(part, each)
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
                self._subscribe(part, each)

    def _subscribe(self, part: bytes, each: Part) -> None:
        if self.unready:
            return
        try:
            self.matcher.subscribe(part, each.predicates)
        except LimitError as error:
            self.matcher.withdraw(part)
            logger.error("the subscription %s is not matched: %s", part.hex(), error)


def add_row(rows: Rows, row: int, *labels: Label) -> None:
    """Note that a message is for a client, and what it is told of it: of an unnamed subscription nothing."""
    rows[row] = tuple(sorted({*rows.get(row, ()), *(label for label in labels if label != UNNAMED)}))


def clients_of(matches: Matches, subscriptions: Subscriptions) -> Matches:
    """The clients of matched parts, each once a message."""
    if not subscriptions.has_parts:
        return matches
    ids, owners = matches.clients.tobytes(), subscriptions.owners
    each = [ids[at : at + CLIENT_ID_BYTES] for at in range(0, len(ids), CLIENT_ID_BYTES)]
    each = [owners[part][0] if part in owners else part for part in each]
    found = [dict.fromkeys(each[begin:end]) for begin, end in pairwise(matches.offsets.tolist())]
    offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
    clients = b"".join(client for some in found for client in some)
    return Matches(offsets, np.frombuffer(clients, np.uint8).reshape(-1, CLIENT_ID_BYTES))


def pushes(
    batch: Batch, matches: Matches, subscriptions: Subscriptions, *, without: bytes | None
) -> Iterator[MatcherPush]:
    """The pushes of a matched batch, in order; clients of the connector ``without`` are left out.

    A push names parts, of which the connector knows the clients.
    """
    if not len(matches.clients):
        return
    get, find_part = subscriptions.get, subscriptions.find_part
    ids = matches.clients.tobytes()
    nodes = _nodes(batch)
    for row, (begin, end) in enumerate(pairwise((matches.offsets * CLIENT_ID_BYTES).tolist())):
        routes = []
        for at in range(begin, end, CLIENT_ID_BYTES):
            part = ids[at : at + CLIENT_ID_BYTES]
            kept = get(find_part(part)[0])
            if kept is not None and kept.connector != without:
                routes.append(part + kept.connector)
        if routes:
            yield MatcherPush(msg_id(batch.first + row, nodes[row]), batch.run[row], b"".join(routes))


def mark(seq: int, node: int) -> MatcherPush:
    """A push to nobody: the matcher with this node id has pushed everything up to ``seq``."""
    return MatcherPush(msg_id(seq, node))


def _nodes(batch: Batch) -> list[int]:
    """The node that numbered each message."""
    if batch.columns is not None and "node" in batch.columns.schema.names:
        nodes: list[int] = batch.columns.column("node").to_pylist()
        return nodes
    return [batch.node] * len(batch)
