"""Positions in the sequence as a person names them: a number, a time, its beginning or its end.

A time stands for the first message at or after it; ``docs/cli.md`` lists the forms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.client.link.client import LinkClient

_AGO: Final = re.compile(r"-(\d{1,9})([smhd])", re.ASCII)
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(:\d\d)?", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXPECTED: Final = (
    "a number, earliest, now, a time such as 2026-01-31T10:30 or 10:30, or -5m (s, m, h, d): that long ago"
)


class SequenceEnd(Enum):
    """An end of the sequence."""

    EARLIEST = "earliest"
    NOW = "now"


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
    if text in (SequenceEnd.EARLIEST.value, SequenceEnd.NOW.value):
        return SequenceEnd(text)
    if _NUMBER.fullmatch(text):
        if not int(text):
            raise UsageError(f"{option} {text}: sequence numbers begin at 1")
        return int(text)
    if found := _AGO.fullmatch(text):
        return PointInTime(max(0.0, now.timestamp() - int(found[1]) * _SECONDS[found[2]]))
    try:
        return PointInTime(max(0.0, _moment(text, now).timestamp()))
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text}: expected {_EXPECTED}") from None


async def sequence_number(link: LinkClient, position: SequencePosition) -> int:
    """Return the number of the first message from ``position`` on, or the next to come if there is none."""
    match position:
        case SequenceEnd.EARLIEST:
            return (await link.head()).first
        case SequenceEnd.NOW:
            return (await link.head()).head + 1
        case PointInTime(seconds):
            async with link.follow(from_time=seconds) as stream:
                return await stream.begun()
        case int():
            return position


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
