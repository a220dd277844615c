from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.terminal.positions import PointInTime, SequenceEnd, SequencePosition, parse_position
from headrace.errors import UsageError

NOW = datetime(2026, 1, 31, 10, 30, 15, tzinfo=timezone(timedelta(hours=1)))


def then(*moment: int, offset: int = 1) -> PointInTime:
    return PointInTime(datetime(*moment, tzinfo=timezone(timedelta(hours=offset))).timestamp())  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1", 1),
        ("281474976710655", (1 << 48) - 1),
        ("earliest", SequenceEnd.EARLIEST),
        ("now", SequenceEnd.NOW),
        ("latest", SequenceEnd.NOW),
        ("-90s", then(2026, 1, 31, 10, 28, 45)),
        ("-5m", then(2026, 1, 31, 10, 25, 15)),
        ("-2h", then(2026, 1, 31, 8, 30, 15)),
        ("-1d", then(2026, 1, 30, 10, 30, 15)),
        ("-999999999d", PointInTime(0.0)),
        ("10:30", then(2026, 1, 31, 10, 30)),
        ("8:05", then(2026, 1, 31, 8, 5)),
        ("8:05:07", then(2026, 1, 31, 8, 5, 7)),
        ("10:31", then(2026, 1, 30, 10, 31)),
        ("2026-01-31T10:30", then(2026, 1, 31, 10, 30)),
        ("2026-01-31 10:30", then(2026, 1, 31, 10, 30)),
        ("2026-01-31", then(2026, 1, 31)),
        ("2026-01-31T10:30:00Z", then(2026, 1, 31, 10, 30, offset=0)),
        ("2026-01-31T10:30:00-03:00", then(2026, 1, 31, 10, 30, offset=-3)),
        ("1900-01-01", PointInTime(0.0)),
    ],
)
def test_positions(text: str, position: SequencePosition) -> None:
    assert parse_position("--from", text, NOW) == position


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "-5", "-5w", "25:00", "10:60", "yesterday", "Now", "1e3", "٣"]
)
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(UsageError, match="--from"):
        parse_position("--from", text, NOW)


@given(st.text() | st.from_regex(r"-?[0-9:TZ+-]{1,30}", fullmatch=True))
def test_anything_is_a_position_or_a_usage_error(text: str) -> None:
    try:
        found = parse_position("--until", text, datetime.now(UTC))
    except UsageError:
        return
    assert isinstance(found, SequenceEnd) or (
        found.seconds >= 0 if isinstance(found, PointInTime) else found >= 1
    )
