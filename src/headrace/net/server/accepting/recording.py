"""Record what each peer of a door sends and receives in a capture file, for ``headrace decode``.

Doors know nothing of it. The event loop puts a recording protocol between each connection and its door; a socket for
datagrams is replaced by one that does the same, with a capture for each address. This is for debugging: files are
written on the event loop and contain everything, keys and payloads included. So only their owner may read them, and
recording ends when :data:`MAX_BYTES` are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from headrace.client.udp_offload import UDP_SEGMENT, segment_size
from headrace.errors import ConfigError, system_reason
from headrace.wire.capture import MAX_CHUNK, Capture, Chunk, serialize

if TYPE_CHECKING:
    _EventLoop = asyncio.SelectorEventLoop
else:
    try:
        from uvloop import Loop as _EventLoop
    except ImportError:
        _EventLoop = asyncio.SelectorEventLoop

logger = logging.getLogger("headrace")

MAX_BYTES: Final = 4 << 30
"""Maximum bytes of all captures of a run."""

FILE_BYTES: Final = 4096
"""Bytes that an empty capture counts for: peers may be many and send little."""
OPEN_PEERS: Final = 256
"""Addresses whose captures of datagrams are open at a time; one that comes back later gets another capture."""

_UNRECORDED: Final = frozenset({"http"})


class Recorder:
    """Writes captures to a directory; ``doors`` returns where each door listens."""

    def __init__(
        self, directory: Path, doors: Callable[[], dict[str, str]], *, most: int = MAX_BYTES
    ) -> None:
        self._directory = directory
        self._doors = doors
        self._left = most
        self._numbers = count(1)
        self._started = time_ns() // 1_000_000_000
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"a directory that can be written; {system_reason(error)}"
            raise ConfigError(str(directory), None, source="--record", expected=problem) from None

    def door_at(self, sock: socket.socket) -> str | None:
        """Return the door that listens on a socket, if it is recorded."""
        host, port = sock.getsockname()[:2]
        for door, where in self._doors().items():
            if door not in _UNRECORDED and where.rpartition(":")[2] == str(port):
                return door if where.rpartition(":")[0].strip("[]") == host else None
        return None

    def begin(self, door: str, peer: str, *, datagrams: bool = False) -> BinaryIO | None:
        """Open a file for a new connection or for datagrams; return ``None`` if there is no more room."""
        if self._left <= 0:
            return None
        path = self._directory / f"{door}-{self._started}-{next(self._numbers):06d}.capture"
        try:
            file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            file.write(serialize(Capture(door, peer, datagrams)))
            file.flush()
        except OSError as error:
            self._give_up(f"{path}: {error}")
            return None
        self._spend(FILE_BYTES)
        return file

    def write(self, file: BinaryIO, data: Any, *, outgoing: bool) -> bool:
        """Record bytes; return whether there is room for more."""
        if self._left <= 0:
            return False
        now = time_ns() // 1000
        try:
            file.writelines(
                serialize(Chunk(outgoing, now, bytes(data[at : at + MAX_CHUNK])))
                for at in range(0, max(len(data), 1), MAX_CHUNK)
            )
            # A reader sees all of it while the connection lasts, and after the hub was killed.
            file.flush()
        except OSError as error:
            self._give_up(str(error))
            return False
        self._spend(len(data))
        return True

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left <= 0:
            self._give_up("the limit is reached")

    def _give_up(self, why: str) -> None:
        self._left = 0
        logger.warning("recording ends: %s", why)


class RecordingLoop(_EventLoop):
    """An event loop whose servers are recorded."""

    recorder: Recorder | None = None

    async def create_server(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a server; record its connections if it is a door's."""
        sock = kwargs.get("sock")
        door = None if sock is None or self.recorder is None else self.recorder.door_at(sock)
        if door is None or self.recorder is None:
            return await super().create_server(protocol_factory, *args, **kwargs)
        recorder = self.recorder

        def recorded() -> asyncio.BaseProtocol:
            return _Recorded(protocol_factory(), recorder, door)

        return await super().create_server(recorded, *args, **kwargs)


def recorded_as_at(
    sock: socket.socket, make: Callable[..., asyncio.BaseProtocol]
) -> Callable[..., asyncio.BaseProtocol]:
    """Return the factory of a listening socket's protocols; of recorded ones, if the event loop records."""
    loop = asyncio.get_running_loop()
    recorder = loop.recorder if isinstance(loop, RecordingLoop) else None
    door = None if recorder is None else recorder.door_at(sock)
    if recorder is None or door is None:
        return make
    return lambda *args: _Recorded(cast("asyncio.BufferedProtocol", make(*args)), recorder, door)


def recorded_datagrams(sock: socket.socket, door: str) -> socket.socket:
    """Return the socket, or one that records its datagrams if the event loop records."""
    loop = asyncio.get_running_loop()
    recorder = loop.recorder if isinstance(loop, RecordingLoop) else None
    return sock if recorder is None else _RecordedSocket(sock, recorder, door)


class _RecordedSocket(socket.socket):
    """A socket whose datagrams are recorded one by one, even where a call takes or gives several."""

    def __init__(self, sock: socket.socket, recorder: Recorder, door: str) -> None:
        super().__init__(fileno=sock.detach())
        self.setblocking(False)
        self._recorder = recorder
        self._door = door
        self._files: OrderedDict[Any, BinaryIO] = OrderedDict()

    def recvmsg_into(self, buffers: Any, *rest: Any) -> Any:
        size, ancillary, flags, address = super().recvmsg_into(buffers, *rest)
        self._note(memoryview(buffers[0])[:size], segment_size(size, ancillary), address, outgoing=False)
        return size, ancillary, flags, address

    def sendmsg(self, buffers: Any, ancillary: Any = (), flags: int = 0, address: Any = None, /) -> int:
        sent = super().sendmsg(buffers, ancillary, flags, address)
        (step,) = next(
            (struct.unpack("=H", size) for _, kind, size in ancillary if kind == UDP_SEGMENT), (sent,)
        )
        self._note(memoryview(buffers[0])[:sent], step, address, outgoing=True)
        return sent

    def sendto(self, data: Any, address: Any) -> int:  # type: ignore[override]
        sent = super().sendto(data, address)
        self._note(memoryview(data), sent, address, outgoing=True)
        return sent

    def close(self) -> None:
        while self._files:
            self._end(next(iter(self._files)))
        super().close()

    def _note(self, data: memoryview, step: int, address: Any, *, outgoing: bool) -> None:
        peer = address[:2]
        file = self._files.get(peer)
        if file is None:
            file = self._recorder.begin(self._door, f"{peer[0]}:{peer[1]}", datagrams=True)
            if file is None:
                return
            self._files[peer] = file
            if len(self._files) > OPEN_PEERS:
                self._end(next(iter(self._files)))
        self._files.move_to_end(peer)
        for at in range(0, max(len(data), 1), max(step, 1)):
            if not self._recorder.write(file, data[at : at + step], outgoing=outgoing):
                self._end(peer)
                return

    def _end(self, peer: Any) -> None:
        with contextlib.suppress(OSError):
            self._files.pop(peer).close()


class _Recorded(asyncio.BufferedProtocol):
    """Records what passes between a connection and its door."""

    def __init__(self, inner: asyncio.BufferedProtocol, recorder: Recorder, door: str) -> None:
        self._inner = inner
        self._recorder = recorder
        self._door = door
        self._file: BinaryIO | None = None
        self._view: Any = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername")
        peer = f"{name[0]}:{name[1]}" if name else ""
        self._file = self._recorder.begin(self._door, peer)
        self._inner.connection_made(cast("asyncio.Transport", _RecordedTransport(transport, self)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._inner.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> Any:
        self._view = self._inner.get_buffer(sizehint)
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self.note(memoryview(self._view)[:nbytes], outgoing=False)
        self._inner.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def note(self, data: Any, *, outgoing: bool) -> None:
        if self._file is not None and not self._recorder.write(self._file, data, outgoing=outgoing):
            self._end()

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


class _RecordedTransport:
    """A transport that records what goes out and passes on everything else."""

    def __init__(self, transport: asyncio.BaseTransport, recorded: _Recorded) -> None:
        self._transport: Any = transport
        self._recorded = recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        self._recorded.note(data, outgoing=True)
        self._transport.write(data)

    def writelines(self, pieces: Any) -> None:
        pieces = list(pieces)
        for piece in pieces:
            self._recorded.note(piece, outgoing=True)
        self._transport.writelines(pieces)
