"""The backbone over UDP: datagrams in and out of one socket, as few system calls as the platform allows.

:class:`~headrace.hub.backbone.rules.Backbone` decides what to send to whom; this driver reads datagrams, does the
effects and keeps the timer. Messages are encoded once for all subscribers; those no longer cached are read from the log
in a thread. Linux takes and gives many datagrams of one size in one call (``UDP_SEGMENT``, ``UDP_GRO``); where it does
not, they go one by one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.client.udp_offload import (
    ETHERNET,
    MAX_SEGMENTS,
    UDP_SEGMENT,
    enable_segments,
    enlarge,
    segment_size,
)
from headrace.errors import StorageError
from headrace.hub.access.principal import Action, Principal
from headrace.hub.access.readable import readable_run
from headrace.hub.backbone.rules import (
    Acknowledge,
    Backbone,
    BackboneEffect,
    Lapsed,
    Reason,
    Refused,
    SendChallenge,
    SendForward,
    Subscribed,
    Unserved,
)
from headrace.hub.backbone.udp_subscribers import Endpoint, SendRange, Skipped
from headrace.hub.cursor import EncodedCache
from headrace.message import Batch
from headrace.net.fyrehose.tcp import LISTED
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import OWN
from headrace.wire.fyrehose.stream import (
    MAX_DATAGRAM,
    BadDatagram,
    Keepalive,
    LoneDatagram,
    Proof,
    PushDatagrams,
    Request,
    cost,
    deliver_packets,
    parse_datagrams,
    serialize,
)

_NO_SEGMENTS: Final = frozenset(
    {errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT}
)
"""Errors of a route that does not take several datagrams in one call, or not of that size."""

_RECEIVE_BUFFER: Final = 8 << 20
"""Bytes the socket may hold during a busy turn: a burst of some 40,000 small datagrams."""

_READS_PER_TURN: Final = 128
_STEPS_PER_TURN: Final = 256
"""Reads from the socket, and steps taken for them, before others get a turn. A KEEPALIVE is one step, a run of PUSHes
as many as its :func:`cost`; one read may bring 64 datagrams."""

_BYTES_PER_TURN: Final = 256 << 10
"""Bytes read from the socket before others get a turn; twenty thousand PUSHes fit into one datagram."""

_REFUSAL: Final = 4
"""Steps that a refusal is worth: it makes an error and is counted."""

_CACHE_BYTES: Final = 8 << 20
"""Bytes of the newest messages kept encoded, for subscribers that pacing holds back a little."""


@dataclass(frozen=True, slots=True)
class Packets:
    """Encoded DELIVERs of messages ``first`` to ``last``; packet ``i`` is ``data[edges[i]:edges[i + 1]]``."""

    first: int
    last: int
    data: memoryview
    edges: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        """Bytes of memory that they keep."""
        return len(self.data)


@dataclass(slots=True)
class Sending:
    """A grant that is being sent: the calls still to make, and what has gone out."""

    grant: SendRange
    datagrams: deque[tuple[memoryview, int, int]]
    """Bytes of one call, the size of each datagram in them, and the last message they carry."""
    last: int
    sent_datagrams: int = 0
    sent_bytes: int = 0


class FyrehoseUdp:
    """The UDP half of the fyrehose door."""

    def __init__(self, context: DoorContext, backbone: Backbone, sock: socket.socket) -> None:
        self._hub = context.hub
        self._access = context.access
        self._accounts = context.accounts
        self._backbone = backbone
        self._sock = sock
        self._readers = context.readers
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._cache = EncodedCache(self._encode, max_bytes=_CACHE_BYTES)
        self._blocked: deque[Sending] = deque()
        self._segments = enable_segments(sock)
        enlarge(sock, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        enlarge(sock, socket.SO_SNDBUF, _RECEIVE_BUFFER)
        self._buffer = bytearray(1 << 16)
        self._loop.add_reader(sock, self._readable)
        self._closed = False

    def __len__(self) -> int:
        return len(self._backbone)

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Send newly committed batches to the subscribers whose pace allows it."""
        if self._closed or not batches:
            return
        if not len(self._backbone):
            self._cache.clear()
            return
        self._cache.encode(batches)
        self._do(self._backbone.due(self._loop.time()))
        self._reschedule()

    def close(self) -> None:
        """Stop receiving and sending."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            if self._timer is not None:
                self._timer.cancel()
            self._sock.close()

    def _readable(self) -> None:
        # Datagrams side by side from one source make one batch.
        source: Endpoint | None = None
        datagrams: list[bytes] = []
        steps = brought = 0
        for _ in range(_READS_PER_TURN):
            try:
                size, ancillary, _, address = self._sock.recvmsg_into([self._buffer], 64)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # An ICMP answer to something we sent: it concerns one destination, not the door.
                self._count_error(error)
                continue
            came_from = (address[0], address[1])
            if source is not None and (came_from != source or len(datagrams) >= _STEPS_PER_TURN):
                steps += self._received(datagrams, source)
                datagrams = []
            source = came_from
            datagrams += _cut(self._buffer, size, ancillary)
            brought += size
            if steps >= _STEPS_PER_TURN or brought >= _BYTES_PER_TURN:
                break
        if source is not None:
            self._received(datagrams, source)
        self._reschedule()

    def _received(self, datagrams: list[bytes], source: Endpoint) -> int:
        """Act on datagrams; return the number of steps."""
        peer = f"{source[0]}:{source[1]}"
        principal = self._principal_of(source[0])
        if not principal.known:
            detail = "auth.required is on, and neither a principal nor fyrehose.allow has this address"
            for _ in datagrams:
                self._hub.counters.refuse("fyrehose", Reason.NOT_ALLOWED, peer, detail)
            self._access.turned_away("fyrehose", peer, principal.name, "unknown")
            return len(datagrams)
        now = self._loop.time()
        account = self._accounts.of(principal, source[0])
        arrivals = parse_datagrams(datagrams)
        steps = 0
        for arrival in arrivals:
            steps += _REFUSAL if isinstance(arrival, BadDatagram) else cost(arrival)
            if not (principal.may_do_everything or self._may(principal, arrival, peer)):
                continue
            match arrival:
                case PushDatagrams(_, counts, run):
                    if len(run) > len(counts):
                        self._backbone.coalesced(source)
                    if self._hub.congested:
                        # UDP has no backpressure; rule 5 allows losing a PUSH, and it is counted.
                        self._hub.counters.add("dropped", len(run), door="fyrehose", reason="congested")
                    elif account.wait(now):
                        account.refused += 1
                        self._hub.counters.add("dropped", len(run), door="fyrehose", reason="rate")
                    else:
                        account.receive(run.size, len(run), now)
                        self._hub.submit(Batch(run, origin="fyrehose", publisher=peer))
                case LoneDatagram(_, Request() as frame):
                    self._hub.counters.add("requests", door="fyrehose", transport="udp")
                    self._do(self._backbone.request(frame, source, now))
                case LoneDatagram(_, Keepalive() as frame):
                    self._do(self._backbone.keepalive(frame, source, now))
                case LoneDatagram(_, Proof() as frame):
                    self._do(self._backbone.proof(frame, source, now))
                case BadDatagram(_, error):
                    self._hub.counters.refuse("fyrehose", error.reason, peer, error)
        return steps

    def _principal_of(self, address: str) -> Principal:
        """Identify the peer at an address: a principal, or one of ``fyrehose.allow``."""
        principal = self._access.principals.of_peer(address)
        return LISTED if not principal.known and self._backbone.admits(address) else principal

    def _may(self, principal: Principal, arrival: object, peer: str) -> bool:
        """Whether a peer may do what its datagrams ask for; UDP has no answer for a refusal."""
        match arrival:
            case PushDatagrams():
                return self._access.may(principal, Action.PUBLISH, "fyrehose", "", peer)
            case LoneDatagram():
                return principal.may_something(Action.READ) or self._access.may(
                    principal, Action.READ, "fyrehose", "", peer
                )
        return True

    def _do(self, effects: Iterable[BackboneEffect]) -> None:
        counters = self._hub.counters
        for effect in effects:
            match effect:
                case SendRange():
                    self._send_range(effect)
                case Acknowledge(to, frame):
                    self._send_datagram(serialize(frame), to)
                case SendChallenge(to, frame):
                    counters.add("challenges", door="fyrehose")
                    self._send_datagram(serialize(frame), to)
                case SendForward(_, frame) if not self._principal_of(frame.address).reads_everything:
                    # Another subscriber would send it what it may not read.
                    asked = f"asked by {frame.address}:{frame.port}"
                    counters.report(
                        "unavailable", frame.first, frame.last, asked, at_will=True, door="fyrehose"
                    )
                case SendForward(to, frame):
                    counters.add("forwards", door="fyrehose")
                    self._send_datagram(serialize(frame), to)
                case Skipped(to, first, last):
                    behind = f"{to[0]}:{to[1]} is too far behind"
                    counters.report("skipped", first, last, behind, at_will=True, door="fyrehose")
                case Unserved(to, first, last):
                    peer = f"{to[0]}:{to[1]}"
                    counters.report(
                        "unavailable", first, last, f"asked by {peer}", at_will=True, door="fyrehose"
                    )
                case Subscribed():
                    counters.add("subscribed", door="fyrehose", transport="udp")
                case Lapsed():
                    counters.add("lapsed", door="fyrehose", transport="udp")
                case Refused(reason, source):
                    counters.refuse(
                        "fyrehose", reason.value, f"{source[0]}:{source[1]}", "a rule of the backbone"
                    )

    def _send_range(self, grant: SendRange) -> None:
        reader = self._principal_of(grant.to[0])
        packets = self._cache.find(grant.first) if reader.reads_everything else None
        if packets is not None:
            self._send_packets(grant, packets)
            return
        share = self._readers.at(self._hub.log, grant.first)
        reading = self._loop.run_in_executor(share, self._read, grant.first, grant.last, reader)
        reading.add_done_callback(lambda done: self._was_read(grant, done))

    def _read(self, first: int, last: int, reader: Principal) -> Packets:
        """Read some messages from the log; runs in a reader thread."""
        return self._encode(self._hub.log.read(first, last, 1 << 18), reader)

    def _was_read(self, grant: SendRange, done: asyncio.Future[Packets]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if self._closed:
            return
        if isinstance(error, StorageError):
            self._hub.counters.report("undeliverable", grant.first, grant.last, str(error), door="fyrehose")
            self._backbone.sent(grant, grant.last, 0, 0)
        elif error is not None:
            raise error
        else:
            self._send_packets(grant, done.result())
        self._reschedule()

    def _send_packets(self, grant: SendRange, packets: Packets) -> None:
        begin = grant.first - packets.first
        end = min(grant.last, packets.last) - packets.first + 1
        local = grant.to[0].startswith("127.")
        most = (MAX_DATAGRAM if local else ETHERNET) if grant.coalesce else 0
        calls = deque(_calls(packets, begin, end, grant, most, segments=self._segments))
        sending = Sending(grant, calls, grant.first - 1)
        if self._blocked:
            self._blocked.append(sending)
        elif not self._continue(sending):
            self._blocked.append(sending)
            self._loop.add_writer(self._sock, self._writable)

    def _continue(self, sending: Sending) -> bool:
        """Send until all of a grant has gone or the socket is full; return whether all has gone."""
        grant, calls = sending.grant, sending.datagrams
        while calls:
            data, size, last = calls[0]
            if len(data) > size and not self._segments:
                calls.popleft()
                calls.extendleft(reversed(list(_singly(data, size, last))))
                continue
            try:
                self._send(data, size, grant.to)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                if len(data) > size and error.errno in _NO_SEGMENTS:
                    # This route or size does not take segments: from now on, one by one.
                    self._segments = False
                    self._hub.counters.add("segmentation_off", error=_code(error))
                    continue
                self._count_error(error)
            calls.popleft()
            sending.last = last
            sending.sent_datagrams += -(-len(data) // size) if size else 1
            sending.sent_bytes += len(data)
        count = sending.last - grant.first + 1
        if count > 0:
            self._hub.counters.add("delivered", count, door="fyrehose", transport="udp")
            if not grant.live:
                self._hub.counters.add("repaired", count, door="fyrehose")
        self._backbone.sent(grant, sending.last, sending.sent_datagrams, sending.sent_bytes)
        return True

    def _send(self, data: memoryview, size: int, to: Endpoint) -> None:
        if len(data) > size:
            self._sock.sendmsg([data], [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))], 0, to)
        else:
            self._sock.sendto(data, to)

    def _send_datagram(self, data: bytes, to: Endpoint) -> None:
        # ACKs and FORWARDs are small and repeated by their protocol: what a full socket does not take is lost.
        try:
            self._sock.sendto(data, to)
        except OSError as error:
            self._count_error(error)

    def _count_error(self, error: OSError) -> None:
        self._hub.counters.add("socket_errors", door="fyrehose", error=_code(error))

    def _writable(self) -> None:
        while self._blocked and self._continue(self._blocked[0]):
            self._blocked.popleft()
        if not self._blocked:
            self._loop.remove_writer(self._sock)
        self._reschedule()

    def _tick(self) -> None:
        self._timer = None
        self._do(self._backbone.due(self._loop.time()))
        self._reschedule()

    def _reschedule(self) -> None:
        when = self._backbone.next_timer()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None and not self._closed:
            # A blocked socket wakes us itself; a millisecond is as fine as pacing needs.
            soonest = self._loop.time() + 0.001
            self._timer = self._loop.call_at(max(when, soonest), self._tick)

    def _encode(self, batches: Sequence[Batch], reader: Principal = OWN) -> Packets:
        """Encode batches that follow one another as packets side by side."""
        parts, edges, size = [], [np.zeros(1, np.int64)], 0
        for batch in batches:
            run = batch.run if reader.reads_everything else readable_run(batch, reader)
            data, own, hollow = deliver_packets(run, batch.first)
            if hollow:
                self._hub.counters.add("hollow", hollow, door="fyrehose", transport="udp")
            parts.append(data)
            edges.append(own[1:] + size)
            size += len(data)
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        return Packets(batches[0].first, batches[-1].last, memoryview(whole), np.concatenate(edges))


def _calls(
    packets: Packets, begin: int, end: int, grant: SendRange, most: int, *, segments: bool
) -> Iterator[tuple[memoryview, int, int]]:
    """Cut packets into system calls, within what a grant allows: bytes, size of each datagram, last message."""
    edges = packets.edges
    datagrams, budget, at = grant.datagrams, grant.size, begin
    while at < end and datagrams > 0 and (budget > 0 or at == begin):
        start = int(edges[at])
        size = int(edges[at + 1]) - start
        if most:
            stop = max(at + 1, int(np.searchsorted(edges, start + most, side="right")) - 1)
            stop = min(stop, end)
            size, count = int(edges[stop]) - start, 1
        elif segments:
            most_here = min(MAX_SEGMENTS, datagrams, max(1, MAX_DATAGRAM // max(size, 1)), end - at)
            alike = np.flatnonzero(np.diff(edges[at : at + most_here + 1]) != size)
            count = int(alike[0]) if len(alike) else most_here
            stop = at + count
        else:
            stop, count = at + 1, 1
        data = packets.data[start : int(edges[stop])]
        yield data, size, packets.first + stop - 1
        datagrams -= count
        budget -= len(data)
        at = stop


def _code(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "?")


def _singly(data: memoryview, size: int, last: int) -> Iterator[tuple[memoryview, int, int]]:
    """Split one call into a call per datagram."""
    count = -(-len(data) // size)
    for index in range(count):
        yield data[index * size : (index + 1) * size], size, last - count + 1 + index


def _cut(buffer: bytearray, size: int, ancillary: Sequence[tuple[int, int, bytes]]) -> list[bytes]:
    """Split what one read brought into datagrams: one, or as many as the kernel joined."""
    step = segment_size(size, ancillary) or 1
    return [bytes(buffer[at : min(at + step, size)]) for at in range(0, size, step)] or [b""]
