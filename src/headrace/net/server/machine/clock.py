"""The machine's clock, which stamps messages."""

from __future__ import annotations

from time import monotonic_ns, time_ns

from headrace.hub.steady_clock import SteadyClock


def machine_clock() -> SteadyClock:
    """Make a clock of the machine's time and uptime."""
    return SteadyClock(lambda: time_ns() // 1000, lambda: monotonic_ns() // 1000)
