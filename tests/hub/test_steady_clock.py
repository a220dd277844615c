"""A clock that steps is not believed until it has stayed where it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.steady_clock import PATIENCE, STEP, SteadyClock

SECOND = 1_000_000
HOUR = 3600 * SECOND


class Machine:
    """A machine's two clocks."""

    def __init__(self) -> None:
        self.uptime = 5 * SECOND
        self.ahead = 1 << 50

    def steady(self) -> SteadyClock:
        return SteadyClock(lambda: self.uptime + self.ahead, lambda: self.uptime)


def test_it_follows_a_clock_that_is_kept_right() -> None:
    machine = Machine()
    clock = machine.steady()
    for _ in range(100):
        machine.uptime += SECOND
        machine.ahead += STEP // 2
        assert clock.now() == machine.uptime + machine.ahead
    assert not clock.stepped


@given(st.sampled_from([25 * HOUR, -25 * HOUR, 2 * SECOND]), st.integers(1, PATIENCE - SECOND))
def test_a_step_that_is_taken_back_is_ignored(step: int, lasted: int) -> None:
    machine = Machine()
    clock = machine.steady()
    before = machine.ahead
    machine.ahead += step
    assert clock.now() == machine.uptime + before
    machine.uptime += lasted
    assert clock.now() == machine.uptime + before
    assert clock.stepped
    machine.ahead = before
    assert clock.now() == machine.uptime + before
    assert not clock.stepped


def test_a_step_that_stays_is_believed_after_some_minutes() -> None:
    machine = Machine()
    clock = machine.steady()
    machine.ahead += 25 * HOUR
    clock.now()
    machine.uptime += PATIENCE
    assert clock.now() == machine.uptime + machine.ahead
    assert not clock.stepped


def test_a_second_step_has_to_last_by_itself() -> None:
    machine = Machine()
    clock = machine.steady()
    before = machine.ahead
    machine.ahead = before + 2 * SECOND
    clock.now()
    # Nobody looks while the clock is right again, and then it is wrong by far.
    machine.uptime += PATIENCE + SECOND
    machine.ahead = before + 25 * HOUR
    assert clock.now() == machine.uptime + before
    machine.uptime += PATIENCE - 1
    assert clock.now() == machine.uptime + before
    machine.uptime += 1
    assert clock.now() == machine.uptime + machine.ahead
    assert not clock.stepped


def test_a_step_that_is_kept_right_meanwhile_is_believed_as_soon() -> None:
    machine = Machine()
    clock = machine.steady()
    machine.ahead += 25 * HOUR
    clock.now()
    machine.uptime += PATIENCE
    machine.ahead += STEP
    assert clock.now() == machine.uptime + machine.ahead
