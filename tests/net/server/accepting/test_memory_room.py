"""Past the mark publishers wait and newcomers are refused; who is connected is served, and health answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.net.conftest import Dial
from tests.net.linkpeer import link_peer, rows
from tests.net.raw import running_hub, until

from headrace.config import declaring, load
from headrace.net.server.accepting.memory_room import RELIEF, give_back, own_memory
from headrace.web.door import start as start_http

MARK = 64 << 20


async def test_past_the_mark_publishers_wait_and_newcomers_are_refused(tmp_path: Path, dial: Dial) -> None:
    used = MARK
    async with (
        running_hub(tmp_path, f"limits.memory={MARK}", http=start_http) as server,
        link_peer(server) as peer,
    ):
        server.memory._read = lambda: used
        assert (await peer.ask(rows(b"before"), op="publish", id=1))["ok"]
        used = MARK + 1
        await until(lambda: server.hub.congested)
        answer = await peer.ask(op="follow", id=2)
        assert (answer["error"], "limits.memory" in answer["reason"]) == ("busy", True)
        await peer.say(rows(b"waits"), op="publish", id=3)
        newcomer = await dial(server)
        await until(lambda: server.hub.counters.get("refused", door="fyrehose", reason="connections") == 1)
        newcomer.close()
        health, ready = (
            await http(server.doors["http"], "/healthz"),
            await http(server.doors["http"], "/readyz"),
        )
        assert health[0] == 200
        assert ready[0] == 503
        assert "limits.memory" in ready[1]["reason"]
        assert server.hub.log.head == 1
        # A little less is not enough: publishers would stop and go.
        used = int(MARK * RELIEF) + 1
        server.memory.look(0.0)
        assert server.hub.congested
        used = int(MARK * RELIEF) - 1
        head, _ = await peer.hear()
        assert (head["id"], head["first"]) == (3, 2)
        assert server.hub.counters.get("memory_shortages") == 1
        assert "memory" not in server.problems


async def http(address: str, path: str) -> tuple[int, dict[str, str]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


def test_the_process_sees_its_own_memory() -> None:
    read = own_memory()
    before = read()
    assert before > 1 << 20
    block = b"x" * (64 << 20)
    assert read() - before > len(block) // 2
    give_back()


def test_the_default_is_a_share_of_what_this_machine_or_its_group_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    group = tmp_path_factory.mktemp("group") / "memory.max"
    monkeypatch.setattr(declaring, "_GROUP_MEMORY", (str(group), "/nowhere"))
    machine = load(environ={}).limits.memory
    assert machine is not None
    assert machine > 1 << 28
    group.write_text("max\n")
    assert load(environ={}).limits.memory == machine
    group.write_text(f"{1 << 30}\n")
    assert load(environ={}).limits.memory == 3 << 28
    assert load(environ={}, sets=["limits.memory=off"]).limits.memory is None
