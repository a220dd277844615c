"""A stream between TLS and a door's protocol: what is kept, and how it ends."""

from __future__ import annotations

import asyncio
from typing import cast
from unittest.mock import Mock

from headrace.net.server.accepting.tls_stream import TlsStream


class Reader(asyncio.BufferedProtocol):
    """Takes a few bytes at a time, and stops when it is told to."""

    def __init__(self, stops_after: int) -> None:
        self.buffer = bytearray(4)
        self.stops_after = stops_after
        self.heard: list[bytes | str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, _size: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        self.heard.append(bytes(self.buffer[:size]))
        if len(self.heard) == self.stops_after:
            self.transport.pause_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        self.heard.append("lost")


class Scene:
    def __init__(self, stops_after: int = 0) -> None:
        self.below, self.tls, self.reader = Mock(), Mock(), Reader(stops_after)
        self.below.is_closing.return_value = False
        self.plaintext = memoryview(bytearray(64))
        self.stream = TlsStream(self.reader, self.below, self.plaintext)
        self.stream.begin(self.tls)

    def decrypted(self, data: bytes) -> None:
        self.stream.get_buffer(-1)[: len(data)] = data
        self.stream.buffer_updated(len(data))
        # The next connection's.
        self.plaintext[:] = b"x" * len(self.plaintext)


async def test_the_end_comes_after_what_was_kept() -> None:
    scene = Scene(stops_after=1)
    scene.decrypted(b"one two three")
    scene.below.pause_reading.assert_called_once()
    scene.stream.connection_lost(None)
    assert scene.reader.heard == [b"one "]
    assert not scene.reader.transport.is_closing()
    scene.reader.transport.resume_reading()
    await asyncio.sleep(0)
    assert scene.reader.heard == [b"one ", b"two ", b"thre", b"e", "lost"]


async def test_who_takes_nothing_is_cut_off_while_it_is_closed() -> None:
    scene = Scene()
    scene.stream.close()
    scene.stream.close()
    scene.tls.close.assert_called_once()
    scene.tls.abort.assert_not_called()
    scene.decrypted(b"more")
    scene.stream.abort()
    scene.tls.abort.assert_called_once()
    scene.stream.connection_lost(None)
    assert scene.reader.heard == ["lost"]


async def test_who_is_closed_after_the_loss_hears_of_it_once() -> None:
    scene = Scene(stops_after=1)
    scene.decrypted(b"one two")
    scene.stream.connection_lost(None)
    scene.stream.close()
    scene.stream.abort()
    await asyncio.sleep(0)
    assert scene.reader.heard == [b"one ", "lost"]
