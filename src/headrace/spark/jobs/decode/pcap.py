"""Read pcap files: packets, addresses, and the bytes of connections, TCP in order.

The format is the classic one (``tcpdump -w``), of either byte order, with times in µs or ns, from Ethernet, Linux's
"any" device, loopback and raw IP; IPv4 and IPv6, TCP and UDP. Repeated segments are cut, early ones wait. Where bytes
are missing for good, that is reported and the stream ends; likewise where the file itself ends within a packet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from ipaddress import ip_address
from typing import BinaryIO, Final, NamedTuple

from headrace.errors import MalformedError

MAX_PACKET: Final = 1 << 20
MAX_WAITING: Final = 4 << 20
"""Most bytes of early segments in one direction; beyond, what they wait for counts as lost."""
MAX_WAITING_IN_ALL: Final = 64 << 20
"""The same for all directions together; beyond, the direction of the next early segment waits no longer."""
MAX_STREAMS: Final = 65_536

_KEPT_BYTES: Final = 200
"""Memory of a kept segment beside its bytes."""

_ORDERS: Final = {
    b"\xa1\xb2\xc3\xd4": (">", 1),
    b"\xd4\xc3\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1000),
}
HEADER_BYTES: Final = 24
"""Bytes at the beginning of a file."""
RECORD_BYTES: Final = 16
"""Bytes before each packet."""
_NULL, _ETHERNET, _RAW, _RAW_BSD, _SLL, _SLL2 = 0, 1, 101, 12, 113, 276
_CONTENT: Final = {_NULL: 4, _ETHERNET: 14, _RAW: 0, _RAW_BSD: 0, _SLL: 16, _SLL2: 20}
"""Where IP begins in a packet of each link type."""
_TCP, _UDP = 6, 17
_FIN, _SYN, _RST = 0x01, 0x02, 0x04


class Flow(NamedTuple):
    """One direction between two addresses."""

    source: str
    source_port: int
    target: str
    target_port: int
    udp: bool

    def reversed(self) -> Flow:
        """The other direction."""
        return Flow(self.target, self.target_port, self.source, self.source_port, self.udp)


class Piece(NamedTuple):
    """Bytes of a flow in order; ``lost`` bytes are missing before them. ``ended``: no more will come."""

    flow: Flow
    time: int
    data: bytes
    lost: int = 0
    ended: bool = False


class Segment(NamedTuple):
    """The content of one packet: a TCP segment, or a datagram."""

    flow: Flow
    time: int
    seq: int
    flags: int
    data: bytes


class PcapHeader(NamedTuple):
    """What the beginning of a file says of its packets: byte order, fractions in a µs, link type."""

    order: str
    divisor: int
    kind: int

    def lengths(self, head: bytes) -> tuple[int, int, int]:
        """Return a packet's fraction of a second, and its lengths in the file and on the wire, from its head."""
        return struct.unpack_from(f"{self.order}III", head, 4)


class CutOffError(MalformedError):
    """A file that ends inside a packet, as one does whose writer was killed."""


def pieces(file: BinaryIO) -> Iterator[Piece]:
    """Yield the bytes of each flow of a pcap file; an error in the file is raised after all flows have ended."""
    return assembled(_segments(file))


def assembled(segments: Iterator[Segment]) -> Iterator[Piece]:
    """Yield the bytes of each flow of some packets, which are in the order of the capture."""
    directions: dict[Flow, _Direction] = {}
    room = _Room()
    wrong: MalformedError | None = None
    while True:
        try:
            segment = next(segments, None)
        except MalformedError as error:
            segment, wrong = None, error
        if segment is None:
            break
        if segment.flow.udp:
            yield Piece(segment.flow, segment.time, segment.data)
            continue
        direction = directions.get(segment.flow)
        # A repeated SYN does not begin a new connection.
        begins = bool(segment.flags & _SYN) and (direction is None or direction.syn != segment.seq)
        if begins or (direction is None and segment.data):
            # A new connection, or one whose beginning is not in the capture.
            if direction is not None:
                yield from directions.pop(segment.flow).finish()
            if len(directions) >= MAX_STREAMS:
                oldest = next(iter(directions))
                yield from directions.pop(oldest).finish()
            direction = directions[segment.flow] = _Direction(segment, room)
        if direction is not None:
            yield from direction.take(segment)
    for direction in directions.values():
        yield from direction.finish()
    if wrong is not None:
        raise wrong


class _Room:
    """Bytes that all directions together keep."""

    taken = 0


class _Direction:
    """One direction of a TCP connection, its bytes put into order."""

    def __init__(self, first: Segment, room: _Room) -> None:
        self._flow = first.flow
        self.syn = first.seq if first.flags & _SYN else None
        self._next = (first.seq + bool(first.flags & _SYN)) & 0xFFFFFFFF
        self._at = 0
        """Position of the next byte; unlike TCP's numbers it does not wrap."""
        self._early: dict[int, bytes] = {}
        self._order: list[int] = []
        """Positions of the early segments, a heap."""
        self._waiting = 0
        self._room = room
        self._time = first.time

    def take(self, segment: Segment) -> Iterator[Piece]:
        self._time = segment.time
        seq = (segment.seq + bool(segment.flags & _SYN)) & 0xFFFFFFFF
        if segment.data:
            ahead = _distance(seq, self._next)
            if ahead > 0:
                self._keep(self._at + ahead, segment.data)
                if self._waiting > MAX_WAITING or self._room.taken > MAX_WAITING_IN_ALL:
                    yield from self._skip()
            else:
                yield from self._go_on(segment.data[-ahead:])

    def finish(self) -> Iterator[Piece]:
        while self._early:
            yield from self._skip()
        yield Piece(self._flow, self._time, b"", ended=True)

    def _keep(self, at: int, data: bytes) -> None:
        before = self._early.get(at)
        if before is None:
            heappush(self._order, at)
            self._count(_KEPT_BYTES + len(data))
        elif len(before) < len(data):
            self._count(len(data) - len(before))
        else:
            return
        self._early[at] = data

    def _count(self, size: int) -> None:
        self._waiting += size
        self._room.taken += size

    def _go_on(self, data: bytes) -> Iterator[Piece]:
        """Yield the next bytes, and the early segments that follow them."""
        while True:
            if data:
                self._at += len(data)
                self._next = (self._next + len(data)) & 0xFFFFFFFF
                yield Piece(self._flow, self._time, data)
            if not self._order or self._order[0] > self._at:
                return
            at = heappop(self._order)
            early = self._early.pop(at)
            self._count(-_KEPT_BYTES - len(early))
            data = early[self._at - at :]

    def _skip(self) -> Iterator[Piece]:
        """Give up on what is missing."""
        lost = self._order[0] - self._at
        self._at += lost
        self._next = (self._next + lost) & 0xFFFFFFFF
        yield Piece(self._flow, self._time, b"", lost=lost)
        yield from self._go_on(b"")


def read_header(file: BinaryIO) -> PcapHeader:
    """Read the beginning of a pcap file."""
    head = file.read(HEADER_BYTES)
    order, divisor = _ORDERS.get(head[:4], ("", 0))
    if len(head) < HEADER_BYTES or not order:
        raise MalformedError(
            "capture", "first bytes", head[:4], "a pcap file (pcapng is another: editcap -F pcap)"
        )
    return PcapHeader(order, divisor, struct.unpack_from(f"{order}I", head, 20)[0] & 0xFFFF)


def is_known_link(header: PcapHeader) -> bool:
    """Whether packets of this link type can be read."""
    return header.kind in _CONTENT


def packets(
    file: BinaryIO, header: PcapHeader, at: int, end: int | None = None
) -> Iterator[tuple[int, Segment]]:
    """Yield the packets that begin at ``at``, where the file is, or later and before ``end``, and where each begins."""
    record = struct.Struct(f"{header.order}IIII")
    while (end is None or at < end) and (head := file.read(RECORD_BYTES)):
        if len(head) < RECORD_BYTES:
            raise CutOffError("capture", "packet", head, "the file ends in its head")
        seconds, fraction, length, _ = record.unpack(head)
        if length > MAX_PACKET:
            raise MalformedError("capture", "packet length", length, MAX_PACKET)
        data = file.read(length)
        if len(data) < length:
            raise CutOffError(
                "capture", "packet", data[:32], f"the file ends {length - len(data)} bytes early"
            )
        segment = _segment(header.kind, seconds * 1_000_000 + fraction // header.divisor, data)
        if segment is not None:
            yield at, segment
        at += RECORD_BYTES + length


def _segments(file: BinaryIO) -> Iterator[Segment]:
    header = read_header(file)
    for _, segment in packets(file, header, HEADER_BYTES):
        yield segment


def _segment(kind: int, time: int, packet: bytes) -> Segment | None:
    """Parse a packet's TCP or UDP content; ``None`` if it has none, or is cut short."""
    try:
        return _parse(kind, time, packet)
    except (struct.error, IndexError, ValueError):
        return None


def _parse(kind: int, time: int, packet: bytes) -> Segment | None:
    at = _CONTENT.get(kind)
    if at is None:
        raise MalformedError("capture", "link type", kind, "Ethernet, Linux cooked, loopback or raw IP")
    if kind == _ETHERNET:
        while packet[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
            at += 4  # a VLAN's tag
    version = packet[at] >> 4
    if version == 4:
        total, fragment = (
            struct.unpack_from(">H", packet, at + 2)[0],
            struct.unpack_from(">H", packet, at + 6)[0],
        )
        if fragment & 0x3FFF:
            return None  # fragments of IP are not put together
        protocol, addresses = packet[at + 9], (packet[at + 12 : at + 16], packet[at + 16 : at + 20])
        # Packets that the network card will split may be captured with a length of 0.
        end, at = at + total if total else len(packet), at + (packet[at] & 15) * 4
    elif version == 6:
        protocol, addresses = packet[at + 6], (packet[at + 8 : at + 24], packet[at + 24 : at + 40])
        (total,) = struct.unpack_from(">H", packet, at + 4)
        end, at = at + 40 + total if total else len(packet), at + 40
    else:
        return None
    source, target = map(_address, addresses)
    if protocol == _UDP:
        ports = struct.unpack_from(">HH", packet, at)
        return Segment(Flow(source, ports[0], target, ports[1], True), time, 0, 0, packet[at + 8 : end])
    if protocol != _TCP:
        return None
    source_port, target_port, seq = struct.unpack_from(">HHI", packet, at)
    data = packet[at + (packet[at + 12] >> 4) * 4 : end]
    return Segment(Flow(source, source_port, target, target_port, False), time, seq, packet[at + 13], data)


@lru_cache(4096)
def _address(packed: bytes) -> str:
    """Return an address as text; a capture has few, many times."""
    return str(ip_address(packed))


def _distance(seq: int, other: int) -> int:
    """Return how far ``seq`` is ahead of ``other``, in 32 bits that wrap."""
    ahead = (seq - other) & 0xFFFFFFFF
    return ahead - (1 << 32) if ahead >= 1 << 31 else ahead
