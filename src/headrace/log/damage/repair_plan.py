"""Decide how to repair a damaged log; :mod:`headrace.log.damage.repair` does it.

A log has no holes, so one unbroken run of good messages can stay: those **before** the first hole, or, if asked for,
those **after** the last one (everything older then counts as trimmed). The rest is set aside, and the report names
every sequence number that is lost.

**Lost entries cost no message.** Where only entries are lost, the messages around them stay in one run, and the place
is marked: operations from before it can no longer be read, and no state is restored from there. A snapshot taken after
the last such place has everything that matters; without one the state begins empty, and the report says so.

If messages are lost at the *end*, new ones will get their sequence and operation numbers. A reader that has seen the
old ones (a subscriber, a Spark offset, another node) must not take the new ones for their continuation, so such a log
gets a **new uuid**. A log that loses nothing at its end keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid4

from headrace.log.damage.findings import GoodRange, InspectedSegment, Problem
from headrace.log.damage.inspection import inspect, inspect_snapshot, log_uuids, numbers
from headrace.log.recovery import is_topics_alone
from headrace.log.snapshots import snapshot

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
    """Rewrite a segment with the part of it that stays; the old files are kept aside.

    If entries in the middle of a tail are lost, several parts stay, and each becomes a file of its own.
    """

    source: InspectedSegment
    kept: tuple[GoodRange, ...]

    def target(self, good: GoodRange) -> Path:
        """The new file of a part, named by its first operation."""
        return self.source.path.with_stem(f"{good.first_op:016d}")

    def __str__(self) -> str:
        kept = in_words(self.kept[0].first, self.kept[-1].last)
        made = " and ".join(self.target(good).name for good in self.kept)
        without = " without its entries, which are lost" if self.kept[0].entries_lost else ""
        return f"keep {kept} of {self.source.path.name}{without} in a new {made}, and the old file aside"


@dataclass(frozen=True, slots=True)
class Reindex:
    """Rewrite the index of a sealed segment."""

    source: InspectedSegment

    def __str__(self) -> str:
        name, index = self.source.path.name, self.source.index
        text = f"write a new index for {name}"
        if self.source.rebuilt:
            text += ", which is readable; there are no checksums to check its bytes against"
        if index is not None and index.entries_lost:
            text += f"{';' if self.source.rebuilt else ','} which says that its entries are lost"
        return text


@dataclass(frozen=True, slots=True)
class MarkLost:
    """Write a segment without messages in the place of entries that are lost."""

    path: Path
    last_op: int
    after: int
    """The message that the entries stood after."""

    def __str__(self) -> str:
        return f"note in a new {self.path.name} that {entries_in_words(self.after, self.after)} are lost"


@dataclass(frozen=True, slots=True)
class Restamp:
    """Put the log's uuid into a file that stays."""

    path: Path

    def __str__(self) -> str:
        return f"put the log's uuid into {self.path.name}"


@dataclass(frozen=True, slots=True)
class BeginTail:
    """Begin an empty tail, where nothing is left."""

    path: Path
    first: int

    def __str__(self) -> str:
        return f"begin again with an empty {self.path.name}"


@dataclass(frozen=True, slots=True)
class ForgetState:
    """Replace a lost snapshot by an empty one."""

    path: Path
    seq: int

    def __str__(self) -> str:
        return (
            f"begin with an empty state after message {self.seq}: the services, publishers' numbers, consumers and "
            "holds from before are lost"
        )


Step = SetAside | Rewrite | Reindex | MarkLost | Restamp | BeginTail | ForgetState


@dataclass(frozen=True, slots=True)
class Report:
    """The problems of a log, and what repairing it does (or has done)."""

    directory: Path
    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    first: int
    last: int
    """The last message that the log has afterwards; ``first - 1`` if it has none."""
    lost: tuple[tuple[int, int | None], ...]
    """Lost ranges, first and last; ``None`` if the last is unknown."""
    lost_entries: tuple[tuple[int, int], ...]
    """Ranges of messages that are kept while entries after them are lost; the number of entries is not known."""
    uuid_before: UUID | None
    uuid_after: UUID
    aside: Path | None = None
    """The folder of everything that was set aside, once the repair is done."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
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
        for begin, end in self.lost_entries:
            yield f"lost: {entries_in_words(begin, end)}"
        if self.uuid_before != self.uuid_after:
            yield f"the log's uuid was {self.uuid_before or 'unreadable'}, it is {self.uuid_after} now"
            if any(last is None or last > self.last for _, last in self.lost):
                yield f"numbers from {self.last + 1} on go to other messages: readers of the old ones must start over"
            else:
                yield "other nodes and copies of the log must start over"


def decide(directory: Path, keep: Keep, names: tuple[UUID | None, UUID] | None = None) -> Report:
    """Inspect a directory and decide the steps of its repair.

    ``names`` are the uuids before and after an interrupted repair: a file may have either.
    """
    own = [uuid for uuid in names if uuid] if names else log_uuids(directory)[:1]
    segments = list(inspect(directory, own))
    states, unusable = _snapshots(directory, own)
    problems = [problem for segment in segments for problem in segment.all_problems()]
    problems += [problem for _, problem in unusable]
    mine = [segment for segment in segments if segment.uuid is None or segment.uuid in own]
    run = _choose(mine, keep)
    ends = _Ends.of(run, states)
    ahead = [found for found in states if found.op > ends.last_op]
    known_op, known = _highest(mine)
    problems += [_ahead(directory, found, known) for found in ahead if found.op > known_op]
    lost, lost_entries, end_lost = _losses(mine, run, ends, ahead)
    before = names[0] if names else next(iter(own), states[0].uuid if states else None)
    after = before
    if after is None or end_lost:
        after = names[1] if names else uuid4()
    steps: list[Step] = []
    for segment in segments:
        steps += _steps_for(segment, [good for good in run if good.path == segment.path], after)
    steps += [SetAside(path, problem.reason) for path, problem in unusable]
    steps += [
        SetAside(snapshot.path_of(directory, found.op), "it is ahead of what is kept") for found in ahead
    ]
    needed, message = _needs_state(run, ends)
    # Where an unknown number of entries is lost, operation numbers may be used again.
    displaced = [found for found in states if needed <= found.op <= ends.last_op and found.seq < message]
    steps += [
        SetAside(snapshot.path_of(directory, found.op), "it does not fit what is kept") for found in displaced
    ]
    usable = [found for found in states if found.op <= ends.last_op and found not in displaced]
    steps += [Restamp(snapshot.path_of(directory, found.op)) for found in usable if found.uuid != after]
    if not run and (segments or states):
        problems += (
            [] if problems else [Problem(directory, 0, 1, ends.last, "there is a snapshot, but no messages")]
        )
        steps.append(BeginTail(directory / f"{ends.first_op:016d}.open", ends.first))
    if problems:
        # An index or entries without their messages are litter, unless something is wrong: then they are evidence.
        inspected = {segment.first_op for segment in segments}
        alone = set(numbers(directory)) - inspected
        left = [directory / f"{n:016d}{suffix}" for n in sorted(alone) for suffix in (".index", ".entries")]
        left += [path for path in sorted(directory.glob("*.topics")) if is_topics_alone(path, inspected)]
        steps += [SetAside(path, "its messages are gone") for path in left if path.exists()]
    steps += _marks(directory, run)
    if max((found.op for found in usable), default=0) < needed:
        reason = "no snapshot covers the messages and entries that are not here"
        problems.append(Problem(directory, 0, 1, message, reason))
        steps.append(ForgetState(snapshot.path_of(directory, needed), message))
    return Report(
        directory, tuple(problems), tuple(steps), ends.first, ends.last, lost, lost_entries, before, after
    )


def in_words(first: int, last: int | None) -> str:
    """Describe a range of messages."""
    if last is None:
        return f"messages from {first} on"
    return f"messages {first} to {last}" if last >= first else "no messages"


def entries_in_words(first: int, last: int) -> str:
    """Describe the entries that stand after some messages."""
    if not last:
        return "entries of the log before message 1"
    if first == last:
        return f"entries of the log after message {last}"
    before = "" if first else "before message 1 and "
    return f"entries of the log {before}after messages {max(first, 1)} to {last}"


def files_of(segment: InspectedSegment) -> list[Path]:
    """List every file of a segment."""
    suffixes = (".open", ".arrow", ".index", ".entries", ".topics")
    files = (segment.path.with_suffix(suffix) for suffix in suffixes)
    return [path for path in files if path.exists()]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where a log begins and ends afterwards."""

    first_op: int
    last_op: int
    first: int
    last: int

    @classmethod
    def of(cls, run: list[GoodRange], states: list[snapshot.Snapshot]) -> _Ends:
        if run:
            return cls(run[0].first_op, run[-1].last_op, run[0].first, run[-1].last)
        op, seq = (states[0].op, states[0].seq) if states else (0, 0)
        return cls(op + 1, op, seq + 1, seq)


def _choose(segments: list[InspectedSegment], keep: Keep) -> list[GoodRange]:
    """Choose the first or the last unbroken run of messages; a run of entries alone only if there is no other."""
    runs: list[list[GoodRange]] = []
    for good in (good for segment in segments for good in segment.good):
        if runs and _follows(runs[-1][-1], good):
            runs[-1].append(good)
        else:
            runs.append([good])
    filled = [run for run in runs if run[-1].last >= run[0].first]
    filled = filled or [run for run in runs if run[-1].last_op >= run[0].first_op] or runs
    return filled[0 if keep == "before" else -1] if filled else []


def _follows(before: GoodRange, after: GoodRange) -> bool:
    """Whether no message is missing between two ranges; entries may be."""
    return before.last + 1 == after.first and before.last_op < after.first_op


def _marks(directory: Path, run: list[GoodRange]) -> Iterator[MarkLost]:
    """The places between the ranges of a run where entries are lost."""
    for before, after in pairwise(run):
        if before.last_op + 1 < after.first_op:
            path = directory / f"{before.last_op + 1:016d}.arrow"
            yield MarkLost(path, after.first_op - 1, before.last)


def _needs_state(run: list[GoodRange], ends: _Ends) -> tuple[int, int]:
    """Return the operation, and its newest message, up to which a snapshot must replace missing entries."""
    needed = ends.first_op - 1, ends.first - 1
    for before, after in pairwise(run):
        if before.last_op + 1 < after.first_op:
            needed = max(needed, (after.first_op - 1, before.last))
    for good in run:
        if good.entries_lost:
            needed = max(needed, (good.last_op, good.last))
    return needed


def _steps_for(segment: InspectedSegment, kept: list[GoodRange], uuid: UUID) -> Iterator[Step]:
    """The steps for one segment, of which ``kept`` stays."""
    # Opening the log repairs a torn end.
    inside = [problem for problem in segment.problems if not problem.mends]
    beside = segment.path.with_suffix(".entries")
    if not kept:
        reason = inside[0].reason if inside else "it does not adjoin the messages that are kept"
        yield from (SetAside(path, reason) for path in files_of(segment))
        return
    about_entries = [problem for problem in inside if problem.path == beside]
    rewritten = len(inside) > len(about_entries) + segment.rebuilt
    if rewritten:
        yield Rewrite(segment, tuple(kept))
        return
    if segment.topics is not None:
        yield SetAside(segment.topics.path, segment.topics.reason)
    if about_entries and beside.exists():
        yield SetAside(beside, about_entries[0].reason)
    if segment.rebuilt or (about_entries and not segment.stray_entries):
        yield Reindex(segment)
    elif segment.uuid != uuid:
        yield Restamp(segment.path)


def _highest(segments: list[InspectedSegment]) -> tuple[int, int]:
    """The last operation and the last message known to have existed."""
    ops = (each.first_op - 1 if each.last_op is None else each.last_op for each in segments)
    seqs = (each.first - 1 if each.last is None else each.last for each in segments)
    return max(ops, default=0), max(seqs, default=0)


def _losses(
    segments: list[InspectedSegment], run: list[GoodRange], ends: _Ends, ahead: list[snapshot.Snapshot]
) -> tuple[tuple[tuple[int, int | None], ...], tuple[tuple[int, int], ...], bool]:
    """The lost messages, the entries lost where messages are not, and whether anything is lost at the end."""
    lost: list[tuple[int, int | None]] = []
    entries: list[tuple[int, int]] = []
    lowest = min((segment.first for segment in segments), default=ends.first)
    if lowest < ends.first:
        lost.append((lowest, ends.first - 1))
    elif min((segment.first_op for segment in segments), default=ends.first_op) < ends.first_op:
        entries.append((ends.first - 1, ends.first - 1))
    # Where an earlier repair has lost entries, this one need not say so again.
    damaged = {each.path for each in segments if each.problems}
    entries += [(good.first - 1, good.last) for good in run if good.entries_lost and good.path in damaged]
    entries += [
        (before.last, before.last) for before, after in pairwise(run) if before.last_op + 1 < after.first_op
    ]
    known_op, known = _highest(segments)
    known_op = max([known_op, *(found.op for found in ahead)])
    known = max([known, *(found.seq for found in ahead)])
    unknown = any(each.last_op is None and each.first_op > ends.last_op for each in segments)
    end_lost = unknown or known_op > ends.last_op
    if unknown:
        lost.append((ends.last + 1, None))
    elif known > ends.last:
        lost.append((ends.last + 1, known))
    elif end_lost:
        entries.append((ends.last, ends.last))
    return tuple(lost), tuple(entries), end_lost


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
                reason = f"it belongs to log {found.uuid}, not to this one"
                unusable.append((path, Problem(path, 0, found.seq, found.seq, reason)))
    return good, unusable


def _ahead(directory: Path, found: snapshot.Snapshot, last: int) -> Problem:
    reason = f"the snapshot at message {found.seq} is ahead of the log, which ends at {last}"
    return Problem(snapshot.path_of(directory, found.op), 0, last + 1, found.seq, reason)
