"""Connectors for tests of the SDK client: each connection plays a script, with the codecs of the wire.

Bytes go out in pieces of whatever size a test likes, so that no test depends on how they are cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from tests.client.scripted_server import SECONDS, scripted_server

from headrace.wire.attribute.publish import Publish, PublisherDecoder
from headrace.wire.sdk.auth import Auth
from headrace.wire.sdk.commands import (
    AuthSuccess,
    Command,
    CommandError,
    ConnectorFrame,
    Heartbeat,
    HeartbeatReply,
    Push,
    ServerDecoder,
    serialize,
)
from headrace.wire.sdk.subscribe import Subscribe

_WINDOW = 1 << 16
"""A small window of a fixed size: whoever is not read is made to wait soon, and stays so."""


class LeftError(Exception):
    """The client has gone."""


class Session:
    """One connection to a connector, and what came over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: int) -> None:
        self._reader = reader
        self._writer = writer
        self._piece = piece
        self._decoder = ServerDecoder()
        self._frames: Iterator[Command] = iter(())
        self.withdrawn = False

    async def command(self) -> Command:
        """The next command."""
        while (frame := next(self._frames, None)) is None:
            async with asyncio.timeout(SECONDS):
                data = await self._reader.read(1 << 16)
            if not data:
                raise LeftError
            self._frames = iter(list(self._decoder.feed(data)))
        return frame

    async def welcome(self) -> Auth:
        """Take an auth."""
        auth = await self.command()
        assert isinstance(auth, Auth)
        self.send(AuthSuccess())
        return auth

    async def subscription(self) -> Subscribe:
        """Take a sub, answering the heartbeats before it and the one behind it."""
        while not isinstance(command := await self.command(), Subscribe):
            assert isinstance(command, Heartbeat)
            self.send(HeartbeatReply())
        assert isinstance(await self.command(), Heartbeat)
        self.send(HeartbeatReply())
        return command

    async def stay(self) -> None:
        """Answer heartbeats until the client leaves; one with a made-up id withdraws before."""
        while (command := await self.command()) != Subscribe({}):
            assert isinstance(command, Heartbeat)
            self.send(HeartbeatReply())
        self.withdrawn = True
        self.push(999_999)
        raise AssertionError(await self.command())

    def send(self, *frames: ConnectorFrame) -> None:
        self.send_bytes(b"".join(map(serialize, frames)))

    def push(self, *seqs: int) -> None:
        """Push messages whose payload is their number."""
        self.send(*(Push(seq, b"%d" % seq) for seq in seqs))

    def send_bytes(self, data: bytes) -> None:
        for at in range(0, len(data), self._piece):
            self._writer.write(data[at : at + self._piece])

    async def drain(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._writer.drain()

    def refuse(self) -> None:
        """Say that a command was wrong, and close as the protocol has it."""
        self.send(CommandError())
        self._writer.close()

    def reset(self) -> None:
        """Break the connection."""
        _reset(self._writer)


class PublisherSession:
    """One connection to a publisher door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = PublisherDecoder()
        self._publishes: Iterator[Publish] = iter(())

    async def publish(self) -> Publish:
        """The next message."""
        while (publish := next(self._publishes, None)) is None:
            async with asyncio.timeout(SECONDS):
                data = await self._reader.read(1 << 16)
            if not data:
                raise LeftError
            self._publishes = iter([each for run in self._decoder.feed(data) for each in run])
        return publish

    def reset(self) -> None:
        """Break the connection."""
        _reset(self._writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crash would: not in good order, even if everything was read."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


Script = Callable[[Session], Awaitable[None]]
_scripted = partial(scripted_server, window=_WINDOW, ends=(LeftError, ConnectionError))


@asynccontextmanager
async def connector(*scripts: Script, piece: int = 1 << 16) -> AsyncIterator[str]:
    """A connector that plays one script a connection, the last one for all that follow; gives its URL.

    A script that fails fails the test; that the client leaves is the usual end of one.
    """
    async with _scripted("sdk", scripts, lambda reader, writer: Session(reader, writer, piece)) as url:
        yield url


@asynccontextmanager
async def publisher_door(*scripts: Callable[[PublisherSession], Awaitable[None]]) -> AsyncIterator[str]:
    """A publisher door that plays scripts likewise."""
    async with _scripted("publisher", scripts, PublisherSession) as url:
        yield url


@contextlib.contextmanager
def elsewhere(serve: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[str]:
    """A door in a thread with a loop of its own, for clients that block; gives its URL."""
    opened: Future[str] = Future()
    stop = threading.Event()

    async def work() -> None:
        async with serve() as url:
            opened.set_result(url)
            await asyncio.to_thread(stop.wait, SECONDS)

    ended: Future[None] = Future()

    def run() -> None:
        try:
            asyncio.run(work())
        except Exception as error:  # noqa: BLE001 -- told in the thread that waits for it
            ended.set_exception(error)
            opened.cancel()
        else:
            ended.set_result(None)

    thread = threading.Thread(target=run, name="door")
    thread.start()
    try:
        yield opened.result(SECONDS)
    finally:
        stop.set()
        thread.join()
    ended.result(0)
