"""Samples: counts become rates, labels stay apart, and only so many are kept."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.hub.counters import Counters
from headrace.web.api.history import SAMPLES, History, Levels, Measured, jobs_from, measured_from

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


def test_what_is_measured_is_a_rate_by_the_growth_of_its_minute() -> None:
    history = History()

    def taken(now: float, measured: Measured | None) -> dict[str, float]:
        levels = msgspec.structs.replace(LEVELS, measured=measured)
        return history.take(now, levels, Counters()).measured

    lag = {"p50": 0.5}
    assert taken(0.0, None) == {}
    assert taken(1.0, Measured("12:00", 100, lag)) == {"p50": 0.5}, "one figure makes no rate"
    assert taken(2.0, Measured("12:00", 350, lag))["rate"] == 250.0
    assert taken(3.0, Measured("12:00", 350, lag))["rate"] == 250.0, (
        "its micro-batch takes more than a second"
    )
    assert taken(4.0, Measured("12:00", 850, lag))["rate"] == 250.0
    assert taken(5.0, Measured("12:01", 20, lag))["rate"] == 250.0, "how many the old minute got is not known"
    assert taken(6.0, Measured("12:01", 320, lag))["rate"] == 300.0
    for second in range(1, 10):
        assert taken(6.0 + second, Measured("12:01", 320 + 200 * second, lag))["rate"] >= 200.0
    assert taken(16.0, Measured("12:01", 2320, lag))["rate"] == 200.0, "of the last few alone"
    assert taken(40.0, Measured("12:01", 2320, lag)) == {}, "nobody knows whether all is quiet"
    assert taken(41.0, Measured("12:01", 2420, lag)) == {"rate": 25.0, "p50": 0.5}


def test_what_measure_shows_is_taken_as_it_is_published() -> None:
    window = {"span": 60, "start": "2026-01-31T12:00:00Z", "messages": 7, "lag": {"p50": 0.1, "max": 3.0}}
    shown = {"minute": window, "second": {**window, "span": 1}}
    assert measured_from(shown) == Measured("2026-01-31T12:00:00Z", 7, {"p50": 0.1})
    assert measured_from({}) is None
    assert measured_from({"minute": {"start": 5}, "second": window}) is None
    for messages in (10**400, 1 << 63, -1):
        strange = {**window, "messages": messages}
        assert measured_from({"minute": strange, "second": window}) is None


def test_what_content_routing_matched_is_a_rate() -> None:
    counters, history = Counters(), History()
    history.take(0.0, LEVELS, counters)
    counters.add("matched", 30, what="messages")
    counters.add("matched", 60, what="clients")
    assert history.take(2.0, LEVELS, counters).matched == {"messages": 15.0, "clients": 30.0}


def test_jobs_are_taken_as_far_as_they_have_figures() -> None:
    job = {"state": "running", "rows_per_second": 12.3456, "batch_seconds": 2, "behind": None, "rows": 7}
    strange = {"rows_per_second": "many", "behind": True}
    reported = {"jobs": {"archive": job, "x" * 100: strange, "none": 5}, "age": 0.1}
    found = {"archive": {"rows_per_second": 12.346, "batch_seconds": 2.0}, "x" * 64: {}}
    assert jobs_from(reported) == found
    assert jobs_from(None) == jobs_from({"jobs": [1]}) == {}
    assert len(jobs_from({"jobs": {str(number): {} for number in range(99)}})) == 16
    levels = msgspec.structs.replace(LEVELS, jobs=found)
    assert History().take(0.0, levels, Counters()).jobs == found


def test_samples_survive_a_restart_as_far_as_they_are_recent(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    before = History()
    for second in range(1000, 1000 + SAMPLES):
        before.take(float(second), LEVELS, Counters())
    before.save(path)
    after = History()
    after.load(path, 1000.0 + SAMPLES + 5)
    assert [sample.time for sample in after.samples] == [float(each) for each in range(1005, 1000 + SAMPLES)]
    assert after.samples[-1] == before.samples[-1]
    path.write_text("[{")
    after.load(path, 2000.0)
    after.load(tmp_path / "absent", 2000.0)
