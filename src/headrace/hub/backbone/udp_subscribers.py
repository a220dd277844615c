"""The backbone's UDP subscribers: how long each subscription lasts, and what remains to be sent.

A subscriber is a destination, a lease and a cursor over the log. It keeps no messages, only numbers: its position and
the ranges that it requested again. So a slow subscriber costs the same as a quick one. If it falls too far behind, it
is skipped ahead instead of having messages queued for it.

:meth:`UdpSubscriber.due` *grants* one range at a time, as much as the destination's pace allows; the sender answers
with :meth:`UdpSubscriber.sent`, which takes back what was not sent. The sequence and repairs take turns, so that
neither starves the other.

Every lease has the same length, so the order of renewal is the order of expiry: the table looks only at its oldest
entries, whatever its size.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.hub.backbone.pacing import Pace, TokenBucket
from headrace.hub.cursor import Cursor, EncodedChunk
from headrace.hub.sequence_ranges import Ranges

LEASE = 5.0
"""Seconds that a KEEPALIVE subscribes for by default."""

_DELIVER_HEADER = 9
"""TYPE, LENGTH and SEQUENCE: the smallest DELIVER."""

Endpoint: TypeAlias = tuple[str, int]
"""An IPv4 address in dotted form, and a port."""


@dataclass(frozen=True, slots=True)
class SendRange:
    """Read messages ``first`` to ``last`` from the log and DELIVER them to ``to``, in order.

    Stop before the datagram that would pass ``datagrams`` or ``size`` bytes, but send at least one, and
    answer with ``Backbone.sent``. Several DELIVERs may share a datagram only if ``coalesce`` says so.
    """

    to: Endpoint
    first: int
    last: int
    live: bool
    coalesce: bool
    datagrams: int
    size: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Messages ``first`` to ``last`` will not be sent to ``to`` unless it asks (again)."""

    to: Endpoint
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class UdpBounds:
    """Limits on what the subscribers may cost.

    ``lease`` is the seconds that a KEEPALIVE subscribes for; clients send one every second. ``request`` is the messages
    sent for one REQUEST: 19 bytes must not call forth a whole log. ``ranges`` is the separate ranges a subscriber may
    be waiting for, ``lag`` the messages it may be behind the head before it is skipped ahead. ``forwards`` paces the
    FORWARDs made for one subscriber: they cost another one's upload.
    """

    subscribers: int = 4_096
    per_address: int = 1_024
    lease: float = LEASE
    request: int = 1_024
    ranges: int = 64
    lag: int = 65_536
    pace: Pace = field(default_factory=Pace)
    forwards: Pace = field(default_factory=lambda: Pace(datagrams_per_second=50, burst_datagrams=50))


class Lease:
    """Whether a destination's KEEPALIVEs keep coming."""

    __slots__ = ("_seconds", "expires")

    def __init__(self, seconds: float = LEASE) -> None:
        self._seconds = seconds
        self.expires = float("-inf")

    def renew(self, now: float) -> bool:
        """Take a KEEPALIVE; return ``True`` if it subscribes again rather than renews."""
        anew = not self.holds(now)
        self.expires = now + self._seconds
        return anew

    def holds(self, now: float) -> bool:
        """Return whether the last KEEPALIVE came within the lease's time."""
        return now < self.expires


class UdpSubscriber:
    """One UDP destination."""

    __slots__ = (
        "_bounds",
        "_bucket",
        "_granted",
        "_live_next",
        "_repairs",
        "coalesce",
        "cookie",
        "cursor",
        "endpoint",
        "forwards",
        "lease",
        "proven",
    )

    def __init__(self, endpoint: Endpoint, cursor: int, bounds: UdpBounds, now: float) -> None:
        self.endpoint = endpoint
        self.cursor: Cursor[EncodedChunk] = Cursor(cursor)
        self.coalesce = False
        self.proven = False
        """Whether this destination has proven that it receives packets; until then it gets no message."""
        self.cookie = b""
        """The bytes that it has to send back to answer a CHALLENGE."""
        self.lease = Lease(bounds.lease)
        self.forwards = TokenBucket(bounds.forwards, now)
        self._bounds = bounds
        self._bucket = TokenBucket(bounds.pace, now)
        self._repairs = Ranges(bounds.ranges)
        self._granted: SendRange | None = None
        self._live_next = True

    def ask(self, first: int, last: int) -> bool:
        """Queue the part of a range that was sent before; return ``False`` if too many ranges are queued."""
        last = min(last, self.cursor.next - 1)
        return first > last or self._repairs.add(first, last)

    def due(self, first: int, head: int, now: float) -> list[SendRange | Skipped]:
        """Return what to send now, given that the log holds ``first`` to ``head``."""
        work: list[SendRange | Skipped] = []
        if not self.proven:
            return work
        if self.cursor.behind(head) > self._bounds.lag:
            # Keep half of the allowed lag, so that a subscriber at the bound is not skipped message by message.
            work.append(self._skip(max(first, head + 1 - self._bounds.lag // 2)))
        elif self.cursor.next < first:
            work.append(self._skip(first))
        if self._repairs:
            work += [Skipped(self.endpoint, *gone) for gone in self._repairs.cut_below(first)]
        behind = self.cursor.behind(head)
        if self._granted is not None or not (behind > 0 or self._repairs):
            return work
        datagrams, size = self._bucket.allowance(now)
        if not datagrams:
            return work
        most = max(1, size // _DELIVER_HEADER) if self.coalesce else datagrams
        live = behind > 0 and (self._live_next or not self._repairs)
        if live:
            begin, end = self.cursor.take(head, most)
        else:
            begin, end = self._repairs.take(most)
        self._live_next = not live
        self._granted = SendRange(self.endpoint, begin, end, live, self.coalesce, datagrams, size)
        work.append(self._granted)
        return work

    def sent(self, grant: SendRange, last: int, datagrams: int, size: int) -> None:
        """End a grant: messages up to ``last`` went out, the rest is due again."""
        if grant is not self._granted:
            return
        self._granted = None
        self._bucket.spend(datagrams, size)
        if last >= grant.last:
            return
        unsent = max(last + 1, grant.first)
        if not grant.live:
            self._repairs.add(unsent, grant.last)
        elif self.cursor.next == grant.last + 1:
            self.cursor.next = unsent

    def ready(self, head: int) -> float | None:
        """Return when the pace allows to send; ``None`` if there is nothing to send, or a grant is out."""
        if self._granted is not None or not self.proven or not (self.cursor.behind(head) or self._repairs):
            return None
        return self._bucket.ready()

    def _skip(self, onward: int) -> Skipped:
        return Skipped(self.endpoint, *self.cursor.skip_to(onward))


class UdpSubscribers:
    """The subscribers: bounded, ordered by renewal, with one turn each at answering FORWARD."""

    def __init__(self, bounds: UdpBounds) -> None:
        self._bounds = bounds
        self._table: OrderedDict[Endpoint, UdpSubscriber] = OrderedDict()
        self._turns: OrderedDict[Endpoint, UdpSubscriber] = OrderedDict()
        self._per_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[UdpSubscriber]:
        return iter(self._table.values())

    def get(self, endpoint: Endpoint) -> UdpSubscriber | None:
        """Return the subscriber at ``endpoint``; call :meth:`expire` first."""
        return self._table.get(endpoint)

    def subscribe(self, endpoint: Endpoint, cursor: int, now: float) -> UdpSubscriber | None:
        """Renew the subscriber at ``endpoint``, or add it at ``cursor``; return ``None`` if there is no room."""
        subscriber = self._table.get(endpoint)
        if subscriber is None:
            address, _ = endpoint
            full = len(self._table) >= self._bounds.subscribers
            if full or self._per_address[address] >= self._bounds.per_address:
                return None
            subscriber = UdpSubscriber(endpoint, cursor, self._bounds, now)
            self._table[endpoint] = self._turns[endpoint] = subscriber
            self._per_address[address] += 1
        subscriber.lease.renew(now)
        self._table.move_to_end(endpoint)
        return subscriber

    def expire(self, now: float) -> list[UdpSubscriber]:
        """Remove and return the subscribers whose lease is over."""
        lapsed: list[UdpSubscriber] = []
        while self._table:
            endpoint, oldest = next(iter(self._table.items()))
            if oldest.lease.holds(now):
                break
            del self._table[endpoint], self._turns[endpoint]
            address, _ = endpoint
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]
            lapsed.append(oldest)
        return lapsed

    def next_expiry(self) -> float | None:
        """Return when the oldest lease is over."""
        oldest = next(iter(self._table.values()), None)
        return None if oldest is None else oldest.lease.expires

    def take_turn(self, requester: Endpoint) -> UdpSubscriber | None:
        """Return the subscriber whose turn it is to answer a FORWARD: any but the requester, longest unasked first."""
        for endpoint, subscriber in self._turns.items():
            if endpoint != requester and subscriber.proven:
                self._turns.move_to_end(endpoint)
                return subscriber
        return None
