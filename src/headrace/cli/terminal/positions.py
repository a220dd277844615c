"""Positions in the sequence as a person names them: a number, a time, its beginning or its end.

A time stands for the first message at or after it, and as an end for the last message before it; ``docs/cli.md`` lists
the forms. Every option that says where to begin or to end takes the same ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.client.link.client import LinkClient
    from headrace.log import Log

_AGO: Final = re.compile(r"-(\d{1,9})([smhd])", re.ASCII)
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(:\d\d)?", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)
MICROSECONDS: Final = 1_000_000
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXPECTED: Final = (
    "a number, earliest, now (or latest), a time such as 2026-01-31T10:30 or 10:30, or -5m (s, m, h, d): that long"
    " ago"
)


class SequenceEnd(Enum):
    """An end of the sequence."""

    EARLIEST = "earliest"
    NOW = "now"


_ENDS: Final = {"earliest": SequenceEnd.EARLIEST, "now": SequenceEnd.NOW, "latest": SequenceEnd.NOW}
"""``latest`` is what Kafka and Spark say for ``now``."""


@dataclass(frozen=True, slots=True)
class PointInTime:
    """A time, in seconds since 1970."""

    seconds: float


SequencePosition: TypeAlias = int | PointInTime | SequenceEnd


def parse_position(option: str, text: str, now: datetime | None = None) -> SequencePosition:
    """Parse the value of ``option``; ``now`` has its offset, and is this machine's time by default.

    >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> parse_position("--from", "12", noon), parse_position("--from", "now", noon)
    (12, <SequenceEnd.NOW: 'now'>)
    >>> noon.timestamp() - parse_position("--from", "-5m", noon).seconds
    300.0
    """
    now = now or datetime.now(UTC).astimezone()
    if text in _ENDS:
        return _ENDS[text]
    if _NUMBER.fullmatch(text):
        if not int(text):
            raise UsageError(
                f"{option} {text}: sequence numbers begin at 1; earliest is the oldest message that is kept"
            )
        return int(text)
    if found := _AGO.fullmatch(text):
        return PointInTime(max(0.0, now.timestamp() - int(found[1]) * _SECONDS[found[2]]))
    try:
        return PointInTime(max(0.0, _moment(text, now).timestamp()))
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text}: expected {_EXPECTED}") from None


class PositionedLog(Protocol):
    """A log, as far as positions need it."""

    async def bounds(self) -> tuple[int, int]:
        """Return the first message and the head."""

    async def seq_at(self, seconds: float) -> int:
        """Return the first message at or after a time; the one after the head if all are older."""


class HubLog:
    """The log of a running hub."""

    def __init__(self, link: LinkClient) -> None:
        self.link = link

    async def bounds(self) -> tuple[int, int]:
        """Return the first message and the head."""
        extent = await self.link.head()
        return extent.first, extent.head

    async def seq_at(self, seconds: float) -> int:
        """Return the first message at or after a time; the one after the head if all are older."""
        return await self.link.first_at(int(seconds * MICROSECONDS))


class FileLog:
    """A log's files."""

    def __init__(self, opened: Log) -> None:
        self.opened = opened

    async def bounds(self) -> tuple[int, int]:
        """Return the first message and the head."""
        return self.opened.first, self.opened.head

    async def seq_at(self, seconds: float) -> int:
        """Return the first message at or after a time; the one after the head if all are older."""
        return self.opened.seq_at(int(seconds * MICROSECONDS))


async def first_number(log: PositionedLog, position: SequencePosition) -> int:
    """Return the number of the first message from ``position`` on, or the next to come if there is none."""
    match position:
        case SequenceEnd.EARLIEST:
            return (await log.bounds())[0]
        case SequenceEnd.NOW:
            return (await log.bounds())[1] + 1
        case PointInTime(seconds):
            return await log.seq_at(seconds)
        case int():
            return position


def parse_end(option: str, text: str) -> SequencePosition:
    """Parse the value of an ``option`` that says where to end."""
    position = parse_position(option, text)
    if position is SequenceEnd.EARLIEST:
        raise UsageError(f"{option} earliest: expected a number, a time or now")
    return position


async def last_number(log: PositionedLog, position: SequencePosition) -> int:
    """Return the number of the last message up to ``position``: of a time, the last before it."""
    match position:
        case PointInTime(seconds):
            return await log.seq_at(seconds) - 1
        case int():
            return position
        case SequenceEnd():
            return (await log.bounds())[1]


def _moment(text: str, now: datetime) -> datetime:
    if _CLOCK.fullmatch(text):
        clock = time.fromisoformat(
            text.zfill(len("10:30")) if text.count(":") == 1 else text.zfill(len("10:30:15"))
        )
        today = datetime.combine(now.date(), clock, now.tzinfo)
        return today if today <= now else today - timedelta(days=1)
    moment = datetime.fromisoformat(text)
    # Without an offset, this machine's clock is meant.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)
