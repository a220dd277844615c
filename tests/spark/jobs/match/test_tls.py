"""The fleet at a dispatcher door under TLS and ``auth.required``: known by its certificate, or turned away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.certificates import Authority, Certificate
from tests.hubprocess import HubProcess
from tests.spark.hubs import until

import headrace
from headrace import where
from headrace.config import Address
from headrace.errors import UnreachableError
from headrace.spark.hub_connections import close_links
from headrace.spark.jobs.job import JobRun, RunningJob, find
from headrace.spark.jobs.match import dispatcher_connection as module
from headrace.spark.jobs.match.dispatcher_connection import DispatcherConnection, DispatcherDoor
from headrace.spark.jobs.match.lifeline import Lifeline
from headrace.spark.options import HubOptions

CLIENT, KEY = "0123456789abcdef01234567", "a secret of theirs"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def fleet(authority: Authority) -> Certificate:
    return authority.sign("fleet")


@pytest.fixture(scope="module")
def hub(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that knows the fleet by its certificate alone, and one client."""
    settings = [
        *authority.sign("hub.example").settings(authority.ca),
        "tls.doors=tube_tcp,dispatcher",
        "matching.engine=spark",
        "auth.required=true",
        f"auth.clients.{CLIENT}={KEY}",
        "access.fleet.certificate=fleet",
        "access.fleet.allow=all",
    ]
    with HubProcess.start(tmp_path_factory.mktemp("hub"), *settings) as running:
        yield running
        close_links()


def files(authority: Authority, shown: Certificate | None) -> tuple[tuple[str, str], ...]:
    own = () if shown is None else (("cert", str(shown.cert)), ("cert_key", str(shown.key)))
    return (("ca", str(authority.ca)), *own)


def door(hub: HubProcess, given: tuple[tuple[str, str], ...]) -> DispatcherDoor:
    return DispatcherDoor.parse(f"dispatcher+tls://{hub.doors['dispatcher']}", given)


@pytest.mark.spark
def test_clients_are_served_through_a_door_with_tls(
    hub: HubProcess, authority: Authority, fleet: Certificate, spark: SparkSession, tmp_path: Path
) -> None:
    access = replace(HubOptions.to(f"tube+tls://{hub.doors['tube_tcp']}"), tls_files=files(authority, fleet))
    told = {
        "path": str(tmp_path / "match"),
        "dispatchers": f"dispatcher+tls://{hub.doors['dispatcher']}",
        "shares": "2",
    }
    with (
        headrace.connect_sync(f"sdk://{hub.doors['sdk']}", client_id=CLIENT, key=KEY) as client,
        headrace.connect_sync(
            f"tube+tls://{hub.doors['tube_tcp']}", client_id=CLIENT, key=KEY, ca=authority.ca
        ) as link,
    ):
        client.subscribe(where(city="Praha"))
        until(lambda: link.subscriptions().num_rows == 1)
        started = find("match").start(JobRun(spark, "match", access, told, find("match").PARAMETERS))
        assert isinstance(started, RunningJob)
        try:
            until(lambda: link.status()["subscribers"]["sdk_behind"] == 0)
            # Enough for two ranges, so that tasks of both stages dial.
            rows = [
                {"payload": b"%d" % n, "attributes": {"city": "Praha" if n % 100 == 0 else "Brno"}}
                for n in range(30_000)
            ]
            link.publish(rows)
            got = [int(message.payload) for _, message in zip(range(300), client, strict=False)]
            assert got == list(range(0, 30_000, 100))
            until(lambda: started.facts().get("pushed") == 300)
            assert started.facts()["dispatcher"] == told["dispatchers"]
        finally:
            started.query.stop()


def test_whoever_shows_no_certificate_is_told_what_is_missing(hub: HubProcess, authority: Authority) -> None:
    with (
        pytest.raises(UnreachableError, match="it must know us, by certificate or address, as an admin"),
        closing(Lifeline(1, 1.0)) as lifeline,
    ):
        lifeline.open([door(hub, files(authority, None))])


def test_a_dispatcher_that_is_not_the_one_meant_is_refused(
    hub: HubProcess, authority: Authority, fleet: Certificate, tmp_path: Path
) -> None:
    others = Authority(tmp_path, "others")
    meant = door(hub, files(authority, fleet))
    named = replace(meant, address=Address("127.0.0.2", meant.address.port))
    for wrong, told in (
        (door(hub, files(others, None)), "signed by an authority that is not known here"),
        (DispatcherDoor(meant.address), "the dispatcher is lost"),
        (replace(meant, address=Address.parse(hub.doors["router"])), "does not speak TLS|connection ended"),
        (named, "no dispatcher answers there|certificate is not for 127.0.0.2"),
    ):
        with (
            pytest.raises(UnreachableError, match=told),
            closing(DispatcherConnection(wrong, 1.0)) as connection,
        ):
            connection.settle()


def test_one_that_never_answers_heartbeats_is_read_to_the_end_under_tls(
    hub: HubProcess, authority: Authority, fleet: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door does answer, but it is told not to expect that: then the end of the connection is what counts."""
    monkeypatch.setattr(module, "CLOSE_SECONDS", 20.0)
    with closing(DispatcherConnection(door(hub, files(authority, fleet)), 20.0, answers=False)) as connection:
        connection.send(b"")
        connection.finish()


@pytest.mark.parametrize("text", ["spp://127.0.0.1", "http://127.0.0.1:1", "127.0.0.1:x"])
def test_what_is_no_dispatcher(text: str) -> None:
    with pytest.raises(headrace.UsageError):
        DispatcherDoor.parse(text)
