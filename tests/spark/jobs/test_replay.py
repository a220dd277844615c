"""The pace of a replay, by a clock that the test moves."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.spark.jobs.rows import rows

from headrace.errors import UsageError
from headrace.spark.jobs.replay import Pace, _edge, paced


def played(table: pa.Table, pace: Pace, batch: int) -> list[tuple[float, int]]:
    """When each message went out, in seconds."""
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    sent = []
    for part in paced(table.to_batches(batch), pace, lambda: now, sleep):
        sent += [(now - 100, seq) for seq in part.column("seq").to_pylist()]
    return sent


def test_at_once() -> None:
    assert played(rows(1, 50), Pace(), 7) == [(0.0, seq) for seq in range(1, 51)]


@pytest.mark.parametrize(
    ("pace", "each"), [(Pace(rate=10), 0.1), (Pace(speed=1), 0.5), (Pace(speed=10), 0.05)], ids=str
)
def test_paced(pace: Pace, each: float) -> None:
    sent = played(rows(1, 100, step=500_000), pace, 9)
    assert [seq for _, seq in sent] == list(range(1, 101))
    for at, seq in sent:
        assert at == pytest.approx((seq - 1) * each, abs=0.021)


def test_edges() -> None:
    assert _edge("12", ">=") == "seq >= 12"
    assert _edge("1970-01-01T00:00:01Z", "<=") == "unix_micros(time) <= 1000000"
    assert _edge("1970-01-01T00:00:01", "<=") == "unix_micros(time) <= 1000000"
    assert _edge("2026-01-31T12:00:00.000007Z", ">=") == "unix_micros(time) >= 1769860800000007"
    with pytest.raises(UsageError, match="a sequence number or a time"):
        _edge("yesterday", ">=")
