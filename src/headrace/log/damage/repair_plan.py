"""Decide how to repair a damaged log; :mod:`headrace.log.damage.repair` does it.

A log has no holes, so one unbroken run of good messages can stay: those **before** the first hole, or, if asked for,
those **after** the last one (everything older then counts as trimmed). The rest is set aside, and the report names
every sequence number that is lost.

The numbers of messages lost at the *end* will be given to other messages. A reader that has seen the old ones (a
subscriber, a Spark offset, another node) must not take the new ones for their continuation, so such a log gets a **new
uuid**. A log that loses nothing at its end keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid4

from headrace.log import snapshot
from headrace.log.damage.inspection import (
    GoodRange,
    InspectedSegment,
    Problem,
    inspect,
    inspect_snapshot,
    log_uuids,
    numbers,
)

Keep = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class SetAside:
    """Move a file out of the log."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"set {self.path.name} aside: {self.why}"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write a segment anew with the good messages that stay; the old file is kept aside."""

    source: InspectedSegment
    good: GoodRange

    @property
    def target(self) -> Path:
        """The new file, named by its first message."""
        return self.source.path.with_stem(f"{self.good.first:016d}")

    def __str__(self) -> str:
        kept = in_words(self.good.first, self.good.last)
        return f"keep {kept} of {self.source.path.name} in a new {self.target.name}, and the old file aside"


@dataclass(frozen=True, slots=True)
class Reindex:
    """Write the index of a sealed segment anew."""

    source: InspectedSegment

    def __str__(self) -> str:
        name = self.source.path.name
        return f"write a new index for {name}, which is readable; there are no checksums to check its bytes against"


@dataclass(frozen=True, slots=True)
class Restamp:
    """Put the log's uuid into a file that stays."""

    path: Path

    def __str__(self) -> str:
        return f"put the log's uuid into {self.path.name}"


@dataclass(frozen=True, slots=True)
class BeginTail:
    """Begin an empty tail, where no message is left."""

    path: Path

    def __str__(self) -> str:
        return f"begin again with an empty {self.path.name}"


@dataclass(frozen=True, slots=True)
class ForgetState:
    """Replace a lost snapshot by an empty one."""

    path: Path

    def __str__(self) -> str:
        return (
            f"begin with an empty state at {int(self.path.stem)}: the services, publishers' numbers, consumers and "
            "holds from before are lost"
        )


Step = SetAside | Rewrite | Reindex | Restamp | BeginTail | ForgetState


@dataclass(frozen=True, slots=True)
class Report:
    """What is wrong with a log, and what repairing it does (or has done)."""

    directory: Path
    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    first: int
    last: int
    """The last message that the log has afterwards; ``first - 1`` if it has none."""
    lost: tuple[tuple[int, int | None], ...]
    """Lost ranges, first and last; ``None`` if the last is unknown."""
    uuid_before: UUID | None
    uuid_after: UUID
    aside: Path | None = None
    """The folder of everything that left the log, once that is done."""

    def lines(self) -> Iterator[str]:
        """The report for people."""
        if not self.problems and not self.steps:
            yield f"{self.directory}: nothing is wrong with this log"
            return
        for problem in self.problems:
            yield f"found: {problem}"
        for step in self.steps:
            yield f"{'done' if self.aside else 'to do'}: {step}"
        if self.aside:
            yield f"what was set aside is in {self.aside}"
        yield f"the log has {in_words(self.first, self.last)}"
        for first, last in self.lost:
            yield f"lost: {in_words(first, last)}"
        if self.uuid_before != self.uuid_after:
            yield f"the log's uuid was {self.uuid_before or 'unreadable'}, it is {self.uuid_after} now"
            yield f"numbers from {self.last + 1} on go to other messages: readers of the old ones must start over"


def decide(directory: Path, keep: Keep, names: tuple[UUID | None, UUID] | None = None) -> Report:
    """Inspect a directory and decide the steps of its repair.

    ``names`` are the uuids before and after an interrupted repair: a file may have either.
    """
    own = [uuid for uuid in names if uuid] if names else log_uuids(directory)[:1]
    segments = list(inspect(directory, own))
    states, unusable = _snapshots(directory, own)
    problems = [problem for segment in segments for problem in segment.problems]
    problems += [problem for _, problem in unusable]
    mine = [segment for segment in segments if segment.uuid is None or segment.uuid in own]
    run = _choose(mine, keep)
    if run:
        first, last = run[0].first, run[-1].last
    else:
        last = states[0].seq if states else 0
        first = last + 1
    # The last message known to have existed.
    known = max((each.first if each.last is None else each.last for each in mine), default=0)
    ahead = [found for found in states if found.seq > last]
    problems += [_ahead(directory, found, known) for found in ahead if found.seq > known]
    lost = _lost(mine, max([known, *(found.seq for found in ahead)]), first, last)
    before = names[0] if names else next(iter(own), states[0].uuid if states else None)
    after = before
    if after is None or any(end is None or end > last for _, end in lost):
        after = names[1] if names else uuid4()
    steps: list[Step] = []
    for segment in segments:
        steps += _steps_for(segment, [good for good in run if good.path == segment.path], after)
    steps += [SetAside(path, problem.reason) for path, problem in unusable]
    steps += [
        SetAside(_path_of(directory, found), "it is ahead of the messages that are kept") for found in ahead
    ]
    usable = [found for found in states if found.seq <= last]
    steps += [Restamp(_path_of(directory, found)) for found in usable if found.uuid != after]
    if not run and (segments or states):
        problems += (
            [] if problems else [Problem(directory, 0, 1, last, "there is a snapshot, but no messages")]
        )
        steps.append(BeginTail(directory / f"{first:016d}.open"))
    if problems:
        # An index without its messages is litter, unless something is wrong: then it is evidence.
        alone = set(numbers(directory)) - {segment.first for segment in segments}
        steps += [SetAside(directory / f"{n:016d}.index", "its messages are gone") for n in sorted(alone)]
    if max((found.seq for found in usable), default=0) + 1 < first:
        problems.append(
            Problem(directory, 0, 1, first - 1, "no snapshot covers the messages that are not here")
        )
        steps.append(ForgetState(directory / f"{first - 1:016d}.snapshot"))
    return Report(directory, tuple(problems), tuple(steps), first, last, lost, before, after)


def in_words(first: int, last: int | None) -> str:
    """Describe a range of messages."""
    if last is None:
        return f"messages {first} on"
    return f"messages {first} to {last}" if last >= first else "no messages"


def files_of(segment: InspectedSegment) -> list[Path]:
    """List every file of a segment."""
    files = (segment.path.with_suffix(suffix) for suffix in (".open", ".arrow", ".index"))
    return [path for path in files if path.exists()]


def _choose(segments: list[InspectedSegment], keep: Keep) -> list[GoodRange]:
    """Choose the first or the last unbroken run of messages, an empty one only if there is no other."""
    runs: list[list[GoodRange]] = []
    for good in (good for segment in segments for good in segment.good):
        if runs and good.first == runs[-1][-1].last + 1:
            runs[-1].append(good)
        else:
            runs.append([good])
    filled = [run for run in runs if run[-1].last >= run[0].first] or runs
    return filled[0 if keep == "before" else -1] if filled else []


def _steps_for(segment: InspectedSegment, kept: list[GoodRange], uuid: UUID) -> Iterator[Step]:
    """The steps for one segment, of which ``kept`` (one range, or none) stays."""
    # A hole before a segment is a problem of its neighbours; opening the log repairs a torn end.
    inside = [
        problem
        for problem in segment.problems
        if not problem.mends and (problem.last is None or problem.last >= segment.first)
    ]
    if not kept:
        reason = inside[0].reason if inside else "it does not adjoin the messages that are kept"
        yield from (SetAside(path, reason) for path in files_of(segment))
    elif segment.rebuilt and len(inside) == 1:
        yield Reindex(segment)
    elif inside:
        yield Rewrite(segment, kept[0])
    elif segment.uuid != uuid:
        yield Restamp(segment.path)


def _lost(
    segments: list[InspectedSegment], highest: int, first: int, last: int
) -> tuple[tuple[int, int | None], ...]:
    """The lost ranges around ``first`` to ``last``."""
    lost: list[tuple[int, int | None]] = []
    lowest = min((segment.first for segment in segments), default=first)
    if lowest < first:
        lost.append((lowest, first - 1))
    if any(segment.last is None and segment.first > last for segment in segments):
        lost.append((last + 1, None))
    elif highest > last:
        lost.append((last + 1, highest))
    return tuple(lost)


def _snapshots(
    directory: Path, own: list[UUID]
) -> tuple[list[snapshot.Snapshot], list[tuple[Path, Problem]]]:
    """The good snapshots of this log, newest first, and what is wrong with the others."""
    good: list[snapshot.Snapshot] = []
    unusable: list[tuple[Path, Problem]] = []
    for path in snapshot.paths(directory):
        match inspect_snapshot(path):
            case Problem() as problem:
                unusable.append((path, problem))
            case snapshot.Snapshot() as found if not own or found.uuid in own:
                good.append(found)
            case snapshot.Snapshot() as found:
                reason = f"it is of log {found.uuid}, not of this one"
                unusable.append((path, Problem(path, 0, found.seq, found.seq, reason)))
    return good, unusable


def _ahead(directory: Path, found: snapshot.Snapshot, last: int) -> Problem:
    reason = f"the snapshot at {found.seq} is ahead of the log, which ends at {last}"
    return Problem(_path_of(directory, found), 0, last + 1, found.seq, reason)


def _path_of(directory: Path, found: snapshot.Snapshot) -> Path:
    return directory / f"{found.seq:016d}.snapshot"
