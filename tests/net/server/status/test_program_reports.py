"""Reports: what a program beside the hub says of itself is in the status, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.net.linkpeer import link_peer

from headrace.errors import LimitError, MalformedError
from headrace.net.server.process import Server
from headrace.net.server.status.program_reports import (
    BESIDE_SECONDS,
    MAX_BYTES,
    MAX_REPORTS,
    STALE_SECONDS,
    ProgramReports,
)
from headrace.wire.link.message import parse


def test_the_newest_of_each_name() -> None:
    reports = ProgramReports()
    reports.take("pipeline", {"state": "starting"}, 10.0)
    reports.take("pipeline", {"state": "running"}, 11.0)
    assert reports.facts(12.5) == {"pipeline": {"state": "running", "age": 1.5}}


def pipeline(pid: int, *jobs: str, state: str = "running") -> dict[str, Any]:
    return {"pid": pid, "state": state, "jobs": {job: {"of": pid} for job in jobs}}


def shown(reports: ProgramReports, now: float) -> tuple[int, dict[str, int], float]:
    facts: Any = reports.facts(now)["pipeline"]
    return facts["pid"], {name: job["of"] for name, job in facts["jobs"].items()}, facts["age"]


def test_pipelines_beside_one_another_are_shown_together() -> None:
    """Else a status would be now of the one, now of the other."""
    reports = ProgramReports()
    reports.take("pipeline", pipeline(1, "archive", "measure"), 10.0)
    reports.take("pipeline", pipeline(2, "match"), 10.5)
    assert shown(reports, 10.5) == (2, {"archive": 1, "measure": 1, "match": 2}, 0.0)
    reports.take("pipeline", pipeline(1, "archive", "measure"), 11.0)
    assert shown(reports, 11.0) == (2, {"archive": 1, "measure": 1, "match": 2}, 0.5)
    reports.take("pipeline", pipeline(2, "match", state="stopped"), 12.0)
    assert shown(reports, 12.0)[0] == 2, "how it ended is told until another says something"
    reports.take("pipeline", pipeline(1, "archive", "measure"), 12.5)
    assert shown(reports, 12.5) == (1, {"archive": 1, "measure": 1}, 0.0)


def test_a_pipeline_in_the_place_of_another_takes_its_jobs() -> None:
    reports = ProgramReports()
    reports.take("pipeline", pipeline(1, "archive", "measure"), 10.0)
    reports.take("pipeline", pipeline(2, "archive"), 11.0)
    assert shown(reports, 11.0) == (2, {"archive": 2, "measure": 1}, 0.0)
    reports.take("pipeline", pipeline(2, "archive"), 10.0 + BESIDE_SECONDS)
    assert shown(reports, 10.0 + BESIDE_SECONDS) == (2, {"archive": 2}, 0.0)
    reports.take("pipeline", {"state": "running"}, 21.0)
    assert reports.facts(21.0) == {"pipeline": {"state": "running", "age": 0.0}}


def test_processes_count_too() -> None:
    reports = ProgramReports()
    for number in range(MAX_REPORTS):
        reports.take("pipeline", pipeline(number), 0.0)
    reports.take("pipeline", pipeline(0), 0.0)
    with pytest.raises(LimitError):
        reports.take("pipeline", pipeline(MAX_REPORTS), 0.0)


def test_bounds() -> None:
    reports = ProgramReports()
    for number in range(MAX_REPORTS):
        reports.take(str(number), {}, 0.0)
    reports.take("0", {"again": True}, 0.0)
    with pytest.raises(LimitError):
        reports.take("one more", {}, 0.0)
    with pytest.raises(LimitError):
        reports.take("0", {"text": "x" * MAX_BYTES}, 0.0)
    with pytest.raises(MalformedError):
        reports.take("0", {"what": object()}, 0.0)


def test_all_together_are_bounded() -> None:
    reports = ProgramReports()
    half = {"text": "x" * (MAX_BYTES // 2 - 100)}
    for name in ("a", "b", "a"):
        reports.take(name, half, 0.0)
    with pytest.raises(LimitError):
        reports.take("c", half, STALE_SECONDS - 1)
    reports.take("b", half, STALE_SECONDS - 1)
    assert set(reports.facts(0.0)) == {"a", "b"}
    reports.take("c", half, STALE_SECONDS + 1)
    assert set(reports.facts(0.0)) == {"b", "c"}, "one that is renewed stays"


def test_too_many_give_way_too() -> None:
    reports = ProgramReports()
    for number in range(MAX_REPORTS):
        reports.take(str(number), {}, 0.0)
    reports.take("0", {}, STALE_SECONDS)
    assert len(reports.facts(0.0)) == MAX_REPORTS, "there is room for it without that"
    reports.take("one more", {}, STALE_SECONDS)
    assert set(reports.facts(0.0)) == {"0", "one more"}


def _nested(depth: int) -> dict[str, Any]:
    return {"in": _nested(depth - 1)} if depth > 1 else {}


@pytest.mark.parametrize(
    "facts", [{"text": "x" * 60_000}, {"numbers": [0.5] * 7_000}, _nested(7), _nested(8)]
)
async def test_no_report_makes_the_status_unreadable(server: Server, facts: dict[str, Any]) -> None:
    async with link_peer(server) as peer:
        for number in range(3):
            await peer.ask(op="report", id=1, name=f"report {number}", facts=facts)
        await peer.say(op="status", id=2)
        parse(await peer.tube.receive())
        assert (await peer.ask(op="status", id=3))["ok"]


async def test_over_the_link(server: Server) -> None:
    async with link_peer(server) as peer:
        assert await peer.ask(op="report", id=1, name="pipeline", facts={"jobs": {}}) == {"id": 1, "ok": True}
        # A fact of the hub's own cannot be replaced, and nothing of this is in the log.
        assert (await peer.ask(op="report", id=2, name="head", facts={"wrong": 1}))["ok"]
        status = (await peer.ask(op="status", id=3))["status"]
        assert status["pipeline"]["jobs"] == {}
        assert status["head"] == 0
        refused = await peer.ask(op="report", id=4, name="", facts={})
        assert refused["error"] == "malformed"


async def test_what_is_measured_is_in_the_status(server: Server) -> None:
    from headrace.hub.services.publish import ServiceChange, ServicePublishing

    changes = ServicePublishing(server.hub, server.services)
    changes.publish([ServiceChange("measure/hour", b'{"messages":3}')], origin="spark", publisher="spark")
    server.hub.take_turn()
    assert server.status()["measure"] == {"hour": {"messages": 3}}
    for odd in (b'{"messages":%s}' % (b"9" * 400), b'{"messages":"%s"}' % (b"x" * 200_000)):
        changes.publish([ServiceChange("measure/minute", odd)], origin="spp", publisher="somebody")
        server.hub.take_turn()
        assert server.services.get("measure/minute") is not None
        assert server.status()["measure"] == {"hour": {"messages": 3}}
