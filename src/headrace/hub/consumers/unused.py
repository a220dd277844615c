"""Durable consumers that nobody uses any more, found by the age of the messages that wait for them.

A consumer without members keeps messages from being trimmed, and counts towards the maximum number of consumers. It is
unused when the oldest message that it has not acknowledged is older than a bound, and it has had no member for as
long, or for :data:`GRACE_SECONDS` if that is less. A consumer that has acknowledged everything costs nothing.

The hub that numbers messages removes them. Other nodes of its cluster, and its frontends, tell it by log entries which
consumers have members there, but only those that it could take for unused.
"""

from __future__ import annotations

from typing import Final

from headrace.hub.consumers.cursors import Consumer, Consumers

GRACE_SECONDS: Final = 3600.0
"""A new consumer of old messages, or one whose members come back after the hub, must have the time to be used."""


class UnusedConsumers:
    """Finds unused consumers; the owner calls :meth:`look` now and then."""

    def __init__(self, known: Consumers, seconds: float) -> None:
        self._known = known
        self._grace = min(seconds, GRACE_SECONDS)
        self._used: dict[int, tuple[float, int]] = {}
        """When each was last seen in use, and its uses then, by the entry that created or reset it."""

    def look(self, now: float, recent: int) -> list[Consumer]:
        """Return the unused ones; messages before number ``recent`` are older than the bound."""
        used: dict[int, tuple[float, int]] = {}
        found: list[Consumer] = []
        for consumer in self._known:
            last, uses = self._used.get(consumer.since, (now, consumer.uses))
            if self._known.members(consumer.name) > 0 or uses != consumer.uses:
                last = now
            used[consumer.since] = last, consumer.uses
            if consumer.floor + 1 < recent and now - last >= self._grace:
                found.append(consumer)
        self._used = used
        return found

    def in_use(self, recent: int) -> list[Consumer]:
        """Return those with members here that could be taken for unused elsewhere."""
        return [
            consumer
            for consumer in self._known
            if consumer.floor + 1 < recent and self._known.members(consumer.name) > 0
        ]
