"""Places in the sequence as a person names them: a number, a time, its beginning or its end.

======================  ====================================================================
``1234``                that message
``earliest``            the first message that is kept
``now``                 whatever comes next
``2026-01-31T10:30:00`` the first message at or after then; without an offset it is local time
``10:30``, ``10:30:15`` the same, for the last time the clock showed that
``-90s -5m -2h -1d``    the same, for so long ago
======================  ====================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from typing import Final, TypeAlias

from headrace.errors import UsageError

_AGO: Final = re.compile(r"-(\d{1,9})([smhd])", re.ASCII)
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(:\d\d)?", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXPECTED: Final = (
    "a number, earliest, now, a time such as 2026-01-31T10:30 or 10:30, or -5m (s, m, h, d) for so long ago"
)


class End(Enum):
    """An end of the sequence."""

    EARLIEST = "earliest"
    NOW = "now"


@dataclass(frozen=True, slots=True)
class Then:
    """A time: seconds since 1970."""

    seconds: float


Place: TypeAlias = int | Then | End


def parse_place(option: str, text: str, now: datetime) -> Place:
    """What ``option`` was given, ``now`` being the time with its offset.

    >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> parse_place("--from", "12", noon), parse_place("--from", "now", noon)
    (12, <End.NOW: 'now'>)
    >>> noon.timestamp() - parse_place("--from", "-5m", noon).seconds
    300.0
    """
    if text in (End.EARLIEST.value, End.NOW.value):
        return End(text)
    if _NUMBER.fullmatch(text):
        if not int(text):
            raise UsageError(f"{option} {text}: sequence numbers begin at 1")
        return int(text)
    if found := _AGO.fullmatch(text):
        return Then(max(0.0, now.timestamp() - int(found[1]) * _SECONDS[found[2]]))
    try:
        return Then(max(0.0, _moment(text, now).timestamp()))
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text}: expected {_EXPECTED}") from None


def here() -> datetime:
    """The time now, with the offset of this machine."""
    return datetime.now(UTC).astimezone()


def _moment(text: str, now: datetime) -> datetime:
    if _CLOCK.fullmatch(text):
        clock = time.fromisoformat(
            text.zfill(len("10:30")) if text.count(":") == 1 else text.zfill(len("10:30:15"))
        )
        today = datetime.combine(now.date(), clock, now.tzinfo)
        return today if today <= now else today - timedelta(days=1)
    moment = datetime.fromisoformat(text)
    # What has no offset is meant as this machine's clock shows it.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)
