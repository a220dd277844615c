"""Cutting a log back: the one way that messages leave its end.

Only a node of a cluster does this, with messages that were never committed: what a primary numbered and no majority
had, before another took over. A crash at any moment leaves a log that ends where it ended, where it is to end, or at
the end of a file between the two; never one with a hole, and never a shorter one. Whoever cut starts again then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.errors import UsageError
from headrace.log.files import sync_directory
from headrace.log.recovery import Segment
from headrace.log.tail import TailFile


def cut_back(directory: Path, segments: Sequence[Segment], last: int) -> tuple[Segment, ...]:
    """The segments without what follows ``last``, on the disk too."""
    place = next(place for place, segment in enumerate(segments) if segment.last > last)
    ending, *gone = segments[place:]
    if not isinstance(ending, TailFile):
        raise UsageError(f"message {last + 1} is sealed and cannot be cut off")
    for segment in reversed(gone):
        # One after the other, the newest first: a power failure may keep a later removal and forget an earlier one.
        segment.path.unlink(missing_ok=True)
        sync_directory(directory)
    return (*segments[:place], ending.cut_back(last))
