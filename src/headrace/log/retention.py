"""What may be removed, as a pure function of sizes, ages, holds and limits.

Two limits work in different ways. ``retain_bytes`` is hard: past it the oldest segments go, whatever holds them,
because a full disk would stop everyone; a hold that is passed is *broken*, and said so once. ``retain_seconds`` is
soft: a hold keeps what is too old until it moves on. Nothing after the newest snapshot is ever removed, since
the state before it could not be rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """A sealed segment as retention sees it."""

    first: int
    last: int
    size: int
    last_time: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Remove every segment that ends before ``keep_from``; ``broken`` are the holds that this passes.

    A hold names the oldest sequence number that its owner still needs.
    """

    keep_from: int
    broken: tuple[str, ...] = ()


def decide(
    extents: Sequence[Extent],
    *,
    open_bytes: int,
    now: int,
    retain_bytes: int,
    retain_us: int | None,
    holds: Mapping[str, int],
    snapshot_seq: int,
) -> Verdict:
    """Judge sealed segments, oldest first; ``now`` and times in µs, ``open_bytes`` is what is not sealed yet."""
    total = open_bytes + sum(extent.size for extent in extents)
    held_from = min(holds.values(), default=None)
    keep_from = extents[0].first if extents else 0
    for extent in extents:
        if extent.last > snapshot_seq:
            break
        too_much = total > retain_bytes
        too_old = retain_us is not None and extent.last_time < now - retain_us
        held = held_from is not None and extent.last >= held_from
        if not too_much and (not too_old or held):
            break
        keep_from = extent.last + 1
        total -= extent.size
    broken = sorted(name for name, seq in holds.items() if extents and extents[0].first <= seq < keep_from)
    return Verdict(keep_from, tuple(broken))
