"""The hub's own matching: the index of the subscriptions that are this process's to match, kept up with the state.

Which those are is the owner's to say (``wanted``): all that are at the process's own connector and, where there are
connectors elsewhere, the share that the ring gives to this matcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from headrace.errors import LimitError
from headrace.hub.routing.subscriptions import Change, Subscription, Subscriptions
from headrace.matching import Matcher, Matches
from headrace.message import Batch

NO_CAP: Final = 1 << 40
"""The log's state is obeyed whatever it holds: the doors refuse what is too much before it is in the log."""

STEP: Final = 1000
"""Subscriptions judged in one step of sorting out."""

logger = logging.getLogger("headrace")


class Matching:
    """An index over some of the subscriptions; those that are there already are for :meth:`sort_out`."""

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
        """Whether the matcher cannot be used yet. Who sets that resets it, and has everything sorted out then."""
        self._subscriptions = subscriptions
        self._wanted = wanted
        subscriptions.observers.append(self._follow)

    def __len__(self) -> int:
        return len(self.matcher)

    def pieces(self, batch: Batch) -> Iterator[tuple[Batch, Matches]]:
        """Whom each message of a batch is for, some messages at a time; any thread may ask."""
        for begin, matches in self.matcher.pieces(batch):
            yield batch.slice(begin, begin + len(matches)), matches

    def rows(self, client: bytes, batch: Batch) -> list[int]:
        """Which messages of a batch are for one client, by place; any thread may ask."""
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

    def _follow(self, change: Change) -> None:
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
