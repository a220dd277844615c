"""fyrehose, the backbone's protocol: streams, datagrams and whole batches of its packets.

Single packets are in :mod:`headrace.wire.fyrehose_packet`, and may be imported from here. PUSH and DELIVER
flow in bulk: where several stand side by side, a compiled kernel (:mod:`headrace.wire.kernels`) takes or writes
them in one go as a run. A packet on its own goes the plain way, which is as quick for one and needs no kernels
loaded; so nothing waits for company.

Invariants:

- TYPE and LENGTH are judged as soon as they are there, the other fields once the packet is whole. So a stream
  gives the same frames and the same error however it is cut; only how they group into runs differs.
- A run's payloads are copied once, out of the receive buffer into memory of their own.
- At most one packet is kept unfinished, :data:`MAX_PACKET` bytes.
- A datagram is taken whole or refused whole.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import LimitError, MalformedError, WireError
from headrace.message import MAX_RUN_BYTES, MAX_SEQUENCE, Bytes, Offsets, Run
from headrace.wire.fyrehose_packet import (
    AT_CLIENT,
    AT_HUB,
    DELIMITED,
    DELIVER_HEADER,
    LOW,
    MAX_DATA,
    MAX_DATAGRAM,
    MAX_DELIVER_DATAGRAM,
    MAX_PACKET,
    MAX_PUSH_DATAGRAM,
    PUSH_HEADER,
    Deliver,
    Forward,
    Frame,
    Keepalive,
    KeepaliveAck,
    Push,
    Request,
    Type,
    check,
    packet_size,
    parse,
    read,
    read_example,
    read_sequence,
    serialize,
)
from headrace.wire.inbox import Buffer, Decoder

__all__ = [
    "MAX_DATA",
    "MAX_DATAGRAM",
    "MAX_DELIVER_DATAGRAM",
    "MAX_PACKET",
    "MAX_PUSH_DATAGRAM",
    "Arrival",
    "BadDatagram",
    "ClientDecoder",
    "ClientFrame",
    "Deliver",
    "DeliverRun",
    "Forward",
    "Frame",
    "Keepalive",
    "KeepaliveAck",
    "LoneDatagram",
    "Push",
    "PushDatagrams",
    "PushRun",
    "Request",
    "Scanned",
    "ServerDecoder",
    "ServerFrame",
    "Type",
    "deliver_packets",
    "deliver_run",
    "parse",
    "parse_client_datagram",
    "parse_datagram",
    "parse_datagrams",
    "push_run",
    "serialize",
]

Edges = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PushRun:
    """PUSHes that stood side by side."""

    run: Run


@dataclass(frozen=True, slots=True, eq=False)
class DeliverRun:
    """DELIVERs that stood side by side: message ``seqs[i]`` is payload ``i``."""

    seqs: npt.NDArray[np.int64]
    run: Run

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeliverRun):
            return NotImplemented
        return np.array_equal(self.seqs, other.seqs) and self.run == other.run

    __hash__ = None  # type: ignore[assignment]


ServerFrame = PushRun | Request | Keepalive
"""What a client's stream brings to the hub."""

ClientFrame = DeliverRun | KeepaliveAck
"""What the hub's stream brings to a client."""


@dataclass(frozen=True, slots=True)
class PushDatagrams:
    """Datagrams of nothing but PUSHes: number ``first + i`` brought the next ``counts[i]`` payloads."""

    first: int
    counts: Offsets
    run: Run


@dataclass(frozen=True, slots=True)
class LoneDatagram:
    """Datagram number ``index`` was this one packet."""

    index: int
    frame: Request | Keepalive


@dataclass(frozen=True, slots=True)
class BadDatagram:
    """Datagram number ``index`` is refused whole."""

    index: int
    error: WireError


Arrival = PushDatagrams | LoneDatagram | BadDatagram

F = TypeVar("F")


class Scanned(NamedTuple, Generic[F]):
    """What a scan found: frames, how many bytes they took, and the error that ends the stream, if any."""

    frames: list[F]
    consumed: int
    error: WireError | None


def push_run(run: Run, *, max_data: int = MAX_DATA) -> bytes:
    """Write a PUSH per payload, back to back; a payload over ``max_data`` bytes refuses the batch."""
    check("max_data", max_data, 0, MAX_DATA)
    if len(run) == 1:
        payload = _lone_payload(run)
        check("LENGTH", len(payload), 0, max_data)
        return serialize(Push(payload))
    if not len(run):
        return b""
    from headrace.wire import kernels

    packets = np.empty(PUSH_HEADER.size * len(run) + max(run.size, 0), np.uint8)
    written, index = kernels.write_pushes(run.data, run.offsets, max_data, packets)
    if written < 0:
        begin, end = run.offsets[index : index + 2].tolist()
        if begin >= 0 and begin + max_data < end <= len(run.data):
            raise LimitError("fyrehose", "LENGTH", end - begin, max_data)
        raise _bad_offsets(run, index)
    return packets[:written].tobytes()


def deliver_run(run: Run, first_seq: int, *, max_data: int = MAX_DATA) -> tuple[bytes | memoryview, int]:
    """Write a DELIVER per payload, back to back, numbered from ``first_seq``.

    Returns the packets and how many of them are hollow: a payload over ``max_data`` bytes goes out with
    zero-length DATA, so that the sequence stays whole. With ``max_data=0`` all go out so.
    """
    if len(run) != 1:
        packets, _, hollow = _write_delivers(run, first_seq, max_data, _NO_EDGES)
        return packets, hollow
    check("max_data", max_data, 0, MAX_DATA)
    check("SEQUENCE", first_seq, 1, MAX_SEQUENCE)
    payload, hollow = _lone_payload(run), 0
    if len(payload) > max_data:
        payload, hollow = b"", 1
    header = DELIVER_HEADER.pack(Type.DELIVER, len(payload), first_seq >> 32, first_seq & LOW)
    return header + payload, hollow


def deliver_packets(
    run: Run, first_seq: int, *, max_data: int = MAX_DELIVER_DATAGRAM
) -> tuple[bytes | memoryview, Edges, int]:
    """Write what :func:`deliver_run` writes, to be cut into datagrams.

    Returns the packets, their edges and how many are hollow: packet ``i`` is
    ``packets[edges[i]:edges[i + 1]]``.
    """
    return _write_delivers(run, first_seq, max_data, np.zeros(len(run) + 1, np.int64))


def parse_datagram(data: bytes) -> list[Push | Request | Keepalive]:
    """Read a datagram that came to the hub: one packet, or several PUSHes back to back."""
    example = read_example(data)
    if example is not None:
        return [example]
    return cast("list[Push | Request | Keepalive]", _read_datagram(data, AT_HUB))


def parse_client_datagram(data: bytes) -> list[Deliver | Forward | KeepaliveAck]:
    """Read a datagram that came to a client: one packet, or several DELIVERs back to back."""
    return cast("list[Deliver | Forward | KeepaliveAck]", _read_datagram(data, AT_CLIENT))


def parse_datagrams(datagrams: Sequence[bytes]) -> list[Arrival]:
    """Read many datagrams that came to the hub, in order; one that is refused disturbs no other.

    Each is read as :func:`parse_datagram` reads it; the PUSHes of datagrams side by side come as one run.
    """
    if len(datagrams) == 1:
        return [_arrival(0, datagrams[0])]
    from headrace.wire import kernels

    buffer = np.frombuffer(b"".join(datagrams), np.uint8)
    edges = np.zeros(len(datagrams) + 1, np.int64)
    np.cumsum([len(datagram) for datagram in datagrams], out=edges[1:])
    counts = np.empty(len(datagrams), np.int32)
    arrivals: list[Arrival] = []
    at = 0
    while at < len(datagrams):
        count, size, stop = kernels.measure_datagrams(buffer, edges, at, MAX_RUN_BYTES, counts)
        if stop == at:
            arrivals.append(_arrival(at, datagrams[at]))
            at += 1
        else:
            run = _empty_run(count, size)
            kernels.gather_pushes(buffer, int(edges[at]), run.data, run.offsets)
            arrivals.append(PushDatagrams(at, counts[at:stop], run))
            at = stop
    return arrivals


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

        Bytes that are not consumed begin a packet: call again with them and what follows. With ``most``, no more
        frames than that are read, and what is not consumed may have others: a run is one frame however long it
        is, but each small packet costs a step. Nothing returned refers to the buffer. An error comes with the
        frames before it, and again from each later call. A connection is read either this way or by :meth:`feed`.
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
                # A long packet in small pieces is not looked at again with each of them.
                return
            whole = memoryview(inbox.peek(len(inbox)))
            frames, consumed, _ = self._scan(whole, 0, len(whole))
            inbox.skip(consumed)
        self._ready.extend(frames)

    def _scan(self, view: memoryview, begin: int, end: int, most: int | None = None) -> Scanned[F]:
        frames: list[F] = []
        at = begin
        origin = self.inbox.position - begin
        try:
            while at < end and self._broken is None and len(frames) != most:
                size = packet_size(view, at, end, self._allowed, origin)
                after = at + size
                if after > end:
                    self._wanted = size
                    break
                if view[at] != self._bulk:
                    frames.append(cast("F", read(bytes(view[at:after]), origin + at)))
                    at = after
                elif after == end or view[after] != self._bulk:
                    frames.append(self._one(view, at, after, origin + at))
                    at = after
                else:
                    run, at = self._many(view, at, end, origin + at)
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
    def _many(self, view: memoryview, begin: int, end: int, offset: int, /) -> tuple[F, int]:
        """Read the bulk packets from ``begin``, where a whole one is, and return where they end."""


class ServerDecoder(_StreamDecoder[ServerFrame]):
    """What a client sends to the hub over TCP: PUSH (in runs), REQUEST, KEEPALIVE.

    >>> [frame] = ServerDecoder().feed(b"\\x02\\x00\\x02hi\\x02\\x00\\x00")
    >>> list(frame.run)
    [b'hi', b'']
    """

    # On TCP 0x02 is always PUSH: only a datagram's end tells the document's example of a KEEPALIVE apart.
    _bulk = Type.PUSH
    _allowed = AT_HUB

    def scan(
        self, buffer: Buffer | Bytes, begin: int, end: int, most: int | None = None
    ) -> Scanned[ServerFrame]:
        """Read frames in place; a read that brought one whole PUSH, as most do at low load, takes a short way."""
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

    def _many(self, view: memoryview, begin: int, end: int, _offset: int, /) -> tuple[PushRun, int]:
        from headrace.wire import kernels

        buffer = np.frombuffer(view, np.uint8)
        count, size, stop = kernels.measure_pushes(buffer, begin, end, MAX_RUN_BYTES)
        run = _empty_run(count, size)
        kernels.gather_pushes(buffer, begin, run.data, run.offsets)
        return PushRun(run), stop


class ClientDecoder(_StreamDecoder[ClientFrame]):
    """What the hub sends to a client over TCP: DELIVER (in runs) and KEEPALIVE-ACK."""

    # FORWARD names a UDP address to answer to, and goes by UDP only.
    _bulk = Type.DELIVER
    _allowed = AT_CLIENT - {Type.FORWARD}

    def _one(self, view: memoryview, begin: int, end: int, offset: int, /) -> DeliverRun:
        seqs = np.array((read_sequence(view, begin, offset),), np.int64)
        return DeliverRun(seqs, Run.one(bytes(view[begin + DELIVER_HEADER.size : end])))

    def _many(self, view: memoryview, begin: int, end: int, offset: int, /) -> tuple[DeliverRun, int]:
        from headrace.wire import kernels

        # The kernel stops before SEQUENCE 0; as the first it is refused here.
        read_sequence(view, begin, offset)
        buffer = np.frombuffer(view, np.uint8)
        count, size, stop = kernels.measure_delivers(buffer, begin, end, MAX_RUN_BYTES)
        seqs = np.empty(count, np.int64)
        run = _empty_run(count, size)
        kernels.gather_delivers(buffer, begin, seqs, run.data, run.offsets)
        return DeliverRun(seqs, run), stop


_NO_EDGES = np.empty(0, np.int64)


def _read_datagram(data: bytes, allowed: frozenset[int]) -> list[Frame]:
    if len(data) > MAX_DATAGRAM:
        raise LimitError("fyrehose", "datagram size", len(data), MAX_DATAGRAM)
    frames: list[Frame] = []
    at = 0
    while at < len(data) or not frames:
        size = packet_size(data, at, len(data), allowed)
        rest = len(data) - at
        if size > rest:
            raise MalformedError(
                "fyrehose", "packet size", size, f"at most the datagram's {rest} bytes", offset=at
            )
        if data[at] not in DELIMITED and size != len(data):
            raise MalformedError(
                "fyrehose", "datagram size", len(data), f"a {Type(data[at]).name} stands alone", offset=at
            )
        frames.append(read(data[at : at + size], at))
        at += size
    return frames


def _arrival(index: int, datagram: bytes) -> Arrival:
    try:
        frames = parse_datagram(datagram)
    except WireError as error:
        return BadDatagram(index, error)
    match frames:
        case [Request() | Keepalive() as frame]:
            return LoneDatagram(index, frame)
        case [Push(data)]:
            run = Run.one(data)
        case _:
            run = Run.of(frame.data for frame in frames if isinstance(frame, Push))
    return PushDatagrams(index, np.array((len(run),), np.int32), run)


def _write_delivers(
    run: Run, first_seq: int, max_data: int, edges: Edges
) -> tuple[bytes | memoryview, Edges, int]:
    check("max_data", max_data, 0, MAX_DATA)
    if not len(run):
        return b"", edges, 0
    check("SEQUENCE", first_seq, 1, MAX_SEQUENCE - len(run) + 1)
    from headrace.wire import kernels

    packets = np.empty(DELIVER_HEADER.size * len(run) + max(run.size, 0), np.uint8)
    written, rest = kernels.write_delivers(run.data, run.offsets, first_seq, max_data, packets, edges)
    if written < 0:
        raise _bad_offsets(run, rest)
    # Many connections send the same memory, so none may write to it.
    return packets[:written].data.toreadonly(), edges, rest


def _empty_run(count: int, size: int) -> Run:
    return Run(np.empty(size, np.uint8), np.empty(count + 1, np.int32))


def _lone_payload(run: Run) -> bytes:
    if run.lone is not None:
        return run.lone
    begin, end = run.offsets.tolist()
    payload = run.data[begin:end].tobytes()
    if begin < 0 or len(payload) != end - begin:
        raise _bad_offsets(run, 0)
    return payload


def _bad_offsets(run: Run, index: int) -> WireError:
    begin, end = run.offsets[index : index + 2].tolist()
    limit = f"ascending, and within {len(run.data)} bytes"
    return MalformedError("fyrehose", f"offsets of payload {index}", (begin, end), limit)
