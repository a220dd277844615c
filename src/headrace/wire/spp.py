"""SPP, the service providing protocol: named objects on a server, their snapshots and their changes.

Every packet is ``msgtype INTEGER, length INTEGER, data``: the length counts the data alone, an INTEGER is 32
bits unsigned in network order, a STRING is an INTEGER and that many bytes. The same msgtype means different
things in the two directions, so each has its decoder: :class:`ServerDecoder` reads what clients send,
:class:`ClientDecoder` what servers send.

Strategy: a packet is read by a generator that yields how many bytes it needs before it can continue. Its locals
(type, length, service) survive between chunks, and each length is checked as soon as its four bytes are here,
before waiting for anything after it.

Invariants:

- A msgtype that is known in its direction is strict: data that is not just its fields is refused, and so is a
  length over the limit.
- Msgtypes from 32 up "should be ignored by the protocol". Other applications use the low ones, so ours, AUTH and
  PUBLISH, carry a mark in the number itself: "HR" in the upper half.
- Every other packet is ignored: dropped as it arrives, whatever it holds and however long it is. A session counts
  the :class:`Ignored`.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias, TypeVar

from headrace.errors import LimitError, MalformedError
from headrace.protocols import PORTS
from headrace.wire.receive_buffer import Decoder

PORT = PORTS["spp"]

MAX_PACKET = 8 * 1024 * 1024
"""The longest data of one packet we read: a service's whole object has to fit."""

MAX_SERVICE = 1024
"""The longest service id in bytes. Every Info repeats it."""

MAX_AUTH = 4096
"""The longest AUTH text, and the longest challenge. It comes before we know the client, so it is kept short."""

_HEADER = struct.Struct("!II")
_INTEGER = struct.Struct("!I")
_ACCEPTED, _REFUSED = 0, 1


class ServerType(IntEnum):
    """The msgtypes a server sends; all others are ignored."""

    OFFER = 1
    REMOVED = 2
    INFO = 16
    AUTHENTICATED = 0x48520001


class ClientType(IntEnum):
    """The msgtypes a client sends; all others are ignored."""

    SUBSCRIBE = 1
    UNSUBSCRIBE = 2
    AUTH = 0x48520001
    PUBLISH = 0x48520002


@dataclass(frozen=True, slots=True)
class Offer:
    """Server: a service that can be subscribed from now on.

    >>> Offer("fleet/42").service
    'fleet/42'
    """

    service: str


@dataclass(frozen=True, slots=True)
class Removed:
    """Server: a service nobody can subscribe any more; its subscribers keep receiving."""

    service: str


@dataclass(frozen=True, slots=True)
class Info:
    """Server: a service's whole object (the first after a Subscribe) or what changed in it."""

    service: str
    message: bytes


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Server: the answer to AUTH; ``challenge`` is empty unless the server asks for another proof."""

    accepted: bool
    challenge: bytes = b""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Client: asks for a service's object, and then its changes."""

    service: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Client: wants no more of a service."""

    service: str


@dataclass(frozen=True, slots=True)
class Auth:
    """Client: its identity, as the JSON text that the attribute SDK's ``auth`` also takes; not parsed here."""

    json: bytes


@dataclass(frozen=True, slots=True)
class Publish:
    """Client: changes a service, or creates it."""

    service: str
    change: bytes


@dataclass(frozen=True, slots=True)
class Ignored:
    """Either side: a packet that is not for us. Its data has been dropped."""

    msgtype: int
    length: int


ServerFrame: TypeAlias = Offer | Removed | Info | Authenticated
ClientFrame: TypeAlias = Subscribe | Unsubscribe | Auth | Publish

F = TypeVar("F", ServerFrame, ClientFrame)


def serialize(frame: ServerFrame | ClientFrame) -> bytes:
    """Serialize one frame as its packet.

    >>> serialize(Subscribe("load")).hex(" ", 4)
    '00000001 00000008 00000004 6c6f6164'
    """
    return b"".join(_parts(frame))


def serialize_infos(changes: Iterable[tuple[str, bytes]]) -> bytes:
    """Serialize many Info packets into one buffer, from pairs of service id and message, in order.

    A repeated id is encoded once.

    >>> serialize_infos([("a", b"1"), ("b", b"2")]) == serialize(Info("a", b"1")) + serialize(Info("b", b"2"))
    True
    """
    services: dict[str, bytes] = {}
    parts: list[bytes] = []
    for service, message in changes:
        string = services.get(service)
        if string is None:
            string = services[service] = _service_string(service)
        parts += _packet(ServerType.INFO, string, *_string("message", message))
    return b"".join(parts)


class _PacketDecoder(Decoder[F | Ignored]):
    """Reads packets and STRINGs, and skips packets that are not for us."""

    known: ClassVar[frozenset[int]]
    """The msgtypes of this direction that are read; the others are ignored."""

    def __init__(self, *, max_packet: int = MAX_PACKET, max_service: int = MAX_SERVICE) -> None:
        super().__init__()
        self.max_packet = max_packet
        self.max_service = max_service
        self._start_packet()

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete packet, including those already dropped or taken."""
        return self.inbox.position - self._begin + len(self.inbox)

    @property
    def frame_at(self) -> int:
        """Bytes of the stream before the packet under way; one that is ignored may take its time while it comes."""
        return self.inbox.position if self._skipping else self._begin

    def _start_packet(self) -> None:
        self._begin = self.inbox.position
        self._skipping = False
        self._reader: Generator[int, None, F | Ignored] = self._read_packet()
        self._needed: int = next(self._reader)

    def _next(self) -> F | Ignored | None:
        while len(self.inbox) >= self._needed:
            try:
                self._needed = next(self._reader)
            except StopIteration as finished:
                frame: F | Ignored = finished.value
                self._start_packet()
                return frame
        return None

    def _read_packet(self) -> Generator[int, None, F | Ignored]:
        inbox = self.inbox
        yield _HEADER.size
        msgtype, length = _HEADER.unpack(inbox.peek(_HEADER.size))
        if msgtype in self.known:
            if length > self.max_packet:
                raise LimitError("spp", "length", length, self.max_packet, offset=inbox.position)
            inbox.skip(_HEADER.size)
            return (yield from self._read_data(msgtype, inbox.position + length))
        # "32- : Other messages, should be ignored by the protocol", and so are test values and reserved types.
        inbox.skip(_HEADER.size)
        end = inbox.position + length
        self._skipping = True
        while inbox.position < end:
            yield 1
            inbox.skip(min(len(inbox), end - inbox.position))
        return Ignored(msgtype, length)

    @abstractmethod
    def _read_data(self, msgtype: int, end: int) -> Generator[int, None, F]:
        """Read data of a known msgtype that ends at position ``end`` as a frame of this direction."""

    def _read_service(self, end: int, *, last: bool) -> Generator[int, None, str]:
        begin = self.inbox.position
        string = yield from self._read_string("service", end, self.max_service, last=last)
        try:
            return string.decode()
        except UnicodeDecodeError:
            raise MalformedError("spp", "service", string, "must be UTF-8", offset=begin) from None

    def _read_string(self, field: str, end: int, limit: int, *, last: bool) -> Generator[int, None, bytes]:
        """Read a STRING that ends within its packet, or exactly with it if it is the ``last`` field."""
        inbox = self.inbox
        begin = inbox.position
        if end - begin < _INTEGER.size:
            raise MalformedError("spp", field, end - begin, "a STRING takes at least 4 bytes", offset=begin)
        yield _INTEGER.size
        (size,) = _INTEGER.unpack(inbox.take(_INTEGER.size))
        room = end - inbox.position
        if size > room:
            raise MalformedError("spp", field, size, f"only {room} bytes of the packet remain", offset=begin)
        if size > limit:
            raise LimitError("spp", field, size, limit, offset=begin)
        if last and size < room:
            raise MalformedError("spp", field, size, f"{room - size} bytes trail after it", offset=begin)
        yield size
        return inbox.take(size)


class ServerDecoder(_PacketDecoder[ClientFrame]):
    """Reads what clients send."""

    known = frozenset(ClientType)

    def _read_data(self, msgtype: int, end: int) -> Generator[int, None, ClientFrame]:
        match msgtype:
            case ClientType.SUBSCRIBE:
                return Subscribe((yield from self._read_service(end, last=True)))
            case ClientType.UNSUBSCRIBE:
                return Unsubscribe((yield from self._read_service(end, last=True)))
            case ClientType.AUTH:
                return Auth((yield from self._read_string("json", end, MAX_AUTH, last=True)))
            case ClientType.PUBLISH:
                service = yield from self._read_service(end, last=False)
                change = yield from self._read_string("change", end, self.max_packet, last=True)
                return Publish(service, change)
            case _:
                raise AssertionError(msgtype)


class ClientDecoder(_PacketDecoder[ServerFrame]):
    """Reads what servers send."""

    known = frozenset(ServerType)

    def _read_data(self, msgtype: int, end: int) -> Generator[int, None, ServerFrame]:
        match msgtype:
            case ServerType.OFFER:
                return Offer((yield from self._read_service(end, last=True)))
            case ServerType.REMOVED:
                return Removed((yield from self._read_service(end, last=True)))
            case ServerType.INFO:
                service = yield from self._read_service(end, last=False)
                message = yield from self._read_string("message", end, self.max_packet, last=True)
                return Info(service, message)
            case ServerType.AUTHENTICATED:
                accepted = yield from self._read_answer(end)
                return Authenticated(
                    accepted, (yield from self._read_string("challenge", end, MAX_AUTH, last=True))
                )
            case _:
                raise AssertionError(msgtype)

    def _read_answer(self, end: int) -> Generator[int, None, bool]:
        begin = self.inbox.position
        if end - begin < _INTEGER.size:
            raise MalformedError("spp", "answer", end - begin, "an INTEGER takes 4 bytes", offset=begin)
        yield _INTEGER.size
        (answer,) = _INTEGER.unpack(self.inbox.take(_INTEGER.size))
        if answer not in (_ACCEPTED, _REFUSED):
            raise MalformedError("spp", "answer", answer, "must be 0 or 1", offset=begin)
        return bool(answer == _ACCEPTED)


def _parts(frame: ServerFrame | ClientFrame) -> tuple[bytes, ...]:
    match frame:
        case Offer(service):
            return _packet(ServerType.OFFER, _service_string(service))
        case Removed(service):
            return _packet(ServerType.REMOVED, _service_string(service))
        case Info(service, message):
            return _packet(ServerType.INFO, _service_string(service), *_string("message", message))
        case Authenticated(accepted, challenge):
            answer = _INTEGER.pack(_ACCEPTED if accepted else _REFUSED)
            return _packet(ServerType.AUTHENTICATED, answer, *_string("challenge", challenge, MAX_AUTH))
        case Subscribe(service):
            return _packet(ClientType.SUBSCRIBE, _service_string(service))
        case Unsubscribe(service):
            return _packet(ClientType.UNSUBSCRIBE, _service_string(service))
        case Auth(json):
            return _packet(ClientType.AUTH, *_string("json", json, MAX_AUTH))
        case Publish(service, change):
            return _packet(ClientType.PUBLISH, _service_string(service), *_string("change", change))


def _packet(msgtype: int, *data: bytes) -> tuple[bytes, ...]:
    length = sum(map(len, data))
    if length > MAX_PACKET:
        raise LimitError("spp", "length", length, MAX_PACKET)
    return (_HEADER.pack(msgtype, length), *data)


def _string(field: str, data: bytes, limit: int = MAX_PACKET) -> tuple[bytes, bytes]:
    if len(data) > limit:
        raise LimitError("spp", field, len(data), limit)
    return _INTEGER.pack(len(data)), data


def _service_string(service: str) -> bytes:
    try:
        encoded = service.encode()
    except UnicodeEncodeError:
        raise MalformedError("spp", "service", ascii(service), "must be UTF-8") from None
    return b"".join(_string("service", encoded, MAX_SERVICE))
