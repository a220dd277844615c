"""Verify every byte of a log for ``headrace log verify``: segments, indexes, snapshots, and how they fit together.

It changes nothing and takes no lock, so it can read the log of a running hub. What the hub is just writing, sealing or
trimming is not reported as damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import DamagedError
from headrace.log import watermark
from headrace.log.damage.findings import InspectedSegment, Problem
from headrace.log.damage.inspection import inspect, inspect_snapshot, inspect_tail, log_uuids, numbers
from headrace.log.files import has_writer
from headrace.log.proof.chain import Chain
from headrace.log.proof.log_chain import FILE
from headrace.log.recovery import REPAIRING, STATE_MISSING
from headrace.log.snapshots import snapshot

_LOOKS: Final = 5
"""Attempts to read files that a running hub may be changing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``path`` has been read; ``done`` of about ``total`` bytes, and messages up to ``last``."""

    path: Path
    done: int
    total: int
    last: int | None = None


def verify(directory: Path) -> Iterator[Problem | Progress]:
    """Read everything; yield progress after each file, and each problem.

    If files came and went meanwhile, a hub is sealing or trimming, and a file may only have moved. Then everything is
    read again, and only problems found every time are reported.
    """
    suspected: list[Problem] | None = None
    for _ in range(_LOOKS):
        before, found = set(_files(directory)), []
        for each in _look(directory):
            if isinstance(each, Problem):
                found.append(each)
            elif suspected is None:
                yield each
        suspected = found if suspected is None else [problem for problem in suspected if problem in found]
        if not suspected or set(_files(directory)) == before:
            break
    yield from suspected or []


def _look(directory: Path) -> Iterator[Problem | Progress]:
    if (directory / REPAIRING).exists():
        yield Problem(directory / REPAIRING, 0, 1, None, "a repair was interrupted: run it again")
    total = sum(_size(path) for path in _files(directory))
    done = 0
    uuids = log_uuids(directory)[:1]
    # Snapshots come first: a running hub writes a snapshot only after the messages it covers.
    newest: snapshot.Snapshot | None = None
    for path in snapshot.paths(directory):
        done += _size(path)
        found = inspect_snapshot(path)
        if isinstance(found, Problem):
            yield found
        elif found is not None and found.uuid not in uuids:
            yield Problem(path, 0, found.seq, found.seq, f"it belongs to log {found.uuid}, not to this one")
        elif found is not None and (newest is None or found.op > newest.op):
            newest = found
        yield Progress(path, done, max(total, done))
    chain = directory / FILE
    if _size(chain):
        done += _size(chain)
        try:
            Chain.parse(chain.read_bytes(), str(chain))
        except DamagedError as damage:
            # The log rebuilds it from the messages that it still has.
            yield Problem(chain, damage.offset, damage.first, damage.last, damage.reason, harmless=True)
        yield Progress(chain, done, max(total, done))
    inspected: InspectedSegment | None = None
    needed: tuple[int, int] | None = None
    for inspected in inspect(directory, uuids):
        if needed is None:
            needed = inspected.first_op - 1, inspected.first - 1
        needed = max(needed, inspected.needs_state())
        yield from _problems(inspected)
        done += sum(_size(inspected.path.with_suffix(suffix)) for suffix in (".index", ".entries", ".topics"))
        done += inspected.size
        yield Progress(inspected.path, done, max(total, done), inspected.last)
    last_op, last = (None, None) if inspected is None else (inspected.last_op, inspected.last)
    if newest is not None and last_op is not None and last is not None and newest.op > last_op:
        reason = f"the snapshot at message {newest.seq} is ahead of the log, which ends at {last}"
        yield Problem(directory, 0, last + 1, newest.seq, reason)
    if needed is not None and needed[0]:
        # A snapshot preceded the trimming; it may be newer than those we have read.
        by_now, _ = snapshot.newest(directory, uuids[0]) if uuids else (None, [])
        covered, seq = (0, 0) if by_now is None else (by_now.op, by_now.seq)
        if covered < needed[0]:
            yield Problem(directory, 0, seq + 1, needed[1], STATE_MISSING)


def _problems(inspected: InspectedSegment) -> list[Problem]:
    """A segment's problems, without an append that a running hub is just writing."""
    for _ in range(_LOOKS):
        if not any(problem.mends for problem in inspected.problems):
            break
        try:
            mark = watermark.read(inspected.path.parent)
            again = inspect_tail(inspected.path, inspected.first, mark)
        except FileNotFoundError:
            return []
        if again.size == inspected.size and again.problems == inspected.problems:
            break
        again.gap = inspected.gap
        inspected = again
    if has_writer(inspected.path.with_name("lock")):
        # The writer cut off any torn end when it opened the log: this one is an append under way.
        return [problem for problem in inspected.all_problems() if not problem.mends]
    return inspected.all_problems()


def _files(directory: Path) -> Iterator[Path]:
    for number in numbers(directory):
        for suffix in (".open", ".arrow", ".index", ".entries", ".topics"):
            yield directory / f"{number:016d}{suffix}"
    yield from snapshot.paths(directory)
    yield directory / FILE


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
