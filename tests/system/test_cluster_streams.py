"""Changes of HTTP streams at several nodes of a cluster at once: each is judged where messages are numbered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from tests.clusterprocess import Trio
from tests.hubprocess import HubProcess
from tests.system.observing import PATIENCE_SECONDS

ROUNDS = 25
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[HubProcess]]:
    with Trio.start(tmp_path_factory.mktemp("trio")) as trio:
        trio.working()
        yield trio.nodes


async def append(
    session: aiohttp.ClientSession, node: HubProcess, epoch: int, seq: int, body: bytes
) -> tuple[int, str | None]:
    """Append as the producer; return the status and the epoch that the node knows."""
    headers = {
        "Content-Type": "text/plain",
        "Producer-Id": "p",
        "Producer-Epoch": str(epoch),
        "Producer-Seq": str(seq),
    }
    url = f"http://{node.doors['http']}/v1/stream/orders"
    async with session.post(url, data=body, headers=headers) as answer:
        return answer.status, answer.headers.get("Producer-Epoch")


def url_of(node: HubProcess, stream: str) -> str:
    return f"http://{node.doors['http']}/v1/stream/{stream}"


@asynccontextmanager
async def created(nodes: list[HubProcess], stream: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A stream that every node knows, and a session to use it."""
    async with aiohttp.ClientSession() as session:
        async with session.put(url_of(nodes[0], stream), headers=TEXT) as made:
            assert made.status == 201
        await known_everywhere(session, nodes, stream)
        yield session


async def known_everywhere(session: aiohttp.ClientSession, nodes: list[HubProcess], stream: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for node in nodes:
            while True:
                async with session.head(url_of(node, stream)) as answer:
                    if answer.status == 200:
                        break


async def content(session: aiohttp.ClientSession, node: HubProcess, stream: str, length: int) -> str:
    """What a node shows of a stream, once it has so much of it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with session.get(f"{url_of(node, stream)}?offset=-1") as answer:
                assert answer.status == 200
                if len(text := await answer.text()) >= length:
                    return text


async def test_an_append_at_several_nodes_at_once_is_one(nodes: list[HubProcess]) -> None:
    async with created(nodes, "orders") as session:
        for seq in range(ROUNDS):
            tries = [append(session, node, 0, seq, b"<%d>" % seq) for node in nodes]
            told = Counter(status for status, _ in await asyncio.gather(*tries))
            assert told == {200: 1, 204: 2}
        # One after the other at different nodes: none is told of a gap because a node lags.
        for seq in range(ROUNDS, 2 * ROUNDS):
            assert await append(session, nodes[seq % 3], 0, seq, b"<%d>" % seq) == (200, "0")
        # Of two epochs at once, the older is taken before the newer, or fenced.
        expected = "".join(f"<{seq}>" for seq in range(2 * ROUNDS))
        for epoch in range(1, 1 + ROUNDS):
            following = 2 * ROUNDS if epoch == 1 else 1
            old, new = await asyncio.gather(
                append(session, nodes[epoch % 3], epoch - 1, following, b"<old %d>" % epoch),
                append(session, nodes[(epoch + 1) % 3], epoch, 0, b"<new %d>" % epoch),
            )
            assert new == (200, str(epoch))
            assert old[0] in (200, 403)
            expected += f"<old {epoch}>" if old[0] == 200 else ""
            expected += f"<new {epoch}>"
            assert await append(session, nodes[epoch % 3], epoch - 1, following + 1, b"late") == (
                403,
                str(epoch),
            )
        for node in nodes:
            assert await content(session, node, "orders", len(expected)) == expected


async def test_a_writers_sequence_grows_wherever_it_appends(nodes: list[HubProcess]) -> None:
    async def write(node: HubProcess, seq: str) -> int:
        headers = {**TEXT, "Stream-Seq": seq}
        async with session.post(url_of(node, "written"), data=f"<{seq}>", headers=headers) as answer:
            return answer.status

    expected = ""
    async with created(nodes, "written") as session:
        for number in range(ROUNDS):
            # The same sequence at all nodes is taken once; of two, both are if the lower comes first.
            same = f"{number:04d}a"
            told = await asyncio.gather(*(write(node, same) for node in nodes))
            assert Counter(told) == {204: 1, 409: 2}
            low, high = await asyncio.gather(
                write(nodes[number % 3], f"{number:04d}b"), write(nodes[(number + 1) % 3], f"{number:04d}c")
            )
            assert high == 204
            assert low in (204, 409)
            expected += f"<{same}>" + (f"<{number:04d}b>" if low == 204 else "") + f"<{number:04d}c>"
        for node in nodes:
            assert await content(session, node, "written", len(expected)) == expected


@pytest.mark.parametrize("how", ["plain", "producer", "closing"])
async def test_nothing_is_acknowledged_after_the_append_that_closed_a_stream(
    nodes: list[HubProcess], how: str
) -> None:
    more = {
        "plain": {},
        "producer": {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"},
        "closing": {"Stream-Closed": "true"},
    }[how]

    async def send(node: HubProcess, stream: str, text: str, headers: dict[str, str]) -> int:
        async with session.post(url_of(node, stream), data=text, headers={**TEXT, **headers}) as answer:
            assert answer.status in (200, 204, 409)
            return answer.status

    for number in range(ROUNDS // 3):
        stream = f"closed/{how}/{number}"
        async with created(nodes, stream) as session:
            closing, *others = await asyncio.gather(
                send(nodes[number % 3], stream, "<end>", {"Stream-Closed": "true"}),
                *(send(node, stream, "<more>", more) for node in nodes),
            )
            # A producer's append is new with 200, and with 204 a repeat.
            taken, last = others.count(200 if how == "producer" else 204), closing == 204
            for node in nodes:
                text = await content(session, node, stream, 5 * last + 6 * taken)
                assert text.count("<more>") == taken
                assert text.endswith("<end>" if last else "<more>")
                assert text.count("<end>") == last
            if how == "closing":
                assert taken + last == 1


async def test_a_stream_that_is_created_at_two_nodes_is_of_one_kind(nodes: list[HubProcess]) -> None:
    async def create(node: HubProcess, stream: str, kind: str) -> int:
        headers = {"Content-Type": kind}
        async with session.put(url_of(node, stream), data=f'"{kind}"', headers=headers) as answer:
            return answer.status

    kinds = ("text/plain", "application/json", "text/html")
    async with aiohttp.ClientSession() as session:
        for number in range(ROUNDS // 3):
            stream = f"made/{number}"
            tries = (create(node, stream, kind) for node, kind in zip(nodes, kinds, strict=True))
            told = await asyncio.gather(*tries)
            assert Counter(told) == {201: 1, 409: 2}
            (kind,) = (kind for kind, status in zip(kinds, told, strict=True) if status == 201)
            await known_everywhere(session, nodes, stream)
            for node in nodes:
                text = await content(session, node, stream, len(kind) + 2)
                assert text.strip("[]") == f'"{kind}"'
