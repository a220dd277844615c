"""A UDP socket toward the backbone.

The socket is not connected: other clients send what they store straight to it. A datagram is known to be the hub's
by its source.

KEEPALIVE and REQUEST state the address that the socket has toward the hub: a backbone that knows only the protocol has
nowhere else to send.

Datagrams are received side by side into one buffer and scanned together; only if they are not all that they should be
are they read one by one, so that a refused one disturbs no other.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from headrace.client.fyrehose.journal import SendDelivers
from headrace.client.fyrehose.subscription import HERE, Outgoing
from headrace.client.udp_offload import ETHERNET, enable_segments, enlarge, segment_size
from headrace.config import Address
from headrace.errors import WireError
from headrace.message import Run
from headrace.wire.fyrehose.stream import (
    MAX_DATAGRAM,
    MAX_PUSH_DATAGRAM,
    Challenge,
    ClientDecoder,
    ClientFrame,
    Deliver,
    DeliverRun,
    Forward,
    Keepalive,
    KeepaliveAck,
    Proof,
    deliver_packets,
    parse_client_datagram,
    push_run,
    serialize,
)

if TYPE_CHECKING:
    from headrace.client.fyrehose.connection import FyrehoseConnection

_SOCKET_BYTES: Final = 8 << 20
"""Bytes that the socket may hold while the consumer is busy: a burst of about 10,000 small datagrams."""

_LARGEST_READ: Final = 1 << 16
_BUFFER_BYTES: Final = 16 * _LARGEST_READ
_READS: Final = 256
"""Reads before other tasks get a turn."""

_PUSH_HEADER: Final = 3
_DELIVER_HEADER: Final = 9
_ACK_SIZE: Final = 7

_UNSERVED_ACKS: Final = 30
"""KEEPALIVEs, one a second, that the hub acknowledged without sending a message: long enough to be worth a word."""

Endpoint = tuple[str, int]

logger = logging.getLogger("headrace.client")


class FyrehoseUdp:
    """One socket; make it with :meth:`dial`."""

    max_data = MAX_PUSH_DATAGRAM
    ended: str | None = None

    def __init__(
        self, sock: socket.socket, hub: Endpoint, receiver: FyrehoseConnection, *, translated: bool = False
    ) -> None:
        self._sock = sock
        self._hub = hub
        self._translated = translated
        self._stated = HERE
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._largest = MAX_DATAGRAM if hub[0].startswith("127.") else ETHERNET
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8)
        self._view = self._buffer.data
        self._room: asyncio.Future[None] | None = None
        self._closed = False
        # On this machine nobody translates addresses.
        self._served = translated or hub[0].startswith("127.")
        """Whether the hub is known to reach us."""
        self._unserved = 0
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def dial(
        cls, address: Address, receiver: FyrehoseConnection, *, translated: bool = False
    ) -> FyrehoseUdp:
        """Open a socket toward a hub; ``OSError`` if there is no such host.

        ``translated``: the hub sees another address than this machine does, so let it use the datagrams' source.
        """
        # ADDR is four bytes: the backbone's datagrams are for IPv4.
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, family=socket.AF_INET, type=socket.SOCK_DGRAM
        )
        host, port = found[0][4][:2]
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.bind(("0.0.0.0", 0))
            enable_segments(sock)
            enlarge(sock, socket.SO_RCVBUF, _SOCKET_BYTES)
            enlarge(sock, socket.SO_SNDBUF, _SOCKET_BYTES)
            return cls(sock, (str(host), int(port)), receiver, translated=translated)
        except BaseException:
            sock.close()
            raise

    def send(self, work: Sequence[Outgoing]) -> None:
        """Send KEEPALIVEs and REQUESTs to the hub, and stored messages to clients that miss them."""
        for each in work:
            if isinstance(each, SendDelivers):
                packets, edges, _ = deliver_packets(each.run, each.first)
                whole = memoryview(packets)
                for begin, end in pairwise(edges.tolist()):
                    self._send(whole[begin:end], each.to)
            else:
                if isinstance(each, Keepalive) and not self._translated:
                    # Determined each time: a machine that moves to another network has another address there.
                    self._stated = self._own_address()
                address, port = self._stated
                self._send(serialize(replace(each, address=address, port=port)), self._hub)

    async def push(self, run: Run) -> None:
        """Send a PUSH per payload, several in a datagram where they fit."""
        packets = memoryview(push_run(run, max_data=MAX_PUSH_DATAGRAM))
        for begin, end in _joined(run, self._largest):
            while not self._closed:
                try:
                    self._sock.sendto(packets[begin:end], self._hub)
                except (BlockingIOError, InterruptedError):
                    await self._writable()
                    continue
                except OSError:
                    self._receiver.unsent(1)
                break

    def read(self, wanted: bool, /) -> None:
        """Do nothing: unread datagrams would be lost, and KEEPALIVE-ACKs and FORWARDs with them."""

    async def close(self, deadline: float) -> None:  # noqa: ARG002 - there is nothing to wait for
        """Close the socket; the system still sends what it has accepted."""
        self.abort()

    def abort(self) -> None:
        """Close the socket."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
            if self._room is not None and not self._room.done():
                self._room.set_result(None)

    def _own_address(self) -> Endpoint:
        """Return the local address of datagrams to the hub; the last known one while there is no route to it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                # Connecting a datagram socket sends nothing: the system only chooses the address.
                probe.connect(self._hub)
                return probe.getsockname()[0], self._sock.getsockname()[1]
            except OSError:
                return self._stated

    def _send(self, datagram: bytes | memoryview, to: Endpoint) -> None:
        if self._closed:
            return
        try:
            self._sock.sendto(datagram, to)
        except OSError:
            self._receiver.unsent(1)

    async def _writable(self) -> None:
        if self._room is None or self._room.done():
            self._room = room = self._loop.create_future()
            self._loop.add_writer(self._sock, self._has_room)
        else:
            room = self._room
        await asyncio.shield(room)

    def _has_room(self) -> None:
        self._loop.remove_writer(self._sock)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _readable(self) -> None:
        # Datagrams side by side from one source make one batch.
        source: Endpoint | None = None
        edges: list[int] = []
        at = 0
        for _ in range(_READS):
            if len(self._view) - at < _LARGEST_READ or self._closed:
                break
            try:
                size, ancillary, _, address = self._sock.recvmsg_into([self._view[at:]], 64)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                # An ICMP answer to something we sent.
                self._receiver.unsent(1)
                continue
            if (came_from := (address[0], address[1])) != source:
                if source is not None:
                    self._received(edges, source)
                source, edges = came_from, [at]
            step = segment_size(size, ancillary)
            if step < size:
                edges.extend(range(at + step, at + size, step))
            at += size
            edges.append(at)
        if source is not None:
            self._received(edges, source)

    def _received(self, edges: list[int], source: Endpoint) -> None:
        """Take the datagrams between ``edges``."""
        from_backbone = source == self._hub
        frames, consumed, error = ClientDecoder().scan(self._buffer, edges[0], edges[-1])
        if error is None and consumed == edges[-1] - edges[0] and _fit(frames, edges):
            for frame in frames:
                self._take(frame, from_backbone=from_backbone)
            return
        for begin, end in pairwise(edges):
            try:
                packets = parse_client_datagram(bytes(self._view[begin:end]))
            except WireError as refused:
                self._receiver.refused(refused)
                continue
            match packets:
                case [Forward() | KeepaliveAck() | Challenge() as packet]:
                    self._take(packet, from_backbone=from_backbone)
                case _:
                    self._take(_run_of(packets), from_backbone=from_backbone)

    def _take(self, frame: ClientFrame | Forward | Challenge, *, from_backbone: bool) -> None:
        if self._closed:
            return
        match frame:
            case DeliverRun():
                self._served |= from_backbone
                self._receiver.delivered(frame, from_backbone=from_backbone)
            case Forward():
                self._receiver.forward(frame, from_backbone=from_backbone)
            case KeepaliveAck() if from_backbone:
                self._receiver.acknowledged()
                self._doubt()
            case Challenge(cookie) if from_backbone:
                self._served = True
                self._send(serialize(Proof(cookie)), self._hub)

    def _doubt(self) -> None:
        """Warn once that the hub answers but sends nothing: behind an address translator nothing else would show it."""
        if self._served:
            return
        self._unserved += 1
        if self._unserved == _UNSERVED_ACKS:
            logger.warning(
                "%s:%d acknowledges this client at %s:%d and has sent it no message for %d s. If there are messages,"
                " the hub may see another address, as behind an address translator: connect with translated=True",
                *self._hub,
                *self._stated,
                _UNSERVED_ACKS,
            )


def _fit(frames: Sequence[ClientFrame], edges: Sequence[int]) -> bool:
    """Whether packets that were read as one stream respect the edges of their datagrams."""
    at = edges[0]
    ends: list[npt.NDArray[np.int64]] = []
    for frame in frames:
        if isinstance(frame, DeliverRun):
            ends.append(at + np.cumsum(frame.run.lengths + _DELIVER_HEADER, dtype=np.int64))
            at = int(ends[-1][-1])
        elif at in edges and at + _ACK_SIZE in edges:
            # A KEEPALIVE-ACK stands alone in its datagram.
            at += _ACK_SIZE
            ends.append(np.array([at]))
        else:
            return False
    bounds = np.concatenate(ends)
    index = np.searchsorted(bounds, edges[1:])
    # Each edge is a packet's end, and no two are the same: an empty datagram is not a packet.
    return bool((bounds[index] == edges[1:]).all() and (np.diff(index) > 0).all())


def _run_of(packets: Sequence[Deliver | Forward | KeepaliveAck | Challenge]) -> DeliverRun:
    delivers = [packet for packet in packets if isinstance(packet, Deliver)]
    seqs = np.array([deliver.seq for deliver in delivers], np.int64)
    return DeliverRun(seqs, Run.of(deliver.data for deliver in delivers))


def _joined(run: Run, largest: int) -> Iterator[tuple[int, int]]:
    """Yield where datagrams begin and end in a run's PUSHes: as many in each as fit, and at least one."""
    ends = run.offsets[1:].astype(np.int64) - int(run.offsets[0])
    ends += _PUSH_HEADER * np.arange(1, len(run) + 1)
    begin = index = 0
    while index < len(run):
        index = max(index + 1, int(np.searchsorted(ends, begin + largest, side="right")))
        end = int(ends[index - 1])
        yield begin, end
        begin = end
