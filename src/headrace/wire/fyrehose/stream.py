"""fyrehose, the backbone's protocol, as a stream of packets.

Single packets are in :mod:`headrace.wire.fyrehose.packet`, the writing of many is in
:mod:`headrace.wire.fyrehose.runs`, datagrams are in :mod:`headrace.wire.fyrehose.datagrams`; all may be imported from
here. PUSH and DELIVER flow in bulk: where several stand side by side, a compiled kernel
(:mod:`headrace.wire.fyrehose.kernels`) takes them in one go as a run. A single packet is read in Python, which is as
quick for one and needs no kernels; no message waits for a batch to fill.

Invariants:

- TYPE and LENGTH are judged as soon as they are there, the other fields once the packet is whole. So a stream
  gives the same frames and the same error however it is cut; only how they group into runs differs.
- A run's payloads are copied once, out of the receive buffer into memory of their own.
- At most one packet is kept unfinished, :data:`MAX_PACKET` bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import WireError
from headrace.message import MAX_RUN_BYTES, Bytes, Run
from headrace.wire.fyrehose.datagrams import (
    Arrival,
    BadDatagram,
    LoneDatagram,
    PushDatagrams,
    parse_client_datagram,
    parse_datagram,
    parse_datagrams,
)
from headrace.wire.fyrehose.packet import (
    AT_CLIENT,
    AT_HUB,
    DATAGRAMS_ONLY,
    DELIVER_HEADER,
    MAX_DATA,
    MAX_DATAGRAM,
    MAX_DELIVER_DATAGRAM,
    MAX_PACKET,
    MAX_PUSH_DATAGRAM,
    PUSH_HEADER,
    Challenge,
    Deliver,
    Forward,
    Frame,
    Keepalive,
    KeepaliveAck,
    Proof,
    Push,
    Request,
    Type,
    packet_size,
    parse,
    read,
    read_sequence,
    serialize,
)
from headrace.wire.fyrehose.runs import deliver_packets, deliver_run, empty_run, push_run
from headrace.wire.receive_buffer import Buffer, Decoder

__all__ = [
    "MAX_DATA",
    "MAX_DATAGRAM",
    "MAX_DELIVER_DATAGRAM",
    "MAX_PACKET",
    "MAX_PUSH_DATAGRAM",
    "Arrival",
    "BadDatagram",
    "Challenge",
    "ClientDecoder",
    "ClientFrame",
    "Deliver",
    "DeliverRun",
    "Forward",
    "Frame",
    "Keepalive",
    "KeepaliveAck",
    "LoneDatagram",
    "Proof",
    "Push",
    "PushDatagrams",
    "PushRun",
    "Request",
    "Scanned",
    "ServerDecoder",
    "ServerFrame",
    "Type",
    "cost",
    "deliver_packets",
    "deliver_run",
    "parse",
    "parse_client_datagram",
    "parse_datagram",
    "parse_datagrams",
    "push_run",
    "serialize",
]

PUSHES_OF_A_PACKET: Final = 512
"""PUSHes of a run that cost a hub about as much as one packet that is read by itself."""

_NO_BOUND: Final = 1 << 32
"""More packets than a buffer can hold."""


class PushRun(msgspec.Struct, frozen=True):
    """Consecutive PUSHes."""

    run: Run


@dataclass(frozen=True, slots=True, eq=False)
class DeliverRun:
    """Consecutive DELIVERs: message ``seqs[i]`` is payload ``i``."""

    seqs: npt.NDArray[np.int64]
    run: Run

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeliverRun):
            return NotImplemented
        return np.array_equal(self.seqs, other.seqs) and self.run == other.run

    __hash__ = None  # type: ignore[assignment]


ServerFrame = PushRun | Request | Keepalive
"""What a client sends to the hub."""

ClientFrame = DeliverRun | KeepaliveAck
"""What the hub sends to a client."""


def cost(frame: ServerFrame | Arrival) -> int:
    """Return how many packets by themselves cost as much as a frame does: a run's number counts, not only its bytes."""
    return 1 + frame.run.count // PUSHES_OF_A_PACKET if isinstance(frame, PushRun | PushDatagrams) else 1


F = TypeVar("F")


class Scanned(NamedTuple, Generic[F]):
    """The frames that a scan found, the bytes they took, and the error that ends the stream, if any."""

    frames: list[F]
    consumed: int
    error: WireError | None


class _StreamDecoder(Decoder[F]):
    """One direction of a TCP connection; a subclass says which types may come and which of them in runs."""

    _bulk: ClassVar[Type]
    _allowed: ClassVar[frozenset[int]]

    def __init__(self) -> None:
        super().__init__()
        self._ready: deque[F] = deque()
        self._broken: WireError | None = None
        self._wanted = 0

    def feed(self, data: Buffer) -> Iterator[F]:
        """Take bytes and yield the frames they complete; bulk packets side by side come as one run."""
        if self._broken is None:
            self._receive(data)
        return self._frames()

    def scan(self, buffer: Buffer | Bytes, begin: int, end: int, most: int | None = None) -> Scanned[F]:
        """Read frames in place from ``buffer[begin:end]``, for a caller who owns the receive buffer.

        Bytes that are not consumed begin a packet: call again with them and what follows. With ``most``, reading ends
        with the frame whose :func:`cost` brings all to that, and what is not consumed may have others. Nothing
        returned refers to the buffer. An error comes with the frames before it, and again from each later call. A
        connection is read either this way or by :meth:`feed`.
        """
        view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
        scanned = self._scan(view, begin, end, most)
        self.inbox.position += scanned.consumed
        return scanned

    def _receive(self, data: Buffer) -> None:
        inbox = self.inbox
        if not len(inbox):
            frames, consumed, error = self.scan(data, 0, len(data))
            if consumed < len(data) and error is None:
                inbox.receive(memoryview(data)[consumed:])
        else:
            inbox.receive(data)
            if len(inbox) < self._wanted:
                # A long packet in small pieces is not scanned again with each of them.
                return
            whole = memoryview(inbox.peek(len(inbox)))
            frames, consumed, _ = self._scan(whole, 0, len(whole))
            inbox.skip(consumed)
        self._ready.extend(frames)

    def _scan(self, view: memoryview, begin: int, end: int, most: int | None = None) -> Scanned[F]:
        frames: list[F] = []
        at, left = begin, _NO_BOUND if most is None else most
        origin = self.inbox.position - begin
        try:
            while at < end and self._broken is None and left > 0:
                size = packet_size(view, at, end, self._allowed, origin)
                after = at + size
                if after > end:
                    self._wanted = size
                    break
                left -= 1
                if view[at] != self._bulk:
                    frames.append(cast("F", read(bytes(view[at:after]), origin + at)))
                    at = after
                elif after == end or view[after] != self._bulk:
                    frames.append(self._one(view, at, after, origin + at))
                    at = after
                else:
                    run, at, count = self._many(view, at, end, origin + at, (left + 1) * PUSHES_OF_A_PACKET)
                    left -= count // PUSHES_OF_A_PACKET
                    frames.append(run)
        except WireError as error:
            # Its traceback holds the view, and would so hold the caller's buffer while the error lives.
            self._broken = error.with_traceback(None)
        return Scanned(frames, at - begin, self._broken)

    def _next(self) -> F | None:
        if self._ready:
            return self._ready.popleft()
        if self._broken is not None:
            raise self._broken
        return None

    @abstractmethod
    def _one(self, view: memoryview, begin: int, end: int, offset: int, /) -> F:
        """Read the one whole bulk packet between ``begin`` and ``end``."""

    @abstractmethod
    def _many(self, view: memoryview, begin: int, end: int, offset: int, most: int, /) -> tuple[F, int, int]:
        """Read bulk packets from ``begin``, where a whole one is; return where they end, and how many they are."""


class ServerDecoder(_StreamDecoder[ServerFrame]):
    """What a client sends to the hub over TCP: PUSH (in runs), REQUEST, KEEPALIVE.

    >>> [frame] = ServerDecoder().feed(b"\\x02\\x00\\x02hi\\x02\\x00\\x00")
    >>> list(frame.run)
    [b'hi', b'']
    """

    # On TCP 0x02 is always PUSH: only a datagram's end tells the document's example of a KEEPALIVE apart.
    _bulk = Type.PUSH
    _allowed = AT_HUB - DATAGRAMS_ONLY

    def scan(
        self, buffer: Buffer | Bytes, begin: int, end: int, most: int | None = None
    ) -> Scanned[ServerFrame]:
        """Read frames in place, with a short cut for a read of just one PUSH, as most are at low load."""
        size = end - begin - PUSH_HEADER.size
        if (
            0 <= size <= MAX_DATA
            and buffer[begin] == Type.PUSH
            and buffer[begin + 1] << 8 | buffer[begin + 2] == size
            and self._broken is None
            and isinstance(buffer, memoryview)
        ):
            self.inbox.position += end - begin
            return Scanned(
                [PushRun(Run.one(bytes(buffer[begin + PUSH_HEADER.size : end])))], end - begin, None
            )
        return super().scan(buffer, begin, end, most)

    def _one(self, view: memoryview, begin: int, end: int, _offset: int, /) -> PushRun:
        return PushRun(Run.one(bytes(view[begin + PUSH_HEADER.size : end])))

    def _many(
        self, view: memoryview, begin: int, end: int, _offset: int, most: int, /
    ) -> tuple[PushRun, int, int]:
        from headrace.wire.fyrehose import kernels

        buffer = np.frombuffer(view, np.uint8)
        count, size, stop = kernels.measure_pushes(buffer, begin, end, MAX_RUN_BYTES, most)
        run = empty_run(count, size)
        kernels.gather_pushes(buffer, begin, run.data, run.offsets)
        return PushRun(run), stop, count


class ClientDecoder(_StreamDecoder[ClientFrame]):
    """What the hub sends to a client over TCP: DELIVER (in runs) and KEEPALIVE-ACK."""

    _bulk = Type.DELIVER
    _allowed = AT_CLIENT - DATAGRAMS_ONLY

    def _one(self, view: memoryview, begin: int, end: int, offset: int, /) -> DeliverRun:
        seqs = np.array((read_sequence(view, begin, offset),), np.int64)
        return DeliverRun(seqs, Run.one(bytes(view[begin + DELIVER_HEADER.size : end])))

    def _many(
        self, view: memoryview, begin: int, end: int, offset: int, most: int, /
    ) -> tuple[DeliverRun, int, int]:
        from headrace.wire.fyrehose import kernels

        # The kernel stops before SEQUENCE 0; as the first it is refused here.
        read_sequence(view, begin, offset)
        buffer = np.frombuffer(view, np.uint8)
        count, size, stop = kernels.measure_delivers(buffer, begin, end, MAX_RUN_BYTES, most)
        seqs = np.empty(count, np.int64)
        run = empty_run(count, size)
        kernels.gather_delivers(buffer, begin, seqs, run.data, run.offsets)
        return DeliverRun(seqs, run), stop, count
