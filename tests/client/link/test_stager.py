"""Staging many rows: in pieces, in order, within a window, over tubes that break."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from tests.net.raw import until

import headrace
from headrace.client.link.client import LinkClient
from headrace.client.link.rows import published_rows
from headrace.client.link.stager import GATHERED, PayloadGatherer, Stager, pieces
from headrace.errors import RefusedError
from headrace.message import Run
from headrace.net.server.process import Server
from headrace.wire.link.message import MAX_MESSAGE
from headrace.wire.link.plain_rows import parse_published


def rows(*payloads: bytes) -> pa.RecordBatch:
    return published_rows(list(payloads))


@pytest.mark.parametrize("sizes", [[], [1], [10] * 1000, [5000], [1, 90_000, 1, 1], [90_000] * 3 + [1] * 50])
def test_pieces_are_the_rows_in_order(sizes: list[int]) -> None:
    given = rows(*[bytes([number % 256]) * size for number, size in enumerate(sizes)])
    cut = list(pieces(given, 10_000))
    assert all(piece.num_rows for piece in cut)
    assert all(piece.num_rows == 1 or piece.nbytes <= 20_000 for piece in cut)
    assert pa.Table.from_batches(cut, given.schema).equals(pa.Table.from_batches([given]))


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [[10] * 50] * 30,
        [[5000], [1], [5000]],
        [[1, 90_000, 1, 1], [90_000] * 3 + [1] * 50],
        [[0] * 3000, [0] * 3000],
    ],
    ids=["none", "small ones", "half a stage", "uneven", "empty payloads"],
)
def test_what_is_gathered_are_the_payloads_in_order(runs: list[list[int]]) -> None:
    gathered = PayloadGatherer("topic", 10_000)
    given = [[bytes([n % 256]) * size for n, size in enumerate(sizes)] for sizes in runs]
    bodies = [b"".join(body) for run in given for body in gathered.add(Run.of(run))]
    bodies += [b"".join(body) for body in gathered.rest()]
    assert list(gathered.rest()) == []
    found = [parse_published(body) for body in bodies]
    assert [payload for each in found if each for payload in each[1]] == [p for run in given for p in run]
    # The head of a body is a few hundred bytes.
    assert all(each and each[0] == "topic" and (len(each[1]) == 1 or len(body) < 11_000)
               for each, body in zip(found, bodies, strict=True))  # fmt: skip


def test_small_runs_share_a_stage() -> None:
    gathered = PayloadGatherer("", 10_000)
    assert [list(gathered.add(Run.of([bytes(100)] * 10))) for _ in range(5)] == [[]] * 5
    [body] = gathered.rest()
    found = parse_published(b"".join(body))
    assert found is not None
    assert len(found[1]) == 50


def test_what_is_gathered_fits_a_message() -> None:
    assert GATHERED + (64 << 10) <= MAX_MESSAGE


async def test_what_is_gathered_is_staged(server: Server, link: LinkClient) -> None:
    stager = Stager(link, "q", 0, 0)
    gathered = PayloadGatherer("t", 10_000)
    expected = [b"%d" % n + bytes(n) for n in range(300)]
    for begin in range(0, 300, 100):
        for body in gathered.add(Run.of(expected[begin : begin + 100])):
            await stager.send(body)
    for body in gathered.rest():
        await stager.send(body)
    await link.commit("q", 0, [await stager.finish()])
    got = [message for batch in server.hub.log.scan(1) for message in batch]
    assert [message.payload for message in got] == expected
    assert {message.topic for message in got} == {"t"}


async def test_stages_are_in_the_order_of_the_rows(server: Server, link: LinkClient) -> None:
    stager = Stager(link, "q", 0, 0, window=10_000)
    expected = [b"%d" % n + bytes(3000) for n in range(100)]
    for begin in range(0, 100, 10):
        await stager.add(rows(*expected[begin : begin + 10]))
    await link.commit("q", 0, [await stager.finish()])
    got = [payload for batch in server.hub.log.scan(1) for payload in batch.run]
    assert got == expected


async def test_no_more_than_a_window_is_under_way(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    door: Any = server._doors[-1]
    waiting: list[Any] = []
    monkeypatch.setitem(
        door.operations.table, headrace.wire.link.requests.StageRequest, lambda *asked: waiting.append(asked)
    )
    stager = Stager(link, "q", 0, 0, window=5000)
    adding = asyncio.ensure_future(stager.add(rows(bytes(3000))))
    await adding
    second = asyncio.ensure_future(stager.add(rows(bytes(3000))))
    await until(lambda: len(waiting) == 1)
    await link.head()
    assert not second.done()
    connection, request, _ = waiting[0]
    connection.answer(request.id, None, stage="one")
    await second
    await until(lambda: len(waiting) == 2)
    connection, request, _ = waiting[1]
    connection.answer(request.id, None, stage="two")  # else the hub, when it stops, waits for that
    await stager.give_up()


async def test_a_tube_that_breaks_costs_nothing(server: Server, link: LinkClient) -> None:
    stager = Stager(link, "q", 0, 0)
    await stager.add(rows(b"a"))
    door: Any = server._doors[-1]
    for connection in tuple(door._connections):
        connection.tube.abort()
    await stager.add(rows(b"b"))
    await link.commit("q", 0, [await stager.finish()])
    assert [payload for batch in server.hub.log.scan(1) for payload in batch.run] == [b"a", b"b"]


async def test_rows_that_are_given_up_are_not_kept(server: Server, link: LinkClient) -> None:
    stager = Stager(link, "q", 0, 0)
    for payload in (b"a", b"b"):
        await stager.add(rows(payload))
    await stager.finish()
    assert len(server._intake.staging) == 1
    await stager.give_up()
    assert len(server._intake.staging) == 0


async def test_a_refusal_is_told(server: Server, link: LinkClient) -> None:
    stager = Stager(link, "q" * 300, 0, 0)
    await stager.add(rows(b"a"))
    with pytest.raises(RefusedError, match="query"):
        await stager.finish()
