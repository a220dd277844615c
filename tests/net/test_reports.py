"""Reports: what a program beside the hub says of itself is in the status, and nowhere else."""

from __future__ import annotations

import pytest
from tests.net.linkpeer import link_peer

from headrace.errors import LimitError, MalformedError
from headrace.net.reports import MAX_BYTES, MAX_REPORTS, Reports
from headrace.net.server import Server


def test_the_newest_of_each_name() -> None:
    reports = Reports()
    reports.take("pipeline", {"state": "starting"}, 10.0)
    reports.take("pipeline", {"state": "running"}, 11.0)
    assert reports.facts(12.5) == {"pipeline": {"state": "running", "age": 1.5}}


def test_bounds() -> None:
    reports = Reports()
    for number in range(MAX_REPORTS):
        reports.take(str(number), {}, 0.0)
    reports.take("0", {"again": True}, 0.0)
    with pytest.raises(LimitError):
        reports.take("one more", {}, 0.0)
    with pytest.raises(LimitError):
        reports.take("0", {"text": "x" * MAX_BYTES}, 0.0)
    with pytest.raises(MalformedError):
        reports.take("0", {"what": object()}, 0.0)


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


async def test_what_readers_lost(server: Server) -> None:
    async with link_peer(server) as peer:
        each = {"a": {"messages": 9, "ranges": [[1, 9]]}}
        for number in range(2):
            told = await peer.ask(op="lost", id=number, reader="a", first=1, last=9)
            assert told == {"id": number, "ok": True, "lost": each}
        assert (await peer.ask(op="lost", id=3))["lost"] == each
        assert (await peer.ask(op="lost", id=4, reader="b"))["lost"] == {}
        for wrong in (
            {"first": 1, "last": 2},
            {"reader": "a", "first": 1},
            {"reader": "a", "first": 3, "last": 2},
        ):
            assert (await peer.ask(op="lost", id=5, **wrong))["error"] == "malformed"
    assert server.status()["lost"] == each
    assert server.hub.counters.get("reader_lost") == 9


async def test_what_is_measured_is_in_the_status(server: Server) -> None:
    from headrace.hub.changes import Change, Changes

    changes = Changes(server.hub, server.services)
    changes.publish([Change("measure/hour", b'{"messages":3}')], origin="spark", publisher="spark")
    server._turn()
    assert server.status()["measure"] == {"hour": {"messages": 3}}
