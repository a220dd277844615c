"""Expires the subscriptions of connectors that are gone for good.

A connector expires its own clients' subscriptions, but a connector that never comes back cannot. So a connector with
subscriptions that is not in the hub that numbers messages writes a sign of life to the log now and then
(``subscription/``: ``{"connector": ID}``). The hub that numbers messages expires the subscriptions of connectors that
have written no entry for as long as subscriptions are kept.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from headrace.hub.routing.subscriptions import (
    SubscriptionChange,
    Subscriptions,
    alive,
    expire,
)
from headrace.hub.sequence import Hub

SIGNS: Final = 3
"""Number of signs of life within the time for which subscriptions are kept."""

LEAST_SECONDS: Final = 1.0
"""Shortest time between signs of life, so that they do not fill the log."""

EXPIRED_A_TICK: Final = 1000


class RetiredConnectors:
    """At the hub that numbers messages, when each connector was last heard of; elsewhere, our own signs of life."""

    def __init__(
        self, hub: Hub, subscriptions: Subscriptions, own: bytes | None, keep_seconds: float
    ) -> None:
        self._hub = hub
        self._subscriptions = subscriptions
        self._own = own
        self._keep_seconds = max(keep_seconds, SIGNS * LEAST_SECONDS)
        self._now = 0.0
        self._said = 0.0
        self._counts = Counter(kept.connector for _, kept in subscriptions)
        self._heard: dict[bytes, float] = {}
        subscriptions.observers.append(self._follow)
        subscriptions.signs.append(self._hear)

    def tick(self, now: float) -> None:
        """Give a sign of life if one is due, or look for connectors that gave none."""
        self._now = now
        if self._hub.sequencer is None:
            for connector in tuple(self._counts):
                if (
                    connector != self._own
                    and now - self._heard.setdefault(connector, now) >= self._keep_seconds
                ):
                    self._retire(connector)
        elif (
            self._own is not None
            and self._counts[self._own]
            and now - self._said >= self._keep_seconds / SIGNS
        ):
            self._said = now
            self._hub.submit(alive(self._own))

    def _retire(self, connector: bytes) -> None:
        kept = self._subscriptions
        gone = [(client, one.op) for client, one in kept if one.connector == connector]
        for client, op in islice(gone, EXPIRED_A_TICK):
            self._hub.submit(expire(client, op))
        amount = min(len(gone), EXPIRED_A_TICK)
        self._hub.counters.add("subscriptions_expired", amount)
        name, seconds = connector.decode(), self._keep_seconds
        detail = f"not heard from for {seconds:g} s: {amount} of its subscriptions are removed"
        self._hub.counters.refuse("connector", "retired", name, detail)

    def _follow(self, change: SubscriptionChange) -> None:
        old, new = change.old, change.new
        if old is not None:
            self._counts[old.connector] -= 1
            if self._counts[old.connector] <= 0:
                del self._counts[old.connector]
                self._heard.pop(old.connector, None)
        if new is not None:
            self._counts[new.connector] += 1
            self._hear(new.connector)

    def _hear(self, connector: bytes) -> None:
        # The time is not known before the first tick, from which on it counts for everyone.
        if connector in self._counts and self._now:
            self._heard[connector] = self._now
