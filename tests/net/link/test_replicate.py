"""Copying a log over the link: messages and entries, operation by operation, from anywhere."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import until

from headrace.hub.holds import hold
from headrace.hub.state import entry
from headrace.log import Log
from headrace.log.replication_frames import unpack
from headrace.message import Batch, Message, Run, envelope_rows, map_column
from headrace.net.link.streams import operation_bodies
from headrace.net.link.streams.operation_bodies import read_operations
from headrace.net.server.process import Server

Row = tuple[int, Message]


def operations(batches: list[Batch]) -> list[Row]:
    return [(batch.op + index, row) for batch in batches for index, row in enumerate(batch)]


def whole(log: Log) -> list[Row]:
    return operations(list(log.scan_ops(log.first_op)))


def with_attributes(text: str, count: int) -> Batch:
    """Messages whose attributes differ from those of all others."""
    attributes = map_column("attributes", [{"text": text, "row": str(row)} for row in range(count)])
    return Batch(Run.of([b""] * count), origin="tube", columns=envelope_rows({"attributes": attributes}))


def write(server: Server, kinds: str, seed: int = 0) -> None:
    """Append messages (``m``, and ``a`` with attributes) and entries (``e``), each as a batch of its own size."""
    random = Random(seed)
    for number, kind in enumerate(kinds):
        count = random.randint(1, 3)
        if kind == "e":
            server.hub.submit(entry("hold", f"h{number}", hold(1)))
        elif kind == "m":
            server.hub.submit(Batch(Run.of([b"%d" % number] * count), origin="spp", topic=f"t/{number}"))
        else:
            server.hub.submit(with_attributes(f"{number}", count))
        server.hub.take_turn()


async def copied(peer: LinkPeer, **asked: Any) -> list[Row]:
    """Everything that a bounded ``replicate`` brings."""
    await peer.say(op="replicate", id=9, **asked)
    got: list[Row] = []
    expected = asked["from"]
    while True:
        head, body = await peer.hear()
        if "event" not in head:
            assert head == {"id": 9, "ok": True, "next": expected}
            return got
        assert (head["event"], head["first"]) == ("ops", expected)
        expected = head["last"] + 1
        got += operations(unpack(body, head["first"], head["last"])[1])
        await peer.say(op="more", id=9, bytes=len(body))


KINDS = ["mememe", "eeemmm", "mmmeee", "eee", "mmm", "eemmaeeamme"]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("sealed", [False, True])
async def test_any_part_of_a_log_from_any_operation_on(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch, kinds: str, sealed: bool
) -> None:
    write(server, kinds)
    if sealed:
        await server.maintenance.seal()
        write(server, kinds, seed=1)
    log = server.hub.log
    everything = whole(log)
    assert [op for op, _ in everything] == list(range(1, log.head_op + 1))
    for most in (1 << 20, 1):
        monkeypatch.setattr(operation_bodies, "ROWS_BYTES", most)
        for first in range(1, log.head_op + 2):
            got = await copied(peer, last=log.head_op, **{"from": first})
            assert got == everything[first - 1 :]
        middle = log.head_op // 2 + 1
        assert await copied(peer, last=middle, **{"from": 1}) == everything[:middle]


async def test_it_goes_on_as_the_log_grows_by_messages_and_by_entries(server: Server, peer: LinkPeer) -> None:
    await peer.say(op="replicate", id=1, **{"from": 1})
    await peer.ask(op="head", id=2)
    got: list[Row] = []
    for kinds in ("m", "e", "eem", "e"):
        write(server, kinds)
        while len(got) < server.hub.log.head_op:
            head, body = await peer.hear()
            assert head["first"] == len(got) + 1
            got += operations(unpack(body, head["first"], head["last"])[1])
    assert got == whole(server.hub.log)


async def test_a_copy_beside_many_publishers_has_no_seam(server: Server) -> None:
    async with link_peer(server) as writer, link_peer(server) as reader:
        await reader.say(op="replicate", id=1, credit=2000, **{"from": 1})

        async def publish() -> None:
            for number in range(100):
                await writer.ask(rows(b"%d" % number), op="publish", id=1)
                await writer.ask(op="holds", id=2, name=f"h{number}", seq=1)

        writing = asyncio.ensure_future(publish())
        got: list[Row] = []
        while len(got) < 200:
            head, body = await reader.hear()
            assert head["first"] == len(got) + 1
            got += operations(unpack(body, head["first"], head["last"])[1])
            await reader.say(op="more", id=1, bytes=len(body))
        await writing
        assert got == whole(server.hub.log)


async def test_what_is_no_longer_kept_is_refused(server: Server, peer: LinkPeer) -> None:
    write(server, "memem")
    await server.maintenance.seal()
    write(server, "em")
    await server.maintenance.snapshot()
    log = server.hub.log
    log.retain(0, retain_bytes=0, retain_us=None, holds={})
    assert log.first_op > 1
    refusal = await peer.ask(op="replicate", id=1, **{"from": log.first_op - 1})
    assert (refusal["error"], refusal["oldest"]) == ("trimmed", log.first)
    assert await copied(peer, last=log.head_op, **{"from": log.first_op}) == whole(log)


async def test_a_copy_that_retention_overtakes_ends_with_an_error(server: Server, peer: LinkPeer) -> None:
    for seed in range(3):
        write(server, "memem", seed)
        await server.maintenance.seal()
    await peer.say(op="replicate", id=1, credit=1, **{"from": 1})
    head, body = await peer.hear()
    assert head["event"] == "ops"
    await server.maintenance.snapshot()
    server.hub.log.retain(0, retain_bytes=0, retain_us=None, holds={})
    while "event" in head:
        await peer.say(op="more", id=1, bytes=len(body))
        head, body = await peer.hear()
    assert head["error"] == "trimmed"


async def test_who_is_ahead_of_the_log_waits(server: Server, peer: LinkPeer) -> None:
    """Copies of a cluster's log may come to a node that has less of it than they have."""
    await peer.say(op="replicate", id=1, **{"from": 3})
    write(server, "em")
    write(server, "e")
    await until(lambda: server.hub.log.head_op >= 3)
    head, body = await peer.hear()
    assert head["first"] == 3
    assert operations(unpack(body, head["first"], head["last"])[1]) == whole(server.hub.log)[2:]


async def test_nothing_is_left_of_a_copy_whose_tube_is_gone(server: Server) -> None:
    link: Any = server._doors[-1]
    async with link_peer(server) as peer:
        await peer.say(op="replicate", id=1, **{"from": 1})
        await peer.say(op="replicate", id=2, last=5, **{"from": 1})
        await peer.say(op="entries", id=3, first=0)
        while (await peer.hear())[0]["id"] != 3:
            pass
        assert link.operations.waiting.count == 2
        await peer.say(op="cancel", id=1)
        assert (await peer.hear())[0] == {"id": 1, "ok": True, "cancelled": True}
        assert link.operations.waiting.count == 1
    await until(lambda: not link.facts()["tube"])
    assert link.operations.waiting.count == 0


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"from": 0},
        {"from": -1},
        {"from": "1"},
        {"from": 1 << 60},
        {"from": 1, "last": 0},
        {"from": 1, "credit": 0},
    ],
)
async def test_what_cannot_be_copied_is_refused(peer: LinkPeer, asked: dict[str, Any]) -> None:
    refusal = await peer.ask(op="replicate", id=1, **asked)
    assert refusal["error"] == "malformed"
    assert refusal["reason"]
    assert (await peer.ask(op="head", id=2))["ok"]


async def test_a_batch_that_is_too_long_for_an_event_goes_in_pieces(server: Server) -> None:
    """Few bytes of payload, and far more of attributes."""
    server.hub.submit(with_attributes("x" * (1 << 20), 24))
    server.hub.take_turn()
    log = server.hub.log
    got: list[Row] = []
    while len(got) < 24:
        piece = read_operations(log, len(got) + 1, log.head_op)
        assert piece.body is not None
        assert len(piece.body) < 8 << 20
        assert piece.rows == piece.last - piece.first + 1
        got += operations(unpack(bytes(piece.body), piece.first, piece.last)[1])
    assert got == whole(log)
