"""Decide what may be removed: a pure function of sizes, ages, holds and limits.

``retain_bytes`` is a hard limit: beyond it the oldest segments go even if a hold needs them, because a full disk would
stop everyone. Such a hold is *broken*, which is reported once. ``retain_seconds`` is soft: a hold keeps older messages
until it moves on. Nothing after the newest snapshot is ever removed, since the state could not be rebuilt without it.

If the log has an archive, only archived messages are removed, even past ``retain_bytes``: the log is then the newest
part of a history that nobody wants to lose. Holds do not matter, since removed messages can still be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """The facts about a sealed segment that retention needs."""

    first: int
    last: int
    size: int
    last_time: int
    covered: bool
    """Whether a snapshot covers all of it."""


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Remove the oldest ``remove`` segments; ``keep_from`` is the oldest message that stays.

    ``broken`` names the holds that this breaks: a hold names the oldest sequence number that its owner still needs.
    """

    remove: int
    keep_from: int
    broken: tuple[str, ...] = ()


def decide(
    extents: Sequence[SegmentExtent],
    *,
    open_bytes: int,
    now: int,
    retain_bytes: int,
    retain_us: int | None,
    holds: Mapping[str, int],
    archived: int | None = None,
) -> RetentionDecision:
    """Decide which sealed segments to remove, oldest first.

    Times are in µs. ``open_bytes`` is the size of tails not sealed yet.

    ``archived`` is the last message that the archive is known to have; ``None`` if there is no archive.
    """
    if archived is not None:
        holds = {}
    total = open_bytes + sum(extent.size for extent in extents)
    held_from = min(holds.values(), default=None)
    keep_from = extents[0].first if extents else 0
    remove = 0
    for extent in extents:
        if not extent.covered or (archived is not None and extent.last > archived):
            break
        too_much = total > retain_bytes
        too_old = retain_us is not None and extent.last_time < now - retain_us
        held = held_from is not None and extent.last >= held_from
        if not too_much and (not too_old or held):
            break
        remove, keep_from = remove + 1, extent.last + 1
        total -= extent.size
    broken = sorted(name for name, seq in holds.items() if extents and extents[0].first <= seq < keep_from)
    return RetentionDecision(remove, keep_from, tuple(broken))
