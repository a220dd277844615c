"""Replays of picked messages: in few requests, in order and once, though tubes break and others replay the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from tests.client.links import break_tubes
from tests.net.raw import SECONDS

from headrace.client.link import replay
from headrace.client.link.client import LinkClient
from headrace.client.link.replay import ReplayTarget, picks
from headrace.config import Address
from headrace.message import SCHEMA, Batch, Run
from headrace.net.server.process import Server

NAME = "replay of some"


def picked(*seqs: int) -> pa.RecordBatch:
    """Messages with these numbers of another log."""
    made = Batch(Run.of([b"%d" % seq for seq in seqs]), first=1, topic="t").to_arrow()
    return made.set_column(0, SCHEMA.field("seq"), pa.array(seqs, pa.int64()))


def replayed(server: Server) -> list[tuple[int | None, bytes, str, str]]:
    return [
        (message.number, message.payload, message.publisher, message.origin)
        for batch in server.hub.log.scan(1)
        for message in batch
    ]


def once(*seqs: int) -> list[tuple[int | None, bytes, str, str]]:
    return [(seq, b"%d" % seq, NAME, "replay") for seq in seqs]


def target(server: Server) -> ReplayTarget:
    return ReplayTarget([Address.parse(str(server.doors["tube_tcp"]))], reconnect_timeout=SECONDS)


@pytest.fixture
async def there(server: Server) -> AsyncIterator[ReplayTarget]:
    async with target(server) as opened:
        yield opened


async def test_gaps_need_no_requests_of_their_own(
    server: Server, there: ReplayTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = LinkClient.ask

    async def counted(client: LinkClient, make: Any, body: Any = None) -> Any:
        asked.append(len(body))
        return await ask(client, make, body)

    monkeypatch.setattr(LinkClient, "ask", counted)
    assert await there.known(NAME) is None
    assert await there.append_picked(NAME, picked(2, 4, 5, 9)) == (1, 4)
    assert await there.append_picked(NAME, picked(11, 20)) == (5, 6)
    assert len(asked) == 2
    assert replayed(server) == once(2, 4, 5, 9, 11, 20)
    assert await there.known(NAME) == 20


async def test_a_replay_goes_on_where_it_was(server: Server, there: ReplayTarget) -> None:
    assert await there.known(NAME) is None
    await there.append_picked(NAME, picked(2, 4))
    async with target(server) as again:
        assert await again.known(NAME) == 4
        await again.append_picked(NAME, picked(8))
    assert replayed(server) == once(2, 4, 8)


async def test_two_that_replay_the_same_bring_it_once(server: Server, there: ReplayTarget) -> None:
    """As a task of Spark's does that was given up, and goes on beside the one in its place."""
    async with target(server) as other:
        for each in (there, other):
            assert await each.known(NAME) is None
        await there.append_picked(NAME, picked(2, 4, 6))
        await other.append_picked(NAME, picked(2, 4, 6, 8, 10))
        await there.append_picked(NAME, picked(8))
        await there.append_picked(NAME, picked(10, 12))
        await other.append_picked(NAME, picked(12))
    assert replayed(server) == once(2, 4, 6, 8, 10, 12)


async def test_a_request_that_goes_out_twice_is_taken_once(
    server: Server, there: ReplayTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    door: Any = server._doors[-1]
    publishing = door.operations.publishing
    take = publishing.pass_on
    broken = False

    def break_after(request: Any, body: Any, reply: Any) -> None:
        nonlocal broken
        take(request, body, reply)
        if not broken:
            broken = True
            break_tubes(server)

    monkeypatch.setattr(publishing, "pass_on", break_after)
    assert await there.known(NAME) is None
    assert await there.append_picked(NAME, picked(2, 4)) == (1, 2)
    await there.append_picked(NAME, picked(6))
    assert broken
    assert replayed(server) == once(2, 4, 6)


def test_requests_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_REQUEST_ROWS", 3)
    rows = picked(*range(2, 22, 2))
    assert [part.num_rows for part in picks(rows)] == [3, 3, 3, 1]
    assert pa.Table.from_batches(picks(rows)) == pa.Table.from_batches([rows])
    assert list(picks(rows.slice(0, 0))) == []
