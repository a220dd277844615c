"""Reports: what programs beside the hub say of themselves, for its status.

They are not messages: they have no number, are in no log and move nothing. A report is replaced by the next of the same
name, and forgotten with the process. That is what keeps a pipeline that reports each second from being its own traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headrace.errors import LimitError, MalformedError
from headrace.wire.link import parse, serialize

MAX_REPORTS: Final = 16
MAX_BYTES: Final = 64 << 10
"""Of all reports together: the status that they are in must fit the head of an answer."""
STALE_SECONDS: Final = 60.0
"""A report that was not renewed for so long gives way to one that there is no room for."""


class Report(NamedTuple):
    """What somebody said, when, and the bytes that it takes in a status."""

    time: float
    facts: Mapping[str, Any]
    size: int


class Reports:
    """The newest report of each name."""

    def __init__(self) -> None:
        self._newest: dict[str, Report] = {}

    def take(self, name: str, facts: Mapping[str, Any], now: float) -> None:
        """Keep a report that came at ``now``."""
        try:
            content = msgspec.json.encode(facts)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise MalformedError("link", "facts", facts, "a map that JSON can say") from None
        if len(content) > MAX_BYTES:
            raise LimitError("link", "facts", len(content), MAX_BYTES)
        report = _report(name, msgspec.json.decode(content), now)
        others = {other: kept for other, kept in self._newest.items() if other != name}
        if not _fits(others, report):
            others = {other: kept for other, kept in others.items() if now - kept.time < STALE_SECONDS}
        if len(others) >= MAX_REPORTS:
            raise LimitError("link", "reports", len(others) + 1, MAX_REPORTS)
        if not _fits(others, report):
            raise LimitError("link", "facts of all reports", _size(others) + report.size, MAX_BYTES)
        self._newest = {**others, name: report}

    def facts(self, now: float) -> dict[str, object]:
        """Every report, each with its ``age`` in seconds."""
        return {
            name: {**report.facts, "age": round(now - report.time, 3)}
            for name, report in self._newest.items()
        }


def _report(name: str, facts: Mapping[str, Any], now: float) -> Report:
    """A report as it is kept, once it is sure that a status with it can be sent and read."""
    said = serialize({"status": {name: facts}})
    try:
        parse(said)
    except MalformedError:
        raise MalformedError(
            "link", "facts", facts, "a map that is not nested deeper than a status is read"
        ) from None
    return Report(now, facts, len(said))


def _fits(others: Mapping[str, Report], report: Report) -> bool:
    return len(others) < MAX_REPORTS and _size(others) + report.size <= MAX_BYTES


def _size(reports: Mapping[str, Report]) -> int:
    return sum(report.size for report in reports.values())
