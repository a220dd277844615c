"""Hubs for tests of clients: one that does as it is told, and a bad road to a good one.

The bytes of a :class:`ScriptedHub` are built by ``tests.net.raw``, from the protocol's drawings and nothing of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Self, cast

from tests.client.scripted_server import SECONDS, scripted_server
from tests.net.raw import ack, keepalive

Endpoint = tuple[str, int]


class Visit:
    """One connection to a scripted hub, and what came over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self._reader.readexactly(size)

    async def skip_keepalives(self) -> bytes:
        """The first byte of whatever is not a KEEPALIVE; those are acknowledged."""
        while (kind := await self.read(1)) == b"\x10":
            self.send(b"\x20" + await self.read(6))
        return kind

    async def push(self) -> bytes:
        assert await self.skip_keepalives() == b"\x02"
        return await self.read(int.from_bytes(await self.read(2)))

    async def request(self) -> tuple[int, int]:
        assert await self.skip_keepalives() == b"\x04"
        fields = await self.read(18)
        return int.from_bytes(fields[6:12]), int.from_bytes(fields[12:18])

    async def subscription(self) -> None:
        """Take the first KEEPALIVE and acknowledge it."""
        assert await self.read(7) == b"\x10" + bytes(6)
        self.send(ack())

    async def end(self) -> None:
        """Wait for the client to go, acknowledging it as long as it stays."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                if await self.skip_keepalives() == b"\x04":
                    await self.read(18)

    async def left(self) -> None:
        """Wait for the client to go, and say nothing."""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def scripted_hub(*scripts: Callable[[Visit], Awaitable[None]]) -> AsyncIterator[str]:
    """A TCP hub that plays one script a connection, the last one for all that follow; gives its URL.

    A script that fails fails the test.
    """
    async with scripted_server("fyrehose", scripts, Visit) as url:
        yield url


class UdpHub:
    """A UDP socket that plays the hub, packet by packet."""

    def __init__(self) -> None:
        self.sock = socket.socket(type=socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind(("127.0.0.1", 0))
        self.url = "fyrehose+udp://{}:{}".format(*self.endpoint)

    @property
    def endpoint(self) -> Endpoint:
        host, port = self.sock.getsockname()
        return host, port

    def send(self, datagram: bytes, to: Endpoint) -> None:
        self.sock.sendto(datagram, to)

    async def receive(self) -> tuple[bytes, Endpoint]:
        """The next datagram that is not a KEEPALIVE, and who sent it; KEEPALIVEs are acknowledged."""
        while True:
            datagram, source = await self.datagram()
            if datagram[0] != 0x10:
                return datagram, source
            self.send(b"\x20" + datagram[1:], source)

    async def subscribed(self) -> Endpoint:
        """Wait for a KEEPALIVE, acknowledge it, and tell whose it is."""
        datagram, source = await self.datagram()
        assert datagram == keepalive(*source)
        self.send(b"\x20" + datagram[1:], source)
        return source

    async def datagram(self) -> tuple[bytes, Endpoint]:
        """The next datagram, and who sent it."""
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_reader(self.sock, came.set)
        try:
            async with asyncio.timeout(SECONDS):
                await came.wait()
        finally:
            loop.remove_reader(self.sock)
        datagram, source = self.sock.recvfrom(1 << 16)
        return datagram, source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


class BadRoad(asyncio.DatagramProtocol):
    """A UDP proxy that drops, repeats and reorders, by the same chances each time for a seed.

    One client at a time; it seems to be the hub to the client, and the client to the hub.
    """

    def __init__(self, hub: Endpoint, random: Random, *, loss: float, repeat: float, late: float) -> None:
        self._hub = hub
        self._random = random
        self._odds = (loss, repeat, late)
        self._client: Endpoint | None = None
        self._held: tuple[bytes, Endpoint] | None = None
        self.dropped = 0
        self.passed = 0
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, source: Endpoint) -> None:
        if source == self._hub:
            to = self._client
        else:
            self._client, to = source, self._hub
        if to is None or not self.open:
            return
        loss, repeat, late = self._odds
        if self._random.random() < loss:
            self.dropped += 1
            return
        if self._held is None and self._random.random() < late:
            # It is overtaken by whatever comes next.
            self._held = data, to
            return
        self.passed += 1
        for _ in range(2 if self._random.random() < repeat else 1):
            self._transport.sendto(data, to)
        if self._held is not None:
            self._transport.sendto(*self._held)
            self._held = None


@asynccontextmanager
async def bad_road(
    hub: Endpoint, random: Random, *, loss: float = 0.1, repeat: float = 0.05, late: float = 0.1
) -> AsyncIterator[tuple[str, BadRoad]]:
    """A way to a hub on which datagrams fare badly: its URL, and what happened on it."""
    loop = asyncio.get_running_loop()
    transport, road = await loop.create_datagram_endpoint(
        lambda: BadRoad(hub, random, loss=loss, repeat=repeat, late=late), local_addr=("127.0.0.1", 0)
    )
    try:
        yield "fyrehose+udp://{}:{}".format(*transport.get_extra_info("sockname")), road
    finally:
        transport.close()
