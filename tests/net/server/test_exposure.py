"""No door is open to a network by accident."""

from __future__ import annotations

import socket
from collections import deque
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.net.conftest import Start
from tests.net.raw import running_hub
from tests.ports import lasting_port

from headrace.cli.hubs.first_key import with_first_key
from headrace.cli.run import doctor_checks, top
from headrace.config import DOORS, load
from headrace.errors import ConfigError
from headrace.net.server.process import Server


@pytest.mark.parametrize("door", [door for door in DOORS if door != "http"])
async def test_a_door_on_every_address_is_refused_with_how_to_go_on(start: Start, door: str) -> None:
    with pytest.raises(ConfigError) as refused:
        await start(f"listen.{door}=0.0.0.0:0")
    told = str(refused.value)
    assert told.startswith(f"listen.{door} = '0.0.0.0:")
    for way in ("auth.required=true", "headrace keys new", "127.0.0.1", "--insecure"):
        assert way in told


async def test_a_refused_door_is_shut(tmp_path: Path) -> None:
    port = lasting_port()
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with pytest.raises(ConfigError):
            async with running_hub(tmp_path, f"listen.fyrehose=0.0.0.0:{port}"):
                pass
        with socket.socket(socket.AF_INET, kind) as free:
            free.bind(("0.0.0.0", port))


async def test_with_authentication_it_opens_and_nothing_is_said(start: Start) -> None:
    server = await start("listen.spp=0.0.0.0:0", "auth.required=true")
    assert server.status()["insecure"] == []


async def test_insecure_goes_on_and_every_status_says_so(start: Start) -> None:
    server = await start("listen.spp=0.0.0.0:0", "listen.tube_tcp=0.0.0.0:0", "auth.insecure=true")
    status = server.status()
    assert status["insecure"] == ["spp", "tube_tcp"]
    warning = "everyone who reaches spp and tube_tcp may do everything there"
    told = [finding for finding in doctor_checks._hub(status) if warning in finding.found]
    assert [finding.verdict for finding in told] == [doctor_checks.Verdict.WARNING]
    rates = dict.fromkeys(("refused", "repaired", "skipped", "conflated"), 0.0)
    second = top.HubSecond(status, {"received": {}, "delivered": {}, **rates})
    out = StringIO()
    Console(file=out, width=160).print(top.draw(second, {"in": deque([0.0]), "out": deque([0.0])}))
    assert f"insecure: {warning}" in out.getvalue()


async def test_insecure_says_nothing_of_doors_that_only_this_machine_reaches(start: Start) -> None:
    server = await start("auth.insecure=true")
    assert server.status()["insecure"] == []


async def test_a_reload_opens_nothing_to_strangers(tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text('[access.anonymous]\nallow = ["read news/**"]\n')
    free = [f"listen.{door}=127.0.0.1:0" for door in DOORS]
    sets = [*free, f"node.data={tmp_path}/data", "listen.spp=0.0.0.0:0"]
    server = Server(load(config, environ={}, sets=sets))
    await server.start()
    try:
        assert server.status()["insecure"] == []
        config.write_text("")
        with pytest.raises(ConfigError, match=r"listen\.spp"):
            server.reloading.reload()
        assert not server.access.principals.anonymous.publishes_everything
    finally:
        await server.drain()


async def test_the_first_client_can_be_taken_away_from_a_running_hub(tmp_path: Path) -> None:
    path = tmp_path / "first-key"
    free = [f"listen.{door}=127.0.0.1:0" for door in DOORS]
    sets = [*free, f"node.data={tmp_path}/data", "auth.required=true", f"auth.first_key={path}"]
    server = Server(with_first_key(load(environ={}, sets=sets)))
    await server.start()
    try:
        assert len(server.access.keys) == 1
        path.unlink()
        server.reloading.reload()
        assert server.access.keys == {}
    finally:
        await server.drain()
