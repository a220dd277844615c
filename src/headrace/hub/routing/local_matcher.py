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
from headrace.matching.owners import Owners
from headrace.message import Batch
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, NODE_ID_BYTES, MatcherPush, msg_id

if TYPE_CHECKING:
    from headrace.matching.tracks import Read

NO_CAP: Final = 1 << 40
"""The log's state is obeyed whatever it holds: the doors refuse what is too much before it is in the log."""

STEP: Final = 1000
"""Subscriptions judged in one step of sorting out."""

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
        self._owners = Owners()
        """The clients of the parts in the index; a client's own id needs no entry."""
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

    def clients_of(self, matches: Matches) -> Matches:
        """The clients of matched parts, each once a message; for any thread."""
        return self._owners.merge(matches)

    def pushes(self, batch: Batch, matches: Matches, *, without: bytes | None) -> Iterator[MatcherPush]:
        """The pushes of a matched batch, in order; clients of the connector ``without`` are left out.

        A push names parts, of which the connector knows the clients.
        """
        if not len(matches.clients):
            return
        clients, numbers = self._owners.number(matches)
        get, find_part = self._subscriptions.get, self._subscriptions.find_part
        # A part may have left the index since; the state still knows its client.
        kept = [get(find_part(client.tobytes())[0]) for client in clients]
        connectors = np.array([b"" if each is None else each.connector for each in kept], _ROUTE["connector"])
        pushed = np.array([each is not None and each.connector != without for each in kept])[numbers]
        routes = np.empty(len(numbers), _ROUTE)
        routes["part"] = matches.clients.view(_ROUTE["part"])[:, 0]
        routes["connector"] = connectors[numbers]
        data = routes[pushed].tobytes()
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(pushed)])[matches.offsets] * _ROUTE.itemsize
        nodes = _nodes(batch)
        for row, (begin, end) in enumerate(pairwise(ends.tolist())):
            if begin != end:
                yield MatcherPush(msg_id(batch.first + row, nodes[row]), batch.run[row], data[begin:end])

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
                    self._subscribe(client, part, each)
                elif not wanted:
                    self._withdraw(part)
            if place % STEP == STEP - 1:
                yield

    def _follow(self, change: SubscriptionChange) -> None:
        client, old, new, changed = change
        # With another connector, or none, all may be wanted now, or none.
        names = changed if old is not None and new is not None and old.connector == new.connector else None
        before = {} if old is None else old.parts(client, names)
        after = {} if new is None or not self._wanted(client, new) else new.parts(client, names)
        for part in before.keys() - after.keys():
            self._withdraw(part)
        for part, each in after.items():
            if before.get(part) != each or part not in self.matcher:
                self._subscribe(client, part, each)

    def _subscribe(self, client: bytes, part: bytes, each: Part) -> None:
        if self.unready:
            return
        if part != client:
            self._owners.add(part, client)
        try:
            self.matcher.subscribe(part, each.predicates)
        except LimitError as error:
            self._withdraw(part)
            logger.error("the subscription %s is not matched: %s", part.hex(), error)

    def _withdraw(self, part: bytes) -> None:
        self.matcher.withdraw(part)
        self._owners.release(part)


def add_row(rows: Rows, row: int, *labels: Label) -> None:
    """Note that a message is for a client, and what it is told of it: of an unnamed subscription nothing."""
    rows[row] = tuple(sorted({*rows.get(row, ()), *(label for label in labels if label != UNNAMED)}))


def mark(seq: int, node: int) -> MatcherPush:
    """A push to nobody: the matcher with this node id has pushed everything up to ``seq``."""
    return MatcherPush(msg_id(seq, node))


def _nodes(batch: Batch) -> list[int]:
    """The node that numbered each message."""
    if batch.columns is not None and "node" in batch.columns.schema.names:
        nodes: list[int] = batch.columns.column("node").to_pylist()
        return nodes
    return [batch.node] * len(batch)
