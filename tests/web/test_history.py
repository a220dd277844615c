"""Samples: counts become rates, labels stay apart, and only so many are kept."""

from __future__ import annotations

from headrace.hub.counters import Counters
from headrace.web.history import SAMPLES, History, Levels

LEVELS = Levels(head=5, tail=6, first=1, bytes=100, connections=2, behind=3)


def test_the_first_sample_has_levels_and_no_rates() -> None:
    counters = Counters()
    counters.add("received", 50, origin="spp")
    sample = History().take(1000.0, LEVELS, counters)
    assert (sample.head, sample.tail, sample.bytes, sample.behind) == (5, 6, 100, 3)
    assert sample.received == {"spp": 0.0}


def test_counts_become_rates_by_protocol_and_door() -> None:
    counters, history = Counters(), History()
    history.take(1000.0, LEVELS, counters)
    counters.add("received", 50, origin="spp")
    counters.add("delivered", 10, door="fyrehose", transport="tcp")
    counters.add("delivered", 20, door="fyrehose", transport="udp")
    counters.add("refused", 4, door="spp", reason="a")
    counters.add("refused", 6, door="http", reason="b")
    sample = history.take(1002.0, LEVELS, counters)
    assert sample.received == {"spp": 25.0}
    assert sample.delivered == {"fyrehose": 15.0}
    assert (sample.refused, sample.repaired) == (5.0, 0.0)
    again = history.take(1003.0, LEVELS, counters)
    assert again.received == {"spp": 0.0}


def test_a_clock_that_stands_still_or_goes_back_divides_by_nothing() -> None:
    counters, history = Counters(), History()
    history.take(1000.0, LEVELS, counters)
    counters.add("received", 1, origin="spp")
    assert history.take(999.0, LEVELS, counters).received["spp"] >= 0


def test_only_so_many_are_kept() -> None:
    history = History()
    for second in range(SAMPLES + 5):
        history.take(float(second), LEVELS, Counters())
    assert len(history.samples) == SAMPLES
    assert history.samples[0].time == 5.0
