from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.backbone.pacing import Pace, TokenBucket

PACE = Pace(datagrams_per_second=100, bytes_per_second=10_000, burst_datagrams=8, burst_bytes=1_000)


def test_a_burst_goes_at_once_and_no_more() -> None:
    bucket = TokenBucket(PACE, now=0)
    assert bucket.allowance(0) == (8, 1_000)
    bucket.spend(8, 80)
    assert bucket.allowance(0) == (0, 0)


def test_time_refills_up_to_one_burst() -> None:
    bucket = TokenBucket(PACE, now=0)
    bucket.spend(8, 1_000)
    assert bucket.allowance(0.02) == (2, 200)
    assert bucket.allowance(60) == (8, 1_000)


def test_bytes_run_out_before_datagrams_do() -> None:
    bucket = TokenBucket(PACE, now=0)
    bucket.spend(1, 1_000)
    assert bucket.allowance(0) == (0, 0)


def test_a_debt_is_paid_by_time() -> None:
    bucket = TokenBucket(PACE, now=0)
    bucket.spend(1, 65_507)
    assert bucket.allowance(6) == (0, 0)
    assert bucket.allowance(6.5) == (8, 493)


def test_time_that_goes_backwards_takes_nothing_away() -> None:
    bucket = TokenBucket(PACE, now=10)
    assert bucket.allowance(9) == (8, 1_000)


@given(
    st.floats(0.5, 1e6),
    st.floats(1, 1e9),
    st.integers(1, 1_000),
    st.integers(1, 1_000_000),
    st.floats(0, 1e7),
    st.integers(0, 200_000),
)
def test_something_may_go_when_it_says_it_is_ready(
    rate: float, bytes_rate: float, burst: int, burst_bytes: int, now: float, spent: int
) -> None:
    bucket = TokenBucket(Pace(rate, bytes_rate, burst, burst_bytes), now)
    bucket.spend(burst, spent)
    ready = max(now, bucket.ready())
    assert bucket.allowance(ready) != (0, 0)


@given(st.lists(st.floats(0, 0.1), min_size=1))
def test_the_long_run_rate_is_kept(waits: list[float]) -> None:
    bucket = TokenBucket(PACE, now=0)
    now, sent = 0.0, 0
    for wait in waits:
        now += wait
        datagrams, _ = bucket.allowance(now)
        bucket.spend(datagrams, 0)
        sent += datagrams
    assert sent <= PACE.burst_datagrams + now * PACE.datagrams_per_second + 0.1
