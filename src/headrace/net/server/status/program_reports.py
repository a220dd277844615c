"""Reports that other programs, such as the pipeline, give for the hub's status.

Reports are not messages and not in the log, so a pipeline that reports each second causes no traffic. Each report
replaces the previous one of the same name; all are forgotten when the hub stops.

Several processes may report under one name if each gives its ``pid``, for example a second pipeline beside that of
``headrace up``. They are shown as one report that has the ``jobs`` of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headrace.errors import LimitError, MalformedError
from headrace.wire.link.message import parse, serialize

MAX_REPORTS: Final = 16
MAX_BYTES: Final = 64 << 10
"""Most bytes of all reports together: the status must fit the head of an answer."""
STALE_SECONDS: Final = 60.0
"""Seconds after which a report that was not renewed is dropped if another needs the room."""
BESIDE_SECONDS: Final = 10.0
"""Seconds after which a silent process is forgotten if others report under its name; each reports every second."""

ENDED: Final = ("stopped", "failed")

Key = tuple[str, int | None]
"""A report's name, and the process it is from."""


class ProgramReport(NamedTuple):
    """A report's facts, its time, and the bytes it takes in a status."""

    time: float
    facts: Mapping[str, Any]
    size: int


class ProgramReports:
    """The newest report of each name, or of each process that reports under it."""

    def __init__(self) -> None:
        self._newest: dict[Key, ProgramReport] = {}
        """Reports, in the order in which their programs first reported."""

    def take(self, name: str, facts: Mapping[str, Any], now: float) -> None:
        """Keep a report that came at ``now``."""
        try:
            content = msgspec.json.encode(facts)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise MalformedError("link", "facts", facts, "a map that JSON can express") from None
        if len(content) > MAX_BYTES:
            raise LimitError("link", "facts", len(content), MAX_BYTES)
        report = _report(name, msgspec.json.decode(content), now)
        key = name, _process(report.facts)
        before = {
            other: kept
            for other, kept in self._newest.items()
            if other == key or other[0] != name or (key[1] is not None and _goes_on(kept, now))
        }
        others = _without(before, key)
        if not _fits(others, report):
            before = {other: kept for other, kept in before.items() if now - kept.time < STALE_SECONDS}
            others = _without(before, key)
        if len(others) >= MAX_REPORTS:
            raise LimitError("link", "reports", len(others) + 1, MAX_REPORTS)
        if not _fits(others, report):
            raise LimitError("link", "facts of all reports", _size(others) + report.size, MAX_BYTES)
        # A known key keeps its place in the order.
        self._newest = {**before, key: report}

    def facts(self, now: float) -> dict[str, object]:
        """Return every report with its ``age`` in seconds; of several under one name, the newest with all jobs."""
        shown: dict[str, Any] = {}
        for (name, _), report in self._newest.items():
            facts = {**report.facts, "age": round(now - report.time, 3)}
            earlier, jobs = shown.get(name, {}).get("jobs"), facts.get("jobs")
            if isinstance(earlier, dict) and isinstance(jobs, dict):
                facts["jobs"] = {**earlier, **jobs}
            shown[name] = facts
        return shown


def _process(facts: Mapping[str, Any]) -> int | None:
    """Return the process that a report names, if any."""
    pid = facts.get("pid")
    return pid if isinstance(pid, int) else None


def _goes_on(report: ProgramReport, now: float) -> bool:
    """Return whether a report's process still seems to run, so that another of its name is shown with it."""
    return now - report.time < BESIDE_SECONDS and report.facts.get("state") not in ENDED


def _without(reports: Mapping[Key, ProgramReport], key: Key) -> dict[Key, ProgramReport]:
    return {other: kept for other, kept in reports.items() if other != key}


def _report(name: str, facts: Mapping[str, Any], now: float) -> ProgramReport:
    """Make a report, after checking that a status with it can be read."""
    encoded = serialize({"status": {name: facts}})
    try:
        parse(encoded)
    except MalformedError:
        raise MalformedError("link", "facts", facts, "a map that is nested less deeply") from None
    return ProgramReport(now, facts, len(encoded))


def _fits(others: Mapping[Key, ProgramReport], report: ProgramReport) -> bool:
    return len(others) < MAX_REPORTS and _size(others) + report.size <= MAX_BYTES


def _size(reports: Mapping[Key, ProgramReport]) -> int:
    return sum(report.size for report in reports.values())
