"""Peers that share no code with what they test: a socket, literal bytes, and for WebSocket a few lines of RFC 6455.

A :class:`Stranger` says pieces (on TCP bytes, on WebSocket one binary message each) and hears them. It is made by
:func:`dial`, as a client of ours, or :func:`host`, as a server to ours.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

from headrace.config import Address

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The example of RFC 6455, section 1.3."""

MASK = bytes.fromhex("37fa213d")
BINARY, TEXT, CLOSE, PING, PONG = 0x82, 0x81, 0x88, 0x89, 0x8A
LAST_FRAME = 0x80

SECONDS = 10


class Stranger:
    """A TCP peer: pieces are just bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, *pieces: bytes) -> None:
        """Send pieces."""
        for piece in pieces:
            self.writer.write(piece)

    async def hear(self, count: int) -> bytes:
        """Return the next ``count`` bytes, however they were sent."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.readexactly(count)

    async def hear_end(self) -> bytes:
        """Return all that still comes until the connection ends, by whatever means."""
        heard = bytearray()
        async with asyncio.timeout(SECONDS):
            try:
                while chunk := await self.reader.read(1 << 16):
                    heard += chunk
            except ConnectionError:
                pass
        return bytes(heard)

    async def drain(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.writer.drain()

    def finish(self) -> None:
        """Say no more, but go on listening."""
        with suppress(OSError):
            self.writer.write_eof()

    def reset(self) -> None:
        """Vanish as a crashed machine does, with a RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class WebSocketStranger(Stranger):
    """A WebSocket peer: pieces are binary messages. ``masked`` as clients must, and servers must not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, masked: bool) -> None:
        super().__init__(reader, writer)
        self.masked = masked
        self._heard = bytearray()

    async def request(self, path: str = "/", *headers: str) -> bytes:
        """Ask for a WebSocket; return the head of the answer."""
        self.writer.write(request(path, *headers))
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def accept(self) -> bytes:
        """Accept whoever asks for a WebSocket; return the head of the request."""
        async with asyncio.timeout(SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
        key = next(
            line[19:] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: ")
        )
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}",
        ]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        return head

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.say_frame(BINARY, piece)

    def say_frame(self, first: int, payload: bytes) -> None:
        self.writer.write(frame(first, payload, masked=self.masked))

    async def hear_frame(self) -> tuple[int, bytes]:
        """Return the first byte and the payload of the next frame."""
        async with asyncio.timeout(SECONDS):
            first, length = await self.reader.readexactly(2)
            masked, length = length & 0x80, length & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
            mask = await self.reader.readexactly(4) if masked else bytes(4)
            payload = await self.reader.readexactly(length)
        assert bool(masked) is not self.masked, "clients mask, servers do not"
        return first, xor(payload, mask)

    async def hear_piece(self) -> bytes:
        """Return the next binary message."""
        first, payload = await self.hear_frame()
        assert first == BINARY, hex(first)
        return payload

    async def hear(self, count: int) -> bytes:
        while len(self._heard) < count:
            self._heard += await self.hear_piece()
        heard = bytes(self._heard[:count])
        del self._heard[:count]
        return heard

    async def hear_end(self) -> bytes:
        """Return the binary messages that still come, until a Close (which is answered) or the connection's end."""
        heard, self._heard = self._heard, bytearray()
        try:
            while True:
                first, payload = await self.hear_frame()
                if first == CLOSE:
                    self.say_frame(CLOSE, payload)
                    await self.drain()
                    self.finish()
                    return bytes(heard)
                if first == BINARY:
                    heard += payload
        except (asyncio.IncompleteReadError, ConnectionError):
            return bytes(heard)


def request(path: str = "/", *headers: str) -> bytes:
    """The bytes that ask for a WebSocket."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(first: int, payload: bytes, *, masked: bool) -> bytes:
    """The bytes of one WebSocket frame."""
    flag = 0x80 if masked else 0
    if len(payload) < 126:
        head = struct.pack("!BB", first, flag | len(payload))
    elif len(payload) < 1 << 16:
        head = struct.pack("!BBH", first, flag | 126, len(payload))
    else:
        head = struct.pack("!BBQ", first, flag | 127, len(payload))
    return head + MASK + xor(payload, MASK) if masked else head + payload


def xor(payload: bytes, mask: bytes) -> bytes:
    whole = int.from_bytes(payload) ^ int.from_bytes((mask * (len(payload) // 4 + 1))[: len(payload)])
    return whole.to_bytes(len(payload))


async def dial(transport: str, address: Address) -> Stranger:
    """Connect as a stranger; on WebSocket, up to the end of the handshake."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    if transport == "tcp":
        return Stranger(reader, writer)
    stranger = WebSocketStranger(reader, writer, masked=True)
    answer = await stranger.request()
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert f"Sec-WebSocket-Accept: {ACCEPT}".encode() in answer
    return stranger


@asynccontextmanager
async def host(transport: str, behave: Callable[[Stranger], Awaitable[None]]) -> AsyncIterator[str]:
    """Listen as a stranger, behaving so to each that connects; yields the URL to connect to."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if transport == "tcp":
            stranger = Stranger(reader, writer)
        else:
            stranger = WebSocketStranger(reader, writer, masked=False)
            await stranger.accept()
        async with stranger:
            await behave(stranger)

    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(meet(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'tube' if transport == 'tcp' else 'ws'}://127.0.0.1:{port}"
    finally:
        # What a stranger asserts says more than what its peer then meets.
        server.close()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*tasks)
