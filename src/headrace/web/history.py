"""What a hub did in the last minutes, second by second: the charts' memory, so that a page that is opened has a past.

A :class:`Sample` is made from the hub's counters as they stand and as they stood one sample ago: counts become rates.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

import msgspec

from headrace.hub.counters import Counters

SAMPLES: Final = 600
"""How many are kept: ten minutes of seconds, some 150 KB."""

_IN: Final = "received"
_OUT: Final = "delivered"
_SUMS: Final = ("refused", "repaired", "skipped", "conflated")


class Sample(msgspec.Struct, frozen=True):
    """One second: levels as they are, rates per second since the sample before."""

    time: float
    head: int
    tail: int
    first: int
    bytes: int
    connections: int
    behind: int
    """How many messages the furthest durable consumer or hold lies behind the head."""
    received: dict[str, float]
    """Messages in, by the protocol they came by."""
    delivered: dict[str, float]
    """Messages out, by door."""
    refused: float
    repaired: float
    skipped: float
    conflated: float


class Levels(msgspec.Struct, frozen=True):
    """What is, at one moment."""

    head: int
    tail: int
    first: int
    bytes: int
    connections: int
    behind: int


class History:
    """The last :data:`SAMPLES` samples."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._before: tuple[float, dict[str, dict[str, int]]] | None = None

    def take(self, now: float, levels: Levels, counters: Counters) -> Sample:
        """Make and keep the sample of this moment; ``now`` in seconds since 1970."""
        counts = _counts(counters)
        then, before = self._before or (now, counts)
        self._before = now, counts
        passed = max(now - then, 1e-3)

        def rates(name: str) -> dict[str, float]:
            old = before.get(name, {})
            return {
                label: round((count - old.get(label, 0)) / passed, 1)
                for label, count in counts.get(name, {}).items()
            }

        sample = Sample(
            round(now, 3),
            levels.head,
            levels.tail,
            levels.first,
            levels.bytes,
            levels.connections,
            levels.behind,
            rates(_IN),
            rates(_OUT),
            *(round(sum(rates(name).values()), 1) for name in _SUMS),
        )
        self.samples.append(sample)
        return sample


def _counts(counters: Counters) -> dict[str, dict[str, int]]:
    """The counters that are drawn: each by its first label's value, transports of one door together."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, labels, value in counters:
        if name in (_IN, _OUT, *_SUMS):
            label = labels.get("origin") or labels.get("door") or ""
            found[name][label] = found[name].get(label, 0) + value
    return found
