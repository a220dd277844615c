from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.places import End, Place, Then, parse_place
from headrace.errors import UsageError

NOW = datetime(2026, 1, 31, 10, 30, 15, tzinfo=timezone(timedelta(hours=1)))


def then(*moment: int, offset: int = 1) -> Then:
    return Then(datetime(*moment, tzinfo=timezone(timedelta(hours=offset))).timestamp())  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("1", 1),
        ("281474976710655", (1 << 48) - 1),
        ("earliest", End.EARLIEST),
        ("now", End.NOW),
        ("-90s", then(2026, 1, 31, 10, 28, 45)),
        ("-5m", then(2026, 1, 31, 10, 25, 15)),
        ("-2h", then(2026, 1, 31, 8, 30, 15)),
        ("-1d", then(2026, 1, 30, 10, 30, 15)),
        ("-999999999d", Then(0.0)),
        ("10:30", then(2026, 1, 31, 10, 30)),
        ("8:05", then(2026, 1, 31, 8, 5)),
        ("8:05:07", then(2026, 1, 31, 8, 5, 7)),
        ("10:31", then(2026, 1, 30, 10, 31)),
        ("2026-01-31T10:30", then(2026, 1, 31, 10, 30)),
        ("2026-01-31 10:30", then(2026, 1, 31, 10, 30)),
        ("2026-01-31", then(2026, 1, 31)),
        ("2026-01-31T10:30:00Z", then(2026, 1, 31, 10, 30, offset=0)),
        ("2026-01-31T10:30:00-03:00", then(2026, 1, 31, 10, 30, offset=-3)),
        ("1900-01-01", Then(0.0)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place("--from", text, NOW) == place


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "-5", "-5w", "25:00", "10:60", "yesterday", "Now", "1e3", "٣"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UsageError, match="--from"):
        parse_place("--from", text, NOW)


@given(st.text() | st.from_regex(r"-?[0-9:TZ+-]{1,30}", fullmatch=True))
def test_anything_is_a_place_or_a_usage_error(text: str) -> None:
    try:
        place = parse_place("--until", text, datetime.now(UTC))
    except UsageError:
        return
    assert isinstance(place, End) or (place.seconds >= 0 if isinstance(place, Then) else place >= 1)
