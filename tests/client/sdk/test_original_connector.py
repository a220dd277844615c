"""The SDK client at a connector that was written from the original document alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.client.connectors import SECONDS

from headrace import connect, where
from headrace.message import Message


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    """The elements of the next message."""
    length = int((await reader.readline())[1:])
    body = await reader.readexactly(length)
    count, _, rest = body.partition(b"\r\n")
    elements = []
    for _ in range(int(count[1:])):
        size, _, rest = rest.partition(b"\r\n")
        elements.append(rest[: int(size[1:])])
        rest = rest[int(size[1:]) + 2 :]
    assert rest == b""
    return elements


def _push(**content: Any) -> bytes:
    text = json.dumps(content).encode() + b"\r\n"
    return b"#%d\r\n%b" % (len(text), text)


class OriginalConnector:
    """Answers as the document has it, and pushes messages without numbers to whoever subscribes."""

    def __init__(self, *payloads: str) -> None:
        self.payloads = payloads
        self.auths: list[dict[str, Any]] = []
        self.subs: list[list[bytes]] = []
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        try:
            while True:
                name, *rest = await _command(reader)
                if name == b"auth":
                    self.auths.append(json.loads(rest[0]))
                    writer.write(b"+authsuccess\r\n")
                elif name == b"hb":
                    writer.write(b"+h\r\n")
                elif rest:
                    self.subs.append(rest)
                    writer.write(b"".join(_push(payload=text, type=1) for text in self.payloads))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(original: OriginalConnector) -> AsyncIterator[str]:
    server = await asyncio.start_server(original.serve, "127.0.0.1", 0)
    async with server:
        yield f"sdk://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_pushes_without_a_number_are_taken_and_have_the_number_0() -> None:
    original = OriginalConnector("rain", "snow", "rain")
    async with listening(original) as url, connect(url) as sdk, asyncio.timeout(SECONDS):
        await sdk.subscribe(where(city="Oslo"))
        got = [await anext(sdk) for _ in range(3)]
        assert got == [Message(0, b"rain"), Message(0, b"snow"), Message(0, b"rain")]
        # Equal messages are no repeats, and there is nothing to resume after.
        assert (sdk.stats.received, sdk.stats.repeated, sdk.cursor) == (3, 0, None)
    assert original.subs == [[b"city", b'{"use":1,"strval":"Oslo"}']]


async def test_the_client_reconnects_and_subscribes_again_without_a_number_to_resume_after() -> None:
    original = OriginalConnector("snow")
    async with listening(original) as url, connect(url) as sdk, asyncio.timeout(SECONDS):
        await sdk.subscribe(where(city="Oslo"))
        assert await anext(sdk) == Message(0, b"snow")
        assert original.writer is not None
        original.writer.transport.abort()
        assert await anext(sdk) == Message(0, b"snow")
    assert len(original.auths) == len(original.subs) == 2
    assert all("after" not in auth for auth in original.auths)


async def test_a_number_from_before_stays_the_place_to_resume_at() -> None:
    original = OriginalConnector("snow")
    async with listening(original) as url, connect(url, from_seq=8) as sdk, asyncio.timeout(SECONDS):
        await sdk.subscribe(where(city="Oslo"))
        assert await anext(sdk) == Message(0, b"snow")
        assert sdk.cursor == 8
    assert original.auths[0]["after"] == 7
