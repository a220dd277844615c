"""One fyrehose packet: what it means, how its bytes are judged, read and written.

::

    DELIVER        01  LENGTH(2)  SEQUENCE(6)  DATA               hub to client
    PUSH           02  LENGTH(2)  DATA                            client to hub
    REQUEST        04  ADDR(4)  PORT(2)  FROM_SEQ(6)  TO_SEQ(6)   client to hub
    FORWARD        08  ADDR(4)  PORT(2)  FROM_SEQ(6)  TO_SEQ(6)   hub to client, UDP only
    KEEPALIVE      10  ADDR(4)  PORT(2)                           client to hub
    KEEPALIVE-ACK  20  ADDR(4)  PORT(2)                           hub to client
    CHALLENGE      40  COOKIE(8)                                  hub to client, UDP only
    PROOF          80  COOKIE(8)                                  client to hub, UDP only

Reading has two steps, which all readers of packets use: :func:`packet_size` judges how a packet begins (may
this TYPE come here, is LENGTH within the limit) and returns its length; :func:`read` makes a frame of a whole
packet. So a stream can be refused by its first bytes, and never waits for more than one packet's worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import AddressValueError, IPv4Address
from struct import Struct

from headrace.errors import LimitError, MalformedError, UnexpectedError, WireError
from headrace.message import MAX_SEQUENCE

MAX_DATA = 65_526
"""The most DATA a PUSH or DELIVER carries: a DELIVER of that size has 65,535 bytes."""

MAX_PACKET = 65_535
"""The longest packet; a receive buffer must have room for one."""

MAX_DATAGRAM = 65_507
"""The most a UDP datagram carries over IPv4."""

MAX_PUSH_DATAGRAM = 65_504
"""The most DATA of a PUSH in a datagram."""

MAX_DELIVER_DATAGRAM = 65_498
"""The most DATA of a DELIVER in a datagram."""


class Type(IntEnum):
    """A packet's first byte; each type has one bit."""

    DELIVER = 0x01
    PUSH = 0x02
    REQUEST = 0x04
    FORWARD = 0x08
    KEEPALIVE = 0x10
    KEEPALIVE_ACK = 0x20
    CHALLENGE = 0x40
    PROOF = 0x80


@dataclass(frozen=True, slots=True)
class Deliver:
    """Message number ``seq`` of the sequence."""

    seq: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Push:
    """A message for the hub to number and deliver to everyone."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """Deliver messages ``first`` to ``last``, both included, to ``address:port`` again."""

    address: str
    port: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Forward:
    """If you store any of messages ``first`` to ``last``, deliver them to ``address:port``."""

    address: str
    port: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The client that listens at ``address:port`` is there and wants messages."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class KeepaliveAck:
    """The hub's answer to a KEEPALIVE, with the same ``address`` and ``port``."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Challenge:
    """Prove that you receive at the address you state: send ``cookie`` back."""

    cookie: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to a CHALLENGE, with its ``cookie``."""

    cookie: bytes


Frame = Deliver | Push | Request | Forward | Keepalive | KeepaliveAck | Challenge | Proof

COOKIE_BYTES = 8

PUSH_HEADER = Struct("!BH")
DELIVER_HEADER = Struct("!BHHI")
"""TYPE, LENGTH, and SEQUENCE as its high 16 and low 32 bits."""

LOW = 0xFFFF_FFFF
"""The low 32 of a sequence number's 48 bits."""

ANYWHERE: frozenset[int] = frozenset(Type)
AT_HUB: frozenset[int] = frozenset({Type.PUSH, Type.REQUEST, Type.KEEPALIVE, Type.PROOF})
AT_CLIENT: frozenset[int] = frozenset({Type.DELIVER, Type.FORWARD, Type.KEEPALIVE_ACK, Type.CHALLENGE})
DATAGRAMS_ONLY: frozenset[int] = frozenset({Type.FORWARD, Type.CHALLENGE, Type.PROOF})
"""The types that are about UDP addresses, and have no meaning on a TCP connection."""
DELIMITED: frozenset[int] = frozenset({Type.DELIVER, Type.PUSH})
"""The types that have LENGTH and DATA. They flow in bulk, and may share a datagram with their like."""

_LENGTH = Struct("!xH")
_RANGE = Struct("!B4sHHIHI")
_ENDPOINT = Struct("!B4sH")
_COOKIE = Struct(f"!B{COOKIE_BYTES}s")

_FIXED: dict[int, int] = {
    Type.DELIVER: DELIVER_HEADER.size,
    Type.PUSH: PUSH_HEADER.size,
    Type.REQUEST: _RANGE.size,
    Type.FORWARD: _RANGE.size,
    Type.KEEPALIVE: _ENDPOINT.size,
    Type.KEEPALIVE_ACK: _ENDPOINT.size,
    Type.CHALLENGE: _COOKIE.size,
    Type.PROOF: _COOKIE.size,
}
"""Bytes of a packet besides DATA."""


def parse(packet: bytes) -> Frame:
    """Read exactly one packet of any type.

    >>> parse(b"\\x02\\x00\\x05hello")
    Push(data=b'hello')
    """
    size = packet_size(packet, 0, len(packet), ANYWHERE)
    if size != len(packet):
        raise MalformedError("fyrehose", "packet size", len(packet), f"exactly {size} bytes")
    return read(packet)


def serialize(frame: Frame) -> bytes:
    """Write one packet.

    >>> serialize(Deliver(7, b"hi")).hex(" ")
    '01 00 02 00 00 00 00 00 07 68 69'
    """
    match frame:
        case Deliver(seq, data):
            check("LENGTH", len(data), 0, MAX_DATA)
            check("SEQUENCE", seq, 1, MAX_SEQUENCE)
            return DELIVER_HEADER.pack(Type.DELIVER, len(data), seq >> 32, seq & LOW) + data
        case Push(data):
            check("LENGTH", len(data), 0, MAX_DATA)
            return PUSH_HEADER.pack(Type.PUSH, len(data)) + data
        case Request(address, port, first, last):
            return _write_range(Type.REQUEST, address, port, first, last)
        case Forward(address, port, first, last):
            return _write_range(Type.FORWARD, address, port, first, last)
        case Keepalive(address, port):
            return _write_endpoint(Type.KEEPALIVE, address, port)
        case KeepaliveAck(address, port):
            return _write_endpoint(Type.KEEPALIVE_ACK, address, port)
        case Challenge(cookie):
            return _write_cookie(Type.CHALLENGE, cookie)
        case Proof(cookie):
            return _write_cookie(Type.PROOF, cookie)


def packet_size(
    packets: bytes | memoryview, at: int, end: int, allowed: frozenset[int], origin: int = 0
) -> int:
    """Judge the packet at ``at`` by its TYPE and LENGTH, and return its size.

    While LENGTH is not here, return how many bytes would show it. ``origin`` is where the connection has
    its ``packets[0]``, for errors to say at which byte they arose.
    """
    if at == end:
        raise MalformedError("fyrehose", "TYPE", b"", "one byte", offset=origin + at)
    kind = packets[at]
    if kind not in allowed:
        raise _wrong_type(kind, allowed, origin + at)
    if kind not in DELIMITED:
        return _FIXED[kind]
    if end - at < _LENGTH.size:
        return _LENGTH.size
    # LENGTH counts DATA only.
    length: int = _LENGTH.unpack_from(packets, at)[0]
    if length > MAX_DATA:
        raise LimitError("fyrehose", "LENGTH", length, MAX_DATA, offset=origin + at)
    return _FIXED[kind] + length


def read(packet: bytes, offset: int = 0) -> Frame:
    """Read a whole packet whose beginning :func:`packet_size` has passed."""
    match packet[0]:
        case Type.DELIVER:
            return Deliver(read_sequence(packet, 0, offset), packet[DELIVER_HEADER.size :])
        case Type.PUSH:
            return Push(packet[PUSH_HEADER.size :])
        case Type.REQUEST:
            return Request(*_read_range(packet, offset))
        case Type.FORWARD:
            return Forward(*_read_range(packet, offset))
        case Type.KEEPALIVE:
            return Keepalive(*_read_endpoint(packet))
        case Type.KEEPALIVE_ACK:
            return KeepaliveAck(*_read_endpoint(packet))
        case Type.CHALLENGE:
            return Challenge(packet[1:])
        case _:
            return Proof(packet[1:])


def read_sequence(packets: bytes | memoryview, at: int, offset: int) -> int:
    """Read the number of the DELIVER at ``at``."""
    _, _, high, low = DELIVER_HEADER.unpack_from(packets, at)
    seq: int = high << 32 | low
    if not seq:
        # Sequence numbers start at 1, and REQUEST has no way to ask for 0.
        raise MalformedError("fyrehose", "SEQUENCE", 0, "at least 1", offset=offset)
    return seq


def read_example(datagram: bytes) -> Keepalive | None:
    """Read the KEEPALIVE of the document's own example, which begins with 0x02, if a datagram is one.

    As a PUSH its LENGTH would pass the datagram unless its second byte were 0, and no host is in 0/8.
    """
    if len(datagram) == _ENDPOINT.size and datagram[0] == Type.PUSH and datagram[1]:
        return Keepalive(*_read_endpoint(datagram))
    return None


def check(field: str, value: int, low: int, high: int) -> None:
    """Refuse a value that our caller wants to send and the protocol cannot carry."""
    if value < low:
        raise MalformedError("fyrehose", field, value, f"at least {low}")
    if value > high:
        raise LimitError("fyrehose", field, value, high)


def _read_range(packet: bytes, offset: int) -> tuple[str, int, int, int]:
    _, address, port, first_high, first_low, last_high, last_low = _RANGE.unpack(packet)
    # FROM_SEQ 0 means 1, the first number there is; TO_SEQ is included.
    first = (first_high << 32 | first_low) or 1
    last = last_high << 32 | last_low
    if first > last:
        raise MalformedError("fyrehose", "FROM_SEQ", first, f"at most TO_SEQ, {last}", offset=offset)
    return _dotted(address), port, first, last


def _read_endpoint(packet: bytes) -> tuple[str, int]:
    _, address, port = _ENDPOINT.unpack(packet)
    return _dotted(address), port


def _write_range(kind: Type, address: str, port: int, first: int, last: int) -> bytes:
    check("PORT", port, 0, 0xFFFF)
    check("TO_SEQ", last, 1, MAX_SEQUENCE)
    check("FROM_SEQ", first, 0, last)
    return _RANGE.pack(kind, _packed(address), port, first >> 32, first & LOW, last >> 32, last & LOW)


def _write_endpoint(kind: Type, address: str, port: int) -> bytes:
    check("PORT", port, 0, 0xFFFF)
    return _ENDPOINT.pack(kind, _packed(address), port)


def _write_cookie(kind: Type, cookie: bytes) -> bytes:
    check("COOKIE", len(cookie), COOKIE_BYTES, COOKIE_BYTES)
    return _COOKIE.pack(kind, cookie)


def _dotted(address: bytes) -> str:
    return "{}.{}.{}.{}".format(*address)


def _packed(address: str) -> bytes:
    try:
        return IPv4Address(address).packed
    except AddressValueError:
        raise MalformedError("fyrehose", "ADDR", address, "an IPv4 address like 127.0.0.1") from None


def _wrong_type(kind: int, allowed: frozenset[int], offset: int) -> WireError:
    names = ", ".join(f"0x{known:02x} {Type(known).name}" for known in sorted(allowed))
    if kind in ANYWHERE:
        return UnexpectedError("fyrehose", "TYPE", Type(kind).name, f"only {names}", offset=offset)
    return MalformedError("fyrehose", "TYPE", kind, f"one of {names}", offset=offset)
