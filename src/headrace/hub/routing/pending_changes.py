"""The costs of subscriptions, and what pending changes may add to them.

A limit is checked before a change is written and holds once it is in the state; until then it counts as pending.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from headrace.hub.routing.subscription_parts import (
    Subscription,
    tracks_of,
    weight_of,
)
from headrace.wire.sdk.fence import Track
from headrace.wire.sdk.predicate import Alternatives, fence_of, weight


class Addition(NamedTuple):
    """The most that a change can add."""

    parts: int = 0
    """Places in the index."""
    weight: int = 0
    """Vertices of polygons."""
    tracks: frozenset[Track] = frozenset()
    """Tracks that fences need."""


class PendingChanges:
    """The changes of one client, or of all, that are on their way."""

    __slots__ = ("parts", "tracks", "weight")

    def __init__(self) -> None:
        self.parts = 0
        self.weight = 0
        self.tracks: Counter[Track] = Counter()

    def begin(self, adds: Addition) -> None:
        """Count a change."""
        self.parts += adds.parts
        self.weight += adds.weight
        self.tracks.update(adds.tracks)

    def end(self, adds: Addition) -> None:
        """Stop counting a change that the state has or never will have."""
        self.parts -= adds.parts
        self.weight -= adds.weight
        self.tracks -= Counter(adds.tracks)


class Usage(NamedTuple):
    """What an account is charged for a client's subscriptions."""

    subscriptions: int
    """Places in the index, and vertices of polygons."""
    tracks: int


NOTHING_USED: Final = Usage(0, 0)


def usage(kept: Subscription | None, pending: PendingChanges) -> Usage:
    """Return the cost of a client's subscriptions, with pending changes."""
    if kept is None:
        return Usage(pending.parts + pending.weight, len(pending.tracks))
    tracks = pending.tracks.keys() | kept.tracks().keys()
    return Usage(pending.parts + pending.weight + kept.part_count + kept.weight, len(tracks))


def addition(kept: Subscription | None, name: str, alternatives: Alternatives) -> Addition:
    """Return by how much the cost of a client's subscriptions grows if this one is replaced; 0 if it shrinks."""
    before = [] if kept is None else kept.alternatives(name)
    tracks = frozenset(fence.track(x) for x, fence in filter(None, map(fence_of, alternatives)))
    return Addition(
        max(len(alternatives) - len(before), 0),
        max(sum(map(weight, alternatives)) - weight_of(before), 0),
        tracks - tracks_of(before),
    )
