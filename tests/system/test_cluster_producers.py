"""Producers over HTTP that append at several nodes of a cluster at once: each append is judged where it is numbered."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
from tests.clusterprocess import Trio
from tests.hubprocess import HubProcess
from tests.system.observing import PATIENCE_SECONDS

ROUNDS = 25


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


async def known(session: aiohttp.ClientSession, node: HubProcess) -> None:
    """Wait until a node knows the stream."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with session.head(f"http://{node.doors['http']}/v1/stream/orders") as answer:
                if answer.status == 200:
                    return


async def content(session: aiohttp.ClientSession, node: HubProcess) -> str:
    async with session.get(f"http://{node.doors['http']}/v1/stream/orders?offset=-1") as answer:
        assert answer.status == 200
        return await answer.text()


async def test_an_append_at_several_nodes_at_once_is_one(tmp_path: Path) -> None:
    with Trio.start(tmp_path) as trio:
        await asyncio.to_thread(trio.working)
        nodes = trio.nodes
        async with aiohttp.ClientSession() as session:
            url = f"http://{nodes[0].doors['http']}/v1/stream/orders"
            async with session.put(url, headers={"Content-Type": "text/plain"}) as made:
                assert made.status == 201
            for node in nodes:
                await known(session, node)
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
            await asyncio.to_thread(trio.working)
            for node in nodes:
                assert await content(session, node) == expected
