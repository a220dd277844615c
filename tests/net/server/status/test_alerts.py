"""What is wrong now, from a hub's facts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from headrace.hub.counters import Counters
from headrace.net.server.status.alerts import FAR_BEHIND, REFUSALS, WINDOW_SECONDS, RefusalRate, alerts_from

WELL: dict[str, Any] = {
    "problems": {},
    "disk": {"bytes": 10, "free": 500, "size": 1000},
    "consumers": {"billing": {"behind": 10, "behind_exact": True, "lost": 0}},
    "lost": {},
    "pipeline": {"state": "running", "age": 1.0, "jobs": {"archive": {"state": "running", "batch": 3}}},
}

OUTBOX: dict[str, Any] = {"messages": 7, "bytes": 79, "most_bytes": 100, "aside": 0, "problem": None}


def kinds(facts: dict[str, Any], refusals: dict[str, int] | None = None) -> list[tuple[str, str]]:
    return [(each.alert, each.about) for each in alerts_from({**WELL, **facts}, Counter(refusals or {}))]


def test_a_hub_that_is_well_has_no_alert() -> None:
    assert kinds({}) == []
    assert kinds({"upstream": None}) == kinds({"upstream": {"outbox": None}}) == []
    assert kinds({"upstream": {"outbox": OUTBOX}}) == []


@pytest.mark.parametrize(
    ("facts", "alert"),
    [
        ({"problems": {"sync": "the disk failed"}}, ("sync", "")),
        ({"problems": {"something new": "it fails"}}, ("something new", "")),
        ({"disk": {"bytes": 10, "free": 99, "size": 1000}}, ("disk_filling", "")),
        (
            {"consumers": {"a": {"behind": FAR_BEHIND, "behind_exact": False, "lost": 0}}},
            ("consumer_behind", "a"),
        ),
        ({"consumers": {"a": {"behind": 0, "behind_exact": True, "lost": 5}}}, ("consumer_lost", "a")),
        ({"lost": {"verify": {"messages": 7}}}, ("reader_lost", "verify")),
        (
            {"pipeline": {"state": "running", "age": 1.0, "jobs": {"m": {"state": "restarting"}}}},
            ("job_failing", "m"),
        ),
        ({"pipeline": {"state": "running", "age": 100.0, "jobs": {}}}, ("pipeline_silent", "")),
        ({"upstream": {"outbox": {**OUTBOX, "bytes": 80}}}, ("outbox", "")),
        ({"upstream": {"outbox": {**OUTBOX, "problem": "it cannot be read"}}}, ("outbox", "")),
        ({"upstream": {"outbox": {**OUTBOX, "aside": 3}}}, ("outbox_aside", "")),
        ({"loop": {"slow_lately": True, "last": {"seconds": 0.2, "cause": "encode:7"}}}, ("slow_turn", "")),
    ],
)
def test_each_trouble_is_an_alert(facts: dict[str, Any], alert: tuple[str, str]) -> None:
    assert kinds(facts) == [alert]


def test_a_pipeline_that_was_stopped_is_not_missed() -> None:
    assert kinds({"pipeline": {"state": "stopped", "age": 1e6, "jobs": {}}}) == []


def test_a_report_of_another_shape_is_passed_over() -> None:
    assert kinds({"pipeline": {"jobs": 5}}) == []
    assert kinds({"pipeline": {"state": "stopped", "age": 1.0, "jobs": {"a": 7}}}) == []


def test_a_full_disk_is_told_once() -> None:
    facts = {"problems": {"room": "only 3 MiB are free"}, "disk": {"bytes": 10, "free": 1, "size": 1000}}
    assert kinds(facts) == [("room", "")]


def test_many_refusals_are_an_alert_that_names_the_door() -> None:
    assert kinds({}, {"spp, malformed": REFUSALS - 1}) == []
    assert kinds({}, {"spp, malformed": REFUSALS, "sdk, idle": 3}) == [("refusals", "spp")]


def test_refusals_are_counted_for_a_minute() -> None:
    counters, rate = Counters(), RefusalRate()
    counters.add("refused", 100, door="sdk", reason="idle")
    rate.sample(0.0, counters)
    assert rate.lately().total() == 0
    counters.add("refused", 5, door="sdk", reason="idle")
    counters.add("refused", 2, door="spp", reason="slow")
    rate.sample(0.5, counters)
    assert rate.lately().total() == 0
    rate.sample(1.0, counters)
    assert rate.lately() == {"sdk, idle": 5, "spp, slow": 2}
    rate.sample(1.0 + WINDOW_SECONDS, counters)
    assert rate.lately().total() == 0
