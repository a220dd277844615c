"""Reports of users' own queries: what a hub is told of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.spark.hubs import Hub, until

from headrace.spark.hub_connections import close_links
from headrace.spark.options import HubOptions
from headrace.spark.query_reports import MAX_QUERIES, QueryReports, watch


@pytest.fixture
def reports(hub: Hub) -> Iterator[QueryReports]:
    made = QueryReports(HubOptions.to(hub.servers), "local[2]")
    yield made
    made.stop()
    close_links()


def shown(hub: Hub) -> dict[str, dict[str, object]]:
    with hub.link() as link:
        found: dict[str, dict[str, object]] = link.status().get("pipeline", {}).get("jobs", {})
        return found


def progress(query: str, seq: int | None, **more: object) -> SimpleNamespace:
    sources = [{"endOffset": None}, {"endOffset": {"log": "x", "seq": seq}}]
    told = {
        "id": query, "batchId": 3, "timestamp": "now", "numInputRows": 10, "processedRowsPerSecond": 5.0,
        "durationMs": {"triggerExecution": 250}, "sources": sources, **more,
    }  # fmt: skip
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told)))


def test_a_query_is_shown_with_its_lag_even_while_it_tells_nothing(hub: Hub, reports: QueryReports) -> None:
    hub.publish([b"x"] * 20)
    reports.onQueryStarted(SimpleNamespace(id="q1", name="mine"))
    reports.onQueryProgress(progress("q1", 15))
    until(lambda: shown(hub).get("mine", {}).get("behind") == 5)
    hub.publish([b"x"] * 100)
    until(lambda: shown(hub)["mine"]["behind"] == 105)
    assert shown(hub)["mine"] | {"behind": 0} == {
        "state": "running", "batch": 3, "time": "now", "rows": 10, "rows_per_second": 5.0, "batch_seconds": 0.25,
        "seq": 15, "behind": 0,
    }  # fmt: skip


def test_queries_that_ran_before_are_shown_by_their_names(hub: Hub) -> None:
    """One that had nothing to do was not shown, and one that had was shown by its id."""
    heard: list[QueryReports] = []

    def listen(reports: QueryReports) -> None:
        heard.append(reports)
        reports.onQueryTerminated(SimpleNamespace(id="q1", exception=None))

    running = [SimpleNamespace(id="q0", name="idle"), SimpleNamespace(id="q1", name=None)]
    spark: Any = SimpleNamespace(
        streams=SimpleNamespace(addListener=listen, active=running),
        sparkContext=SimpleNamespace(master="local[2]"),
    )
    reports = watch(spark, servers=hub.servers)
    try:
        assert heard == [reports]
        reports.onQueryProgress(progress("q0", None))
        states = {name: facts["state"] for name, facts in reports.facts()["jobs"].items()}  # type: ignore[attr-defined]
        assert states == {"idle": "running", "q1": "stopped"}
    finally:
        reports.stop()
        close_links()


def test_a_failure_is_told_in_a_sentence(
    hub: Hub, reports: QueryReports, caplog: pytest.LogCaptureFixture
) -> None:
    reports.onQueryStarted(SimpleNamespace(id="q2-long-id", name=None))
    text = "requirement failed: headrace does not support Update mode."
    reports.onQueryTerminated(SimpleNamespace(id="q2-long-id", exception=text))
    until(lambda: "q2-long-" in shown(hub))
    assert shown(hub)["q2-long-"] == {"state": "failed", "error": text}
    assert "from foreachBatch" in caplog.text
    reports.onQueryTerminated(SimpleNamespace(id="other", exception=None))
    until(lambda: shown(hub).get("other") == {"state": "stopped"})


def test_only_so_many_queries_are_told_of(reports: QueryReports) -> None:
    reports.onQueryStarted(SimpleNamespace(id="first", name="first"))
    for number in range(2 * MAX_QUERIES):
        reports.onQueryStarted(SimpleNamespace(id=str(number), name=None))
        reports.onQueryTerminated(SimpleNamespace(id=str(number), exception=None))
    jobs = reports.facts()["jobs"]
    assert isinstance(jobs, dict)
    assert len(jobs) == MAX_QUERIES
    assert jobs["first"] == {"state": "running"}
