"""This process's own matcher: the index of the subscriptions that are its to match, and what it pushes to others.

Its owner says which subscriptions those are (``wanted``): all that are at the process's own connector and, where there
are connectors elsewhere, the share that the ring gives to this matcher. For clients elsewhere it makes one push a
message, and a mark after each batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from headrace.errors import LimitError
from headrace.hub.routing.subscriptions import Subscription, SubscriptionChange, Subscriptions
from headrace.matching import Matcher, Matches
from headrace.message import Batch
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, MatcherPush, msg_id

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
    ) -> None:
        self.matcher = Matcher(
            max_subscriptions=NO_CAP, max_predicates=NO_CAP, json_attributes=json_attributes
        )
        self.unready = False
        """Whether the matcher cannot be used yet. After resetting it, sort everything out."""
        self._subscriptions = subscriptions
        self._wanted = wanted
        subscriptions.observers.append(self._follow)

    def __len__(self) -> int:
        return len(self.matcher)

    def pieces(self, batch: Batch) -> Iterator[tuple[Batch, Matches]]:
        """The clients of each message of a batch, some messages at a time; for any thread."""
        for begin, matches in self.matcher.pieces(batch):
            yield batch.slice(begin, begin + len(matches)), matches

    def rows(self, client: bytes, batch: Batch) -> list[int]:
        """The places of the messages in a batch that are for one client; for any thread."""
        found: list[int] = np.flatnonzero(self.matcher.matches(client, batch)).tolist()
        return found

    def sort_out(self) -> Iterator[None]:
        """Judge anew which subscriptions are wanted, some at each step, after what ``wanted`` goes by has changed."""
        for place, client in enumerate(list(self._subscriptions.clients())):
            subscription = self._subscriptions.get(client)
            if subscription is None:
                continue  # It was withdrawn meanwhile, here as well.
            wanted = self._wanted(client, subscription)
            if wanted and client not in self.matcher:
                self._subscribe(client, subscription)
            elif not wanted and client in self.matcher:
                self.matcher.withdraw(client)
            if place % STEP == STEP - 1:
                yield

    def _follow(self, change: SubscriptionChange) -> None:
        client, _, new = change
        if new is None or not self._wanted(client, new):
            self.matcher.withdraw(client)
        elif not (change.same_fields and client in self.matcher):
            self._subscribe(client, new)

    def _subscribe(self, client: bytes, subscription: Subscription) -> None:
        if self.unready:
            return
        try:
            self.matcher.subscribe(client, subscription.predicates)
        except LimitError as error:
            self.matcher.withdraw(client)
            logger.error("the subscription of %s is not matched: %s", client.hex(), error)


def pushes(
    batch: Batch, matches: Matches, subscriptions: Subscriptions, *, without: bytes | None
) -> Iterator[MatcherPush]:
    """The pushes of a matched batch, in order; clients of the connector ``without`` are left out."""
    if not len(matches.clients):
        return
    get = subscriptions.get
    ids = matches.clients.tobytes()
    nodes = _nodes(batch)
    for row, (begin, end) in enumerate(pairwise((matches.offsets * CLIENT_ID_BYTES).tolist())):
        routes = []
        for at in range(begin, end, CLIENT_ID_BYTES):
            client = ids[at : at + CLIENT_ID_BYTES]
            kept = get(client)
            if kept is not None and kept.connector != without:
                routes.append(client + kept.connector)
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
