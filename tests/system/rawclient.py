"""Fyrehose over plain blocking sockets, for tests of a real hub: no asyncio, nothing of our own clients.

A :class:`Subscriber` (TCP) or :class:`UdpSubscriber` is a thread around one socket. It renews its subscription, hands
each run of DELIVERs to ``on_run`` and takes note of where the sequence was not whole. It ends when the hub closes the
connection, when it is refused, or when :meth:`~_Listener.stop` is called.

A :class:`Publisher` writes PUSHes to a connection of its own and blocks where the hub does not read.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from headrace.message import Run
from headrace.wire.fyrehose.stream import (
    ClientDecoder,
    DeliverRun,
    Keepalive,
    KeepaliveAck,
    Push,
    Request,
    push_run,
    serialize,
)

Address = tuple[str, int]

KEEPALIVE = serialize(Keepalive("0.0.0.0", 0))
KEEPALIVE_SECONDS = 1.0
CONNECT_SECONDS = 10.0

_RECEIVE_BYTES = 1 << 20
_DATAGRAMS_PER_TURN = 256
_LOOK_SECONDS = 0.05
"""How long a thread waits for bytes before it looks whether it is to do something else."""


class _Listener(threading.Thread):
    """What subscribers over TCP and UDP share: a thread, what it was sent, and where that had holes."""

    def __init__(self, sock: socket.socket, on_run: Callable[[DeliverRun], None] | None) -> None:
        super().__init__(daemon=True)
        self.sock = sock
        self.runs: list[DeliverRun] = []
        """All that came, unless ``on_run`` takes it."""
        self.received = 0
        self.last = 0
        """The newest sequence number seen."""
        self.breaks: list[tuple[int, int]] = []
        """Where the sequence was not whole: the number before, and the one that came instead of the next."""
        self.subscribed = threading.Event()
        self.failure: Exception | None = None
        self._on_run = on_run or self.runs.append
        self._stopping = threading.Event()
        self._decoder = ClientDecoder()
        self._renew_at = 0.0

    def stop(self) -> None:
        """End the thread and close the socket."""
        self._stopping.set()
        self.join(CONNECT_SECONDS)
        self.sock.close()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self) -> None:
        try:
            while not self._stopping.is_set() and self._turn():
                pass
        except ConnectionError:
            pass  # the hub was killed, or has refused us
        except Exception as failure:  # noqa: BLE001 -- raised again by stop(), in the test's own thread
            self.failure = failure

    def _turn(self) -> bool:
        """Do what is due and take what is there; return whether there may be more."""
        raise NotImplementedError

    def _keep_subscribed(self) -> None:
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + KEEPALIVE_SECONDS
            self.sock.sendall(KEEPALIVE)

    def _readable(self) -> bool:
        return bool(select.select([self.sock], [], [], _LOOK_SECONDS)[0])

    def _take(self, data: bytes | memoryview) -> None:
        for frame in self._decoder.feed(data):
            if isinstance(frame, KeepaliveAck):
                self.subscribed.set()
            else:
                self._follow(frame)
                self._on_run(frame)

    def _follow(self, run: DeliverRun) -> None:
        seqs = run.seqs
        if self.last and seqs[0] != self.last + 1:
            self.breaks.append((self.last, int(seqs[0])))
        for at in (seqs[1:] != seqs[:-1] + 1).nonzero()[0].tolist():
            self.breaks.append((int(seqs[at]), int(seqs[at + 1])))
        self.last = int(seqs[-1])
        self.received += len(seqs)


class Subscriber(_Listener):
    """A subscriber over TCP; it can be told to take nothing, and may still renew its subscription meanwhile."""

    def __init__(
        self,
        address: Address,
        *,
        on_run: Callable[[DeliverRun], None] | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        sock = socket.socket()
        if receive_buffer is not None:
            # Before connecting: it bounds the window that is offered, and so what the kernels hold between us.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(CONNECT_SECONDS)
        sock.connect(address)
        super().__init__(sock, on_run)
        self.taking = threading.Event()
        """Clear it to stop reading."""
        self.taking.set()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    @property
    def name_there(self) -> str:
        """What the hub calls this connection."""
        host, port = self.sock.getsockname()
        return f"{host}:{port}"

    def request(self, first: int, last: int) -> None:
        """Ask for messages again."""
        self.sock.sendall(serialize(Request("0.0.0.0", 0, first, last)))

    def _turn(self) -> bool:
        self._keep_subscribed()
        if not self.taking.wait(_LOOK_SECONDS) or not self._readable():
            return True
        size = self.sock.recv_into(self._buffer)
        self._take(self._buffer[:size])
        return size > 0


class UdpSubscriber(_Listener):
    """A subscriber over UDP that asks for nothing again: what is lost on the way stays lost."""

    def __init__(self, address: Address, *, on_run: Callable[[DeliverRun], None] | None = None) -> None:
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.connect(address)
        super().__init__(sock, on_run)

    def _turn(self) -> bool:
        self._keep_subscribed()
        if not self._readable():
            return True
        datagrams = []
        with contextlib.suppress(BlockingIOError):
            while len(datagrams) < _DATAGRAMS_PER_TURN:
                datagrams.append(self.sock.recv(1 << 16, socket.MSG_DONTWAIT))
        # Packets delimit themselves, so datagrams of DELIVERs and ACKs side by side read as a stream does.
        self._take(b"".join(datagrams))
        return True


class Publisher:
    """A publisher over TCP."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.create_connection(address, CONNECT_SECONDS)
        self.sock.settimeout(60.0)

    def push(self, payloads: Iterable[bytes]) -> None:
        """PUSH each payload, all in one write."""
        self.sock.sendall(push_run(Run.of(payloads)))

    def finish(self) -> None:
        """Say that no more comes, and wait until the hub has read all and closed."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            # It has closed before, and what was sent to it came back as a reset.
            raise ConnectionResetError(error.errno, "the hub closed the connection") from error
        while self.sock.recv(1 << 16):
            pass
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()


class UdpPublisher(Publisher):
    """A publisher over UDP: a datagram for each call of :meth:`push`."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.socket(type=socket.SOCK_DGRAM)
        self.sock.connect(address)

    def push(self, payloads: Iterable[bytes]) -> None:
        self.sock.send(b"".join(serialize(Push(payload)) for payload in payloads))
