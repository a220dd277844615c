"""A hub in this process, and peers that speak to it in bytes.

The bytes are built here from the protocol's drawings and from nothing of ours, so that a codec that is wrong in
both directions does not agree with itself. Peers are plain sockets. Whatever waits has a deadline; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from headrace.config import DOORS, load
from headrace.net.fyrehose.door import FyrehoseDoor
from headrace.net.server.process import Server, StartHttp

SECONDS = 20.0
"""How long anything may take: much longer than it does, so that a busy machine fails no test."""

LOOPBACK = "127.0.0.1"
STRANGER = ("203.0.113.9", 9)
"""An address that nobody here has."""

SEQ_REQ = bytes.fromhex(
    "38a56b69735f726573706f6e7365f46b70617263656c5f747970656653657152657162696419ebec6473697a650664626f647965456d707479"
)
DSC_REQ = bytes.fromhex(
    "6da56b69735f726573706f6e7365f46b70617263656c5f74797065664473635265716269641912346473697a650064626f6479a1664473635265"
    "71a1686964656e74697479a4626964191234646d6f646563445343646e616d65644976616e64686f7374693132372e302e302e31"
)
"""As the original sends it: id 0x1234, Ivan, DSC, 127.0.0.1, size 0."""

Endpoint = tuple[str, int]


def push(data: bytes) -> bytes:
    return struct.pack("!BH", 0x02, len(data)) + data


def deliver(seq: int, data: bytes) -> bytes:
    return struct.pack("!BH", 0x01, len(data)) + seq.to_bytes(6) + data


def request(first: int, last: int, address: str = "0.0.0.0", port: int = 0) -> bytes:
    return b"\x04" + endpoint(address, port) + first.to_bytes(6) + last.to_bytes(6)


def forward(first: int, last: int, address: str, port: int) -> bytes:
    return b"\x08" + endpoint(address, port) + first.to_bytes(6) + last.to_bytes(6)


def keepalive(address: str = "0.0.0.0", port: int = 0) -> bytes:
    return b"\x10" + endpoint(address, port)


def ack(address: str = "0.0.0.0", port: int = 0) -> bytes:
    return b"\x20" + endpoint(address, port)


def endpoint(address: str, port: int) -> bytes:
    return socket.inet_aton(address) + port.to_bytes(2)


def delivers(data: bytes) -> list[tuple[int, bytes]]:
    """DELIVERs back to back, as numbers and DATA; nothing else may stand there."""
    found = []
    at = 0
    while at < len(data):
        assert data[at] == 0x01, data[at : at + 16].hex(" ")
        length = int.from_bytes(data[at + 1 : at + 3])
        found.append((int.from_bytes(data[at + 3 : at + 9]), data[at + 9 : at + 9 + length]))
        at += 9 + length
    assert at == len(data)
    return found


@asynccontextmanager
async def running_hub(
    data: Path, *sets: str, http: StartHttp | None = None, take_free_ports: bool = False
) -> AsyncIterator[Server]:
    """A hub on free ports of this machine; ``sets`` win."""
    free = [f"listen.{door}={LOOPBACK}:0" for door in DOORS]
    settings = load(environ={}, sets=[*free, f"node.data={data}", *sets])
    server = Server(settings, http=http, take_free_ports=take_free_ports)
    await server.start()
    try:
        yield server
    finally:
        await server.drain()


def address_of(server: Server, door: str = "fyrehose") -> Endpoint:
    host, _, port = server.doors[door].rpartition(":")
    return host, int(port)


def backbone_of(server: Server) -> FyrehoseDoor:
    """The door itself, where a test must look behind its sockets."""
    (door,) = (door for door in server._doors if isinstance(door, FyrehoseDoor))
    return door


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true in the hub."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 -- the hub has no event for each of its facts
            await asyncio.sleep(0.001)


class Peer:
    """A socket of a test's own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    @property
    def endpoint(self) -> Endpoint:
        host, port = self.sock.getsockname()
        return host, port

    @property
    def name(self) -> str:
        return "{}:{}".format(*self.endpoint)

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        came = loop.create_future()
        loop.add_reader(self.sock, lambda: came.done() or came.set_result(None))
        try:
            async with asyncio.timeout(SECONDS):
                await came
        finally:
            loop.remove_reader(self.sock)


class TcpPeer(Peer):
    """A TCP connection to a door: the backbone's, unless a subclass says otherwise."""

    door = "fyrehose"

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._buffer = bytearray()
        self._ended = False

    @classmethod
    async def connect(
        cls, server: Server, *, source: str = LOOPBACK, receive_buffer: int | None = None
    ) -> Self:
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            sock.bind((source, 0))
            async with asyncio.timeout(SECONDS):
                await asyncio.get_running_loop().sock_connect(sock, address_of(server, cls.door))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def subscribe(self) -> None:
        await self.send(keepalive())
        assert await self.read(7) == ack()

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._buffer) < size:
            assert await self._more(), f"closed after {bytes(self._buffer)!r}"
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def deliver(self) -> tuple[int, bytes]:
        """The next packet, which must be a DELIVER."""
        header = await self.read(9)
        assert header[0] == 0x01, header.hex(" ")
        return int.from_bytes(header[3:]), await self.read(int.from_bytes(header[1:3]))

    async def delivers(self, first: int, last: int) -> list[bytes]:
        """The DATA of DELIVERs ``first`` to ``last``, which must come next and in order."""
        data = []
        for seq in range(first, last + 1):
            number, payload = await self.deliver()
            assert number == seq
            data.append(payload)
        return data

    async def rest(self) -> bytes:
        """Everything up to the end, which must come."""
        while await self._more():
            pass
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    async def _more(self) -> bool:
        while not self._ended:
            try:
                data = self.sock.recv(1 << 20)
            except (BlockingIOError, InterruptedError):
                await self._readable()
                continue
            except ConnectionError:
                data = b""
            self._ended = not data
            self._buffer += data
            return bool(data)
        return False


class UdpPeer(Peer):
    """A UDP socket that has the backbone for its peer."""

    def __init__(self, server: Server, *, address: str = LOOPBACK, port: int = 0) -> None:
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.setblocking(False)
        sock.bind((address, port))
        super().__init__(sock)
        self._hub = address_of(server)

    async def subscribe(self, address: str = "0.0.0.0", port: int = 0) -> None:
        self.send(keepalive(address, port))
        assert await self.datagram() == ack(address, port)

    def send(self, datagram: bytes) -> None:
        self.sock.sendto(datagram, self._hub)

    async def datagram(self) -> bytes:
        """The next datagram, which must come from the hub's door."""
        while True:
            try:
                data, source = self.sock.recvfrom(1 << 16)
            except (BlockingIOError, InterruptedError):
                await self._readable()
            else:
                assert source == self._hub
                return data

    async def delivers(self, first: int, last: int) -> list[bytes]:
        """The DATA of DELIVERs ``first`` to ``last``, which must come next, in order, one a datagram."""
        data = []
        for seq in range(first, last + 1):
            ((number, payload),) = delivers(await self.datagram())
            assert number == seq
            data.append(payload)
        return data

    async def fence(self) -> list[bytes]:
        """What has come so far, and what the hub was about to send: a KEEPALIVE for a stranger is acknowledged
        behind all that, and changes nothing."""
        self.send(keepalive(*STRANGER))
        data = []
        while (datagram := await self.datagram()) != ack(*STRANGER):
            data.append(datagram)
        return data
