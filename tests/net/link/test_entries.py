"""The log's entries over the link: those that stand after a range of messages, or all to come."""

from __future__ import annotations

from typing import Any

import pytest
from tests.net.linkpeer import Head, LinkPeer, link_peer, rows

from headrace.hub.holds import hold
from headrace.hub.state import entry
from headrace.log.sealed.segment import SealedSegment
from headrace.message import Batch, Run
from headrace.net.link.streams import operation_bodies
from headrace.net.server.process import Server
from headrace.wire.link.message import ENTRIES, rows_of

Found = list[tuple[int, int, str]]
"""The message that each entry stands after, its position, and its topic."""


def write(server: Server, *names: str) -> None:
    """Append entries, where a name begins with ``e``, and messages."""
    for name in names:
        if name.startswith("e"):
            server.hub.submit(entry("hold", name, hold(1)))
        else:
            server.hub.submit(Batch(Run.one(name.encode()), origin="spp", topic=f"hold/{name}"))
    server.hub.take_turn()


def read(body: bytes) -> Found:
    found = rows_of(body, ENTRIES)
    assert set(found.column("origin").to_pylist()) == {"log"}
    names = ("seq", "op", "topic")
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


async def entries(peer: LinkPeer, **asked: Any) -> tuple[Found, Head]:
    """Everything that a bounded request brings, and its last answer."""
    await peer.say(op="entries", id=5, **asked)
    got: Found = []
    while True:
        head, body = await peer.hear()
        if "event" not in head:
            return got, head
        got += read(body)
        assert head["next"] > got[-1][1]
        await peer.say(op="more", id=5, bytes=len(body))


LOG = ("e0", "e1", "m1", "m2", "e2", "e3", "m3", "e4", "m4", "m5", "e5")
EXPECTED: Found = [
    (0, 1, "hold/e0"), (0, 2, "hold/e1"), (2, 5, "hold/e2"), (2, 6, "hold/e3"), (3, 8, "hold/e4"), (5, 11, "hold/e5")
]  # fmt: skip


@pytest.mark.parametrize("sealed", ["not at all", "all", "some"])
async def test_the_entries_of_any_range(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch, sealed: str
) -> None:
    parts = [LOG[:5], LOG[5:]] if sealed == "some" else [LOG]
    write(server, *parts[0])
    if sealed != "not at all":
        await server.maintenance.seal()
    for part in parts[1:]:
        write(server, *part)
    for most in (1 << 20, 1):
        monkeypatch.setattr(operation_bodies, "ROWS_BYTES", most)
        for first in range(7):
            for last in range(8):
                got, end = await entries(peer, first=first, last=last)
                assert got == [each for each in EXPECTED if first <= each[0] <= last], (first, last)
                assert end["ok"]


async def test_topics_select_among_them(server: Server, peer: LinkPeer) -> None:
    write(server, *LOG)
    got, _ = await entries(peer, first=0, last=9, topic="hold/e3")
    assert got == [(2, 6, "hold/e3")]
    got, _ = await entries(peer, first=0, last=9, topic="hold/*")
    assert got == EXPECTED
    assert (await entries(peer, first=0, last=9, topic="service/**"))[0] == []


async def test_they_are_followed(server: Server, peer: LinkPeer) -> None:
    write(server, "m1", "e1")
    await peer.say(op="entries", id=1, first=1)
    assert (await peer.hear())[0] == {"id": 1, "event": "at", "next": 2}
    head, body = await peer.hear()
    assert (head["next"], read(body)) == (3, [(1, 2, "hold/e1")])
    write(server, "e2")
    head, body = await peer.hear()
    assert (head["next"], read(body)) == (4, [(1, 3, "hold/e2")])
    write(server, "m2", "m3", "e3", "m4")
    head, body = await peer.hear()
    assert read(body) == [(3, 6, "hold/e3")]
    # Only entries after messages from the first on are wanted, which may be yet to come.
    await peer.say(op="entries", id=2, first=6)
    assert (await peer.hear())[0]["event"] == "at"
    async with link_peer(server) as writer:
        for number in range(3):
            await writer.ask(rows(b"x"), op="publish", id=1)
            await writer.ask(op="holds", id=1, name=f"later{number}", seq=1)
    got: dict[int, Found] = {1: [], 2: []}
    while len(got[1]) < 3 or len(got[2]) < 2:
        head, body = await peer.hear()
        if body:
            got[head["id"]] += read(body)
    assert [seq for seq, *_ in got[1]] == [5, 6, 7]
    assert [seq for seq, *_ in got[2]] == [6, 7]


async def test_a_stream_resumes_amid_entries_after_one_message(server: Server, peer: LinkPeer) -> None:
    write(server, *LOG)
    for position in range(1, 13):
        got, _ = await entries(peer, first=0, last=9, **{"from": position})
        assert got == [each for each in EXPECTED if each[1] >= position]


async def test_a_follower_is_told_how_far_it_is_while_nothing_comes(server: Server, peer: LinkPeer) -> None:
    await peer.say(op="entries", id=1, first=0, topic="hold/rare")
    assert (await peer.hear())[0] == {"id": 1, "event": "at", "next": 1}
    write(server, "m1", "e1", "m2")
    assert (await peer.hear())[0] == {"id": 1, "event": "at", "next": 4}


async def test_entries_that_are_no_longer_kept(server: Server, peer: LinkPeer) -> None:
    write(server, "e1", "m1", "e2", "m2", "e3")
    await server.maintenance.seal()
    write(server, "e4", "m3", "e5")
    await server.maintenance.snapshot()
    log = server.hub.log
    log.retain(0, retain_bytes=0, retain_us=None, holds={})
    assert (log.first, log.first_op) == (3, 6)
    refusal = await peer.ask(op="entries", id=1, first=1, last=9)
    assert (refusal["error"], refusal["first"], refusal["oldest"]) == ("trimmed", 1, 3)
    # After the message before the oldest, as many as are kept.
    assert (await entries(peer, first=2, last=9))[0] == [(2, 6, "hold/e4"), (3, 8, "hold/e5")]
    # One that resumes has missed some, and must know.
    refusal = await peer.ask(op="entries", id=1, first=2, last=9, **{"from": 5})
    assert refusal["error"] == "trimmed"
    assert (await entries(peer, first=2, last=9, **{"from": 7}))[0] == [(3, 8, "hold/e5")]


async def test_a_file_of_entries_that_cannot_be_read_is_an_answer(server: Server, peer: LinkPeer) -> None:
    write(server, "e1", "m1", "e2", "m2")
    await server.maintenance.seal()
    (file,) = server.hub.log.directory.glob("*.entries")
    file.unlink()
    for segment in server.hub.log.segments:
        if isinstance(segment, SealedSegment):
            segment._entries = None  # as after a restart
    refusal = await peer.ask(op="entries", id=1, first=0, last=1)
    assert refusal["error"] in ("storage", "damaged")
    assert (await peer.ask(op="head", id=2))["ok"]


async def test_one_that_retention_overtakes_ends_with_an_error(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not go on with what is left, as if nothing were missing."""
    monkeypatch.setattr(operation_bodies, "ROWS_BYTES", 1)
    for number in range(3):
        write(server, f"e{number}", "m")
        await server.maintenance.seal()
    await peer.say(op="entries", id=1, first=0, credit=1)
    assert (await peer.hear())[0]["event"] == "at"
    head, body = await peer.hear()
    assert read(body) == [(0, 1, "hold/e0")]
    await server.maintenance.snapshot()
    write(server, "e3")
    server.hub.log.retain(0, retain_bytes=0, retain_us=None, holds={})
    assert server.hub.log.first_op == 7
    # What was read before it was removed may still come.
    found = [1]
    while "event" in head:
        await peer.say(op="more", id=1, bytes=len(body))
        head, body = await peer.hear()
        found += [op for _, op, _ in read(body)] if body else []
    assert head["error"] == "trimmed"
    assert found == [1, 3, 5][: len(found)]


@pytest.mark.parametrize(
    "asked", [{}, {"first": -1}, {"first": 0, "last": -1}, {"first": 1 << 48}, {"first": 0, "from": 0}]
)
async def test_what_cannot_be_asked_is_refused(peer: LinkPeer, asked: dict[str, Any]) -> None:
    refusal = await peer.ask(op="entries", id=1, **asked)
    assert refusal["error"] == "malformed"
    assert (await peer.ask(op="head", id=2))["ok"]


async def test_sealed_messages_are_not_read_for_the_entries_among_them(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(server, "e1", *(f"m{number}" for number in range(50)), "e2")
    await server.maintenance.seal()
    read_ops, seen = server.hub.log.read_ops, []

    def watched(*asked: Any, **options: Any) -> list[Batch]:
        found = read_ops(*asked, **options)
        seen.extend(found)
        return found

    monkeypatch.setattr(server.hub.log, "read_ops", watched)
    got, _ = await entries(peer, first=0, last=60)
    assert [topic for *_, topic in got] == ["hold/e1", "hold/e2"]
    assert all(batch.is_entries for batch in seen)
