"""The tube of the link's client: found, lost and replaced, or given up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.client.links import break_tubes, client
from tests.net.raw import running_hub
from tests.ports import lasting_port

import headrace
from headrace.client import reconnect
from headrace.client.link import connection
from headrace.client.link.client import LinkClient
from headrace.client.link.connection import link_plan
from headrace.config import Address
from headrace.errors import RefusedError, UnexpectedError, UnreachableError
from headrace.net.server.process import Server


async def test_a_request_that_breaks_every_tube_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    async with client(server) as link:
        link._connection.plan.longest = 0.01
        door: Any = server._doors[-1]
        monkeypatch.setattr(door.operations, "_status", lambda: break_tubes(server) or {})
        monkeypatch.setattr(reconnect.asyncio, "sleep", noted)
        with pytest.raises(UnreachableError, match="lost 10 times over one request"):
            await link.status()
        assert len([seconds for seconds in slept if seconds]) >= 8
        assert (await link.head()).head == 0


async def test_a_hub_of_another_version(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "VERSION", 1)
    with pytest.raises(RefusedError) as refused:
        await client(server).open()
    assert refused.value.code == "version"
    monkeypatch.setattr(connection, "VERSION", 4)
    monkeypatch.setattr(connection, "VERSIONS", (3, 4))
    with pytest.raises(UnexpectedError, match="this client speaks 3, 4"):
        await client(server).open()


async def test_another_log_is_an_error_that_names_both(tmp_path: Path) -> None:
    door = f"listen.tube_tcp=127.0.0.1:{lasting_port()}"
    async with running_hub(tmp_path / "a", "listen.http=off", door) as server:
        link = client(server)
        await link.open()
        mine = link.log
    async with running_hub(tmp_path / "b", "listen.http=off", door) as server:
        with pytest.raises(UnexpectedError) as refused:
            await link.head()
        assert mine in str(refused.value)
        assert str(server.hub.log.uuid) in str(refused.value)
        await link.close()


async def test_the_next_host_is_tried(server: Server) -> None:
    link: LinkClient = headrace.connect(f"tube://127.0.0.1:9,{server.doors['tube_tcp']}")
    async with link:
        assert (await link.head()).head == 0


async def test_nobody_there() -> None:
    with pytest.raises(UnreachableError):
        async with headrace.connect("tube://127.0.0.1:9", timeout=2.0):
            pass


async def test_patience_ends(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "listen.http=off") as server:
        link = client(server, reconnect_timeout=0.05)
        await link.open()
    with pytest.raises(UnreachableError):
        await link.head()
    assert link._connection.plan.pause() == 0.0, "the next request dials at once"
    with pytest.raises(UnreachableError):
        await link.publish(b"x")
    await link.close()


@pytest.mark.parametrize(("hosts", "seconds"), [(1, 5.0), (4, 1.25), (9, 1.0)])
def test_a_host_that_hangs_delays_the_others_little(hosts: int, seconds: float) -> None:
    assert link_plan([Address("host", port) for port in range(1, hosts + 1)], Random(1)).attempt == seconds
