"""What readers tell the link that they lost: in the log, counted once."""

from __future__ import annotations

from pathlib import Path

from tests.net.linkpeer import link_peer
from tests.net.raw import running_hub

from headrace.net.server.process import Server


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
    assert server.hub.log.head_op == 1, "what is known needs no entry"


async def test_what_is_told_twice_at_once_is_counted_once(server: Server) -> None:
    async with link_peer(server) as peer:
        for number, (first, last) in enumerate([(1, 9), (1, 9), (5, 12)]):
            await peer.say(op="lost", id=number, reader="a", first=first, last=last)
        for _ in range(3):
            assert (await peer.hear())[0]["ok"]
    assert server.status()["lost"] == {"a": {"messages": 12, "ranges": [[1, 12]]}}
    assert server.hub.counters.get("reader_lost") == 12


async def test_what_readers_lost_outlives_the_hub(tmp_path: Path) -> None:
    each = {"a": {"messages": 9, "ranges": [[1, 9]]}}
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        assert (await peer.ask(op="lost", id=1, reader="a", first=1, last=9))["lost"] == each
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        assert server.status()["lost"] == each
        assert (await peer.ask(op="lost", id=1, reader="a", first=1, last=9))["lost"] == each
        assert server.hub.counters.get("reader_lost") == 0, "it was counted when it was told"
