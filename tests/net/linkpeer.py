"""A client of the link that knows nothing but tubes, CBOR and Arrow: what it says is what stands in the test."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import cbor2
import pyarrow as pa
from tests.net.raw import SECONDS

from headrace.message import SCHEMA, Message, messages
from headrace.net.server.process import Server
from headrace.tube import Tube, TubeOptions, connect

PUBLISHED = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("numbers", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

Head = dict[str, Any]


def rows(*payloads: bytes, topic: str = "", **attributes: str) -> bytes:
    """A body of rows to be published."""
    count = len(payloads)
    columns = [[topic] * count, [list(attributes.items())] * count, [[]] * count, list(payloads)]
    batch = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, PUBLISHED, strict=True)], schema=PUBLISHED
    )
    return batch.serialize().to_pybytes()


def opened(body: bytes) -> list[Message]:
    return list(messages(pa.ipc.read_record_batch(pa.ipc.read_message(body), SCHEMA)))


class LinkPeer:
    def __init__(self, tube: Tube) -> None:
        self.tube = tube

    async def say(self, body: bytes = b"", /, **head: Any) -> None:
        await self.tube.send(cbor2.dumps(head) + body)

    async def hear(self) -> tuple[Head, bytes]:
        async with asyncio.timeout(SECONDS):
            message = bytes(await self.tube.receive())
        stream = io.BytesIO(message)
        decoder = cbor2.CBORDecoder(stream)
        head: Head = decoder.decode()
        return head, message[stream.tell() :]

    async def ask(self, body: bytes = b"", /, **head: Any) -> Head:
        await self.say(body, **head)
        return (await self.hear())[0]

    async def stream(self, **head: Any) -> tuple[list[Message], list[Head]]:
        """Everything a stream brings until its end: messages cut as the heads say, and all heads."""
        await self.say(**head)
        got: list[Message] = []
        heads: list[Head] = []
        while True:
            told, body = await self.hear()
            heads.append(told)
            if "event" not in told:
                return got, heads
            if body:
                got += [m for m in opened(body) if told["first"] <= m.seq <= told["last"]]
                await self.say(op="more", id=told["id"], bytes=len(body))

    async def gone(self) -> bool:
        async with asyncio.timeout(SECONDS):
            await self.tube.wait_closed()
        return True


@asynccontextmanager
async def link_peer(server: Server, door: str = "tube_tcp", *, greet: bool = True) -> AsyncIterator[LinkPeer]:
    scheme = "tube" if door == "tube_tcp" else "ws"
    options = TubeOptions(max_message=1 << 24, max_inflated=1 << 24)
    async with connect(f"{scheme}://{server.doors[door]}/", options=options) as tube:
        peer = LinkPeer(tube)
        if greet:
            assert (await peer.ask(op="hello", id=0, version=2))["ok"] is True
        yield peer


async def fill(peer: LinkPeer, count: int, size: int = 10, per: int = 100) -> None:
    """Publish so many messages, each its number in decimal."""
    for first in range(0, count, per):
        some = [b"%0*d" % (size, number) for number in range(first, min(first + per, count))]
        assert (await peer.ask(rows(*some), op="publish", id=1))["ok"]


def refused(server: Server, reason: str) -> int:
    """How often the link's door has refused for a reason."""
    return server.hub.counters.get("refused", door="tube", reason=reason)


def delivered(server: Server) -> int:
    """How many messages the link's door has sent."""
    return server.hub.counters.get("delivered", door="tube")
