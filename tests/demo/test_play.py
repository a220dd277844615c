"""The play against a real hub, in this process: what everyone gets, and that the audit notices what is wrong."""

from __future__ import annotations

import asyncio
import doctest
import json
from collections.abc import Iterator

import pytest
from tests.net.raw import until

from headrace.demo import audit, listeners
from headrace.demo.audit import Audit, judge, read_log
from headrace.demo.listeners import Neighbour, satisfies
from headrace.demo.play import Play, SparkEnd
from headrace.demo.town import VehicleProtocol
from headrace.testing import Hub

SETTINGS = {"matching.json_attributes": True}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub(SETTINGS) as hub:
        yield hub


@pytest.fixture(scope="module")
def played(hub: Hub) -> tuple[Play, Audit]:
    looks: list[str] = []
    play = Play(hub.doors, vehicles=12, seconds=2.0, spark=lambda: SparkEnd("there is none", True))
    result = asyncio.run(play.run(lambda: looks.append(play.phase)))
    assert {"driving", "finishing"} <= set(looks)
    return play, result


def test_examples() -> None:
    assert doctest.testmod(listeners).failed == 0


def test_everything_is_well(played: tuple[Play, Audit]) -> None:
    play, result = played
    assert result.good, result.findings
    assert [finding.what for finding in result.findings] == ["sequence", "messages", "matching", "parcel"]
    assert play.phase == "over"
    assert set(result.messages) == set(VehicleProtocol)
    assert all(count > 0 for count in result.messages.values())
    assert result.messages == play.fleet.sent
    assert play.neighbour.asked >= 1


def test_watches_have_what_lies_in_their_ranges(hub: Hub, played: tuple[Play, Audit]) -> None:
    play, _ = played
    said = [
        json.loads(message.payload) for message in hub.messages() if message.origin in set(VehicleProtocol)
    ]
    for watch in play.watches:
        wanted = [words for words in said if satisfies(words, watch.conditions)]
        assert watch.received == len(wanted), watch.name
        assert set(watch.seen) == {words["vehicle"] for words in wanted}
    assert {alert.watch for alert in play.alerts} <= {watch.name for watch in play.watches}


def test_trams_and_buses_are_services_too(hub: Hub, played: tuple[Play, Audit]) -> None:
    with (
        hub.connect_sync("spp") as spp,
        spp.subscribe("vehicle/tram-1") as tram,
        spp.subscribe("vehicle/bus-1") as bus,
    ):
        assert tram.value["vehicle"] == "tram-1"
        assert {"x", "y", "speed", "temperature"} <= set(bus.value)


async def test_the_audit_notices(hub: Hub, played: tuple[Play, Audit]) -> None:
    play, _ = played
    async with hub.connect("tube") as link:
        log = await read_log(link, play.watches)
    # Subscriptions were withdrawn since, which takes no number.
    assert play.checker.last == log.head == len(hub.messages())
    assert judge(play, log, []).good

    def wrong() -> set[str]:
        return {finding.what for finding in judge(play, log, []).findings if not finding.good}

    log.holes = 1
    assert wrong() == {"sequence"}
    log.holes = 0
    play.fleet.sent[VehicleProtocol.SPP] += 1
    assert wrong() == {"messages"}
    play.fleet.sent[VehicleProtocol.SPP] -= 1
    play.watches[0].received += 1
    assert wrong() == {"matching"}
    play.watches[0].received -= 1
    play.watches[0].astray = 1
    assert wrong() == {"matching"}
    play.watches[0].astray = 0
    play.neighbour.backwards = 1
    assert wrong() == {"parcel"}
    play.neighbour.backwards = 0
    play._spark = lambda: SparkEnd("out of memory", False)
    assert wrong() == {"spark"}
    play._spark = lambda: None
    assert wrong() == {"spark"}
    play.results.fleet["messages"] = sum(play.fleet.sent.values())
    assert wrong() == set()
    play.pipeline = {
        "jobs": {"fleet": {"state": "running"}, "measure": {"state": "restarting", "error": "no room"}}
    }
    assert wrong() == {"spark"}
    assert judge(play, log, []).findings[-1].says == "the Spark job measure failed: no room"
    play.pipeline = None
    assert not judge(play, log, ["harbour: it broke"]).good


async def test_a_neighbour_is_told_how_far_the_sequence_is(hub: Hub) -> None:
    neighbour = Neighbour("far town")
    asking = asyncio.ensure_future(neighbour.listen(hub.doors["parcel"]))
    try:
        await until(lambda: neighbour.asked)
        assert neighbour.seq == hub.status["head"]
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_neighbour_that_is_refused_says_why(hub: Hub) -> None:
    first, second = Neighbour("twin town"), Neighbour("twin town")
    asking = asyncio.ensure_future(first.listen(hub.doors["parcel"]))
    try:
        await until(lambda: first.asked)
        with pytest.raises(ConnectionError, match="refuses"):
            await second.listen(hub.doors["parcel"])
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_listener_that_fails_says_why() -> None:
    async def work() -> None:
        raise ConnectionError("the wire is cut")

    listener = listeners.ListenerTask("harbour", work())
    await asyncio.sleep(0)
    await listener.stop()
    assert listener.failure == "the wire is cut"
    assert audit.Finding("client", False, "x").good is False
