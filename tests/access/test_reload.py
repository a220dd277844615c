"""New rights without a restart: who has lost one is cut off, and nobody else loses a message."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import aiohttp
import pytest
from tests.access.attempts import FAR, KEYS, NEAR, ROOT, SOME, claim, link_challenge, spp_challenge
from tests.net import attribute_peers as attribute
from tests.net import spp_peer as spp
from tests.net.linkpeer import LinkPeer, link_peer, opened, rows
from tests.net.raw import LOOPBACK, SECONDS, TcpPeer, push, until
from typer.testing import CliRunner

from headrace import web
from headrace.cli.app import app
from headrace.cli.run.serve import _reload_on_signal
from headrace.config import DOORS, load
from headrace.errors import ConfigError, HeadraceError
from headrace.message import Batch, Run
from headrace.net.server.access import reloading
from headrace.net.server.process import Server

BASE = f"""
[auth]
required = true
clients.{ROOT} = "{KEYS[ROOT]}"

[access.near]
addresses = ["{NEAR}"]
allow = ["all"]
"""
GATEWAY = f"""
[access.some]
client_id = "{SOME}"
key = "{KEYS[SOME]}"
allow = ["publish **", "read **", "service **"]

[access.far]
addresses = ["{FAR}"]
allow = ["all"]
"""

Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the hub's file."""

    def replace(text: str) -> None:
        (tmp_path / "hub.toml").write_text(text)

    replace(BASE + GATEWAY)
    return replace


@pytest.fixture
async def server(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    # It is told when to look at its files.
    monkeypatch.setattr(reloading, "LOOK_SECONDS", 3600.0)
    free = [f"listen.{door}={LOOPBACK}:0" for door in DOORS]
    settings = load(tmp_path / "hub.toml", environ={}, sets=[*free, f"node.data={tmp_path}/data"])
    server = Server(settings, http=web.start)
    await server.start()
    try:
        yield server
    finally:
        await server.drain()


async def link_as(server: Server, client: str, stack: AsyncExitStack) -> LinkPeer:
    peer = await stack.enter_async_context(link_peer(server, greet=False))
    shown = claim(client, KEYS[client], await link_challenge(peer))
    assert (await peer.ask(op="hello", id=1, version=2, auth=shown))["ok"]
    return peer


class TestRevocation:
    async def test_under_load_others_lose_nothing(self, server: Server, write: Write) -> None:
        """Everybody publishes and reads; the gateway's rights go; the others' messages are all there, once."""
        async with AsyncExitStack() as stack:
            others = [await link_as(server, ROOT, stack) for _ in range(2)]
            reader, publisher = others
            near = stack.enter_context(await TcpPeer.connect(server, source=NEAR))
            await near.subscribe()
            gateway = await link_as(server, SOME, stack)
            far = [
                stack.enter_context(await kind.connect(server, source=FAR))
                for kind in (TcpPeer, attribute.PublisherPeer, attribute.RouterPeer)
            ]
            service = stack.enter_context(await spp.SppPeer.connect(server))
            shown = claim(SOME, KEYS[SOME], await spp_challenge(service, claim(SOME, KEYS[SOME])))
            await service.send(spp.packet(spp.AUTH, spp.string(json.dumps(shown))))
            client = stack.enter_context(await attribute.SdkPeer.connect(server))
            await client.send(attribute.command(b"auth", json.dumps(claim(SOME, KEYS[SOME])).encode()))
            assert await client.line() == b"+authsuccess\r\n"
            await reader.say(op="follow", id=2, topic="kept")

            async def flood() -> None:
                for number in count(3):
                    await gateway.say(rows(b"x", topic="lost"), op="publish", id=number)
                    # The hub is in this process: it has its turns, however slow the machine is.
                    await asyncio.sleep(0)

            async def publish(amount: int) -> list[int]:
                return [
                    (await publisher.ask(rows(b"%d" % number, topic="kept"), op="publish", id=2))["first"]
                    for number in range(amount)
                ]

            flooding, sending = asyncio.ensure_future(flood()), asyncio.ensure_future(publish(100))
            await until(lambda: server.hub.log.head > 10)
            write(BASE)
            server.reloading.try_reload()
            # The gateway is gone at every door.
            assert await gateway.gone()
            with pytest.raises(HeadraceError):
                await flooding
            for peer in (*far, service, client):
                await peer.rest()
            placed = await sending
            got: list[int] = []
            async with asyncio.timeout(SECONDS):
                while placed[-1] not in got:
                    head, body = await reader.hear()
                    if body:
                        got += [m.seq for m in opened(body) if head["first"] <= m.seq <= head["last"]]
                        await reader.say(op="more", id=2, bytes=len(body))
            assert got == placed
            await near.delivers(1, server.hub.log.head)
            assert server.hub.counters.get("refused", door="tube", reason="revoked") == 1

    async def test_who_keeps_its_rights_stays(self, server: Server, write: Write) -> None:
        async with AsyncExitStack() as stack:
            peer = await link_as(server, SOME, stack)
            wider = GATEWAY.replace('"service **"]', '"service **", "admin"]')
            write(BASE + wider)
            assert (await peer.ask(op="snapshot", id=2))["error"] == "forbidden"
            told = server.reloading.reload()
            assert (told.changed, told.restart, told.closed) == (["access.some.allow"], [], 0)
            assert "error" not in await peer.ask(op="snapshot", id=3)

    async def test_a_changed_key_ends_who_used_the_old_one(
        self, server: Server, write: Write, tmp_path: Path
    ) -> None:
        async with AsyncExitStack() as stack:
            peer = await link_as(server, SOME, stack)
            key = tmp_path / "some.key"
            key.touch(mode=0o600)
            key.write_text("another key\n")
            write(BASE + GATEWAY.replace(f'key = "{KEYS[SOME]}"', f'key_file = "{key}"', 1))
            assert server.reloading.reload().closed == 1
            assert await peer.gone()
            assert server.access.keys[SOME].reveal() == "another key"
            # A file that is watched, and no setting: only what is in it has changed.
            key.write_text("a third key\n")
            assert server.reloading.reload() == ([], [], 0)
            assert server.access.keys[SOME].reveal() == "a third key"

    async def test_a_page_that_follows_is_ended(self, server: Server, write: Write) -> None:
        hashed = hashlib.sha256(b"bearer").hexdigest()
        page = f'[access.page]\ntoken_sha256 = "{hashed}"\nallow = ["read **", "consume a"]\n'
        write(BASE + page)
        server.reloading.reload()
        server.hub.submit(Batch(Run.of([b"x"]), origin="test", topic="a"))
        await until(lambda: server.hub.log.head == 1)
        headers = {"Authorization": "Bearer bearer", "X-Headrace": "1"}
        async with (
            aiohttp.ClientSession(f"http://{server.doors['http']}", headers=headers) as http,
            http.get("/api/tail") as tail,
            http.get("/v1/stream/a?live=sse&offset=-1") as stream,
        ):
            assert (await stream.content.readline()).startswith(b"event")
            assert (await tail.content.readline()).startswith(b"retry")
            async with http.post("/api/consumers/remove", json={"consumer": "b"}) as refused:
                assert refused.status == 403
            async with http.post("/api/consumers/remove", json={"consumer": "a"}) as missing:
                assert missing.status == 404
            write(BASE)
            assert server.reloading.reload().closed == 2
            for response in (tail, stream):
                async with asyncio.timeout(SECONDS):
                    with contextlib.suppress(aiohttp.ClientError):
                        await response.content.read()
            async with http.get("/api/tail") as again:
                assert again.status == 401


class TestAddresses:
    async def test_who_is_somebody_else_now_is_cut_off(self, server: Server, write: Write) -> None:
        """An address is taken out of a network: those who came from it are who it is now."""
        wide = BASE.replace(f'"{NEAR}"', '"127.0.0.0/29"')
        write(wide)
        server.reloading.reload()
        with await TcpPeer.connect(server, source=NEAR) as near, await TcpPeer.connect(server) as other:
            await near.subscribe()
            await other.subscribe()
            write(f"{wide}\n[access.banned]\naddresses = ['{NEAR}']\n")
            assert server.reloading.reload().closed == 1
            assert await near.rest() == b""
            await other.send(push(b"x"))
            assert await other.delivers(1, 1) == [b"x"]

    async def test_who_the_backbone_lists_stays(self, tmp_path: Path, write: Write) -> None:
        free = [f"listen.{door}={LOOPBACK}:0" for door in DOORS]
        sets = [*free, f"node.data={tmp_path}/other", f"fyrehose.allow={LOOPBACK}"]
        server = Server(load(tmp_path / "hub.toml", environ={}, sets=sets))
        await server.start()
        try:
            with await TcpPeer.connect(server) as listed:
                await listed.subscribe()
                write(BASE)
                assert server.reloading.reload().closed == 0
                await listed.send(push(b"x"))
                assert await listed.delivers(1, 1) == [b"x"]
        finally:
            await server.drain()


class TestWatching:
    async def test_a_changed_file_is_taken(
        self,
        server: Server,
        write: Write,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(reloading, "LOOK_SECONDS", 0.005)
        watching = asyncio.ensure_future(server.reloading.watch())
        write(BASE)
        await until(lambda: SOME not in server.access.keys)
        # What is wrong changes nothing; what is right again is taken.
        write("[access.some]\nallow = 3\n")
        await until(lambda: "settings stay as they were" in caplog.text)
        assert ROOT in server.access.keys
        write(BASE + GATEWAY)
        await until(lambda: SOME in server.access.keys)
        watching.cancel()

    async def test_a_signal(self, server: Server, write: Write) -> None:
        _reload_on_signal([server], asyncio.Event())
        try:
            write(BASE)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: SOME not in server.access.keys)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    async def test_what_is_wrong_is_told_and_changes_nothing(self, server: Server, write: Write) -> None:
        write(BASE + GATEWAY + "[access.other]\nkey = 'k'\n")
        with pytest.raises(ConfigError, match=r"access\.other\.key"):
            server.reloading.reload()
        assert server.access.principals.named("other") is None
        assert SOME in server.access.keys

    async def test_what_needs_a_restart_is_named_and_stays(self, server: Server, write: Write) -> None:
        write(BASE.replace("required = true", "required = false") + "[log]\nfsync = 'never'\n")
        told = server.reloading.reload()
        assert told.restart == ["auth.required", "log.fsync"]
        assert set(told.changed) >= {"access.some.allow", "access.far.addresses"}
        assert "auth.required, log.fsync: restart the hub for that" in str(told)
        assert server.access.required
        assert server.settings.log.fsync == "interval"
        assert server.reloading.reload().restart == ["auth.required", "log.fsync"]


class TestCommands:
    async def test_reload_over_the_link(
        self, server: Server, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(BASE)
        url = f"tube://{server.doors['tube_tcp']}"
        monkeypatch.setenv("HEADRACE_KEY", KEYS[ROOT])
        told = await asyncio.to_thread(
            CliRunner().invoke, app, ["reload", "--url", url, "--client-id", ROOT, "--json"]
        )
        assert told.exit_code == 0, told.output
        assert json.loads(told.stdout)["closed"] == 0
        assert SOME not in server.access.keys
        data = str(server.settings.node.data)
        server._audit.close()
        told = CliRunner().invoke(app, ["audit", "--data", data, "--event", "changed", "--json"])
        asked, taken = json.loads(told.stdout)
        assert (asked["principal"], asked["action"], asked["door"]) == (ROOT, "reload", "tube")
        assert taken["action"] == "settings"
        assert "access.some.allow" in taken["what"]
        told = CliRunner().invoke(app, ["audit", "--data", data, "--principal", "nobody"])
        assert told.exit_code == 0

    async def test_reload_needs_a_right(
        self, server: Server, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = f"tube://{server.doors['tube_tcp']}"
        monkeypatch.setenv("HEADRACE_KEY", KEYS[SOME])
        told = await asyncio.to_thread(CliRunner().invoke, app, ["reload", "--url", url, "--client-id", SOME])
        assert told.exit_code == 1
        assert "some lacks the right admin" in told.output + str(told.exception)

    def test_a_directory_without_a_hub(self, tmp_path: Path) -> None:
        for words in (["reload", "--data", str(tmp_path)], ["audit", "--data", str(tmp_path)]):
            told = CliRunner().invoke(app, words)
            assert told.exit_code == 2, told.output
