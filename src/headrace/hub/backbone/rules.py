"""The backbone's rules: who is subscribed, what is sent to whom, what is refused.

The driver passes in each frame with its source, calls :meth:`Backbone.due` when the head has moved and when
:meth:`Backbone.next_timer` says so, and performs the effects that are returned. Effects name sequence ranges and never
contain messages: the driver reads the log once, and encodes once for all subscribers of a range. PUSH does not pass
through here, except for :meth:`Backbone.admits`.

These are the rules of UDP. A TCP connection is its own return path and has its own backpressure: its driver feeds it
from the log, and uses only what both share (:meth:`Backbone.admits`, :meth:`Backbone.stream_request`,
:class:`~headrace.hub.backbone.udp_subscribers.Lease`).

Invariants:

- Messages are sent only to addresses that asked for them themselves or that the settings list: neither KEEPALIVE nor
  REQUEST can aim the hub at a stranger.
- An address that has not proved that it receives gets less than three times the bytes it sent: a forged source cannot
  make the hub flood somebody. This machine's loopback and the addresses of ``fyrehose.allow`` need no proof.
- Only messages up to the head that the log has are ever granted.
- Memory is bounded by :class:`~headrace.hub.backbone.udp_subscribers.UdpBounds`, however slow subscribers are.
- A request that is not served becomes an effect that names its reason or its sequence range.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass
from enum import StrEnum

from headrace.hub.backbone.udp_subscribers import (
    Endpoint,
    SendRange,
    Skipped,
    UdpBounds,
    UdpSubscriber,
    UdpSubscribers,
)
from headrace.hub.cursor import LogBounds
from headrace.wire.fyrehose.stream import Challenge, Forward, Keepalive, KeepaliveAck, Proof, Request

_ANY_ADDRESS = "0.0.0.0"
_ANY_PORT = 0
"""In ADDR and PORT: the datagram's own source."""


class Reason(StrEnum):
    """The reason of a refusal, which is also the label of its counter."""

    NOT_ALLOWED = "not-allowed"
    """``auth.required`` is on, and neither a principal nor ``fyrehose.allow`` has the source's address."""
    FOREIGN_ADDRESS = "foreign-address"
    """ADDR is neither the source nor listed in ``fyrehose.allow``."""
    OWN_DOOR = "own-door"
    """ADDR:PORT is the hub itself."""
    TABLE_FULL = "table-full"
    """The limit on subscribers is reached, in all or at that address."""
    NOT_SUBSCRIBED = "not-subscribed"
    """A REQUEST for a destination that no KEEPALIVE keeps."""
    UNPROVEN = "unproven"
    """A REQUEST for a destination that has not answered its CHALLENGE, or a PROOF that answers none."""
    BACKWARDS = "backwards"
    """FROM is past TO."""
    TOO_MANY_RANGES = "too-many-ranges"
    """More separate ranges requested than are queued for one destination."""
    TOO_MANY_FORWARDS = "too-many-forwards"
    """More FORWARDs requested than other subscribers are burdened with."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Send a KEEPALIVE-ACK to ``to``."""

    to: Endpoint
    frame: KeepaliveAck


@dataclass(frozen=True, slots=True)
class SendChallenge:
    """Send a CHALLENGE to ``to``."""

    to: Endpoint
    frame: Challenge


@dataclass(frozen=True, slots=True)
class SendForward:
    """Send a FORWARD to ``to``."""

    to: Endpoint
    frame: Forward


@dataclass(frozen=True, slots=True)
class ServeRange:
    """Stream messages ``first`` to ``last`` to the TCP connection that asked."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    """``endpoint`` gets the live feed from message ``first`` on."""

    endpoint: Endpoint
    first: int


@dataclass(frozen=True, slots=True)
class Lapsed:
    """No KEEPALIVE renewed ``endpoint``; ``first`` would have been its next message."""

    endpoint: Endpoint
    first: int


@dataclass(frozen=True, slots=True)
class Unserved:
    """``to`` asked for messages ``first`` to ``last``, which the log no longer holds and nobody can forward."""

    to: Endpoint
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A packet from ``source`` was refused."""

    reason: Reason
    source: Endpoint


BackboneEffect = (
    Acknowledge
    | SendChallenge
    | SendRange
    | SendForward
    | ServeRange
    | Subscribed
    | Lapsed
    | Skipped
    | Unserved
    | Refused
)


@dataclass(frozen=True, slots=True)
class OwnDoor:
    """The hub's own addresses, which must not subscribe, or the hub would feed its sequence to itself."""

    addresses: Container[str]
    port: int

    def __contains__(self, endpoint: object) -> bool:
        match endpoint:
            case (str(address), self.port):
                return address in self.addresses
            case _:
                return False


@dataclass(frozen=True, slots=True)
class BackboneAccess:
    """The addresses that the backbone serves.

    ``allow`` is ``fyrehose.allow``, ``required`` is ``auth.required``, ``known`` has the addresses of principals,
    ``coalesce`` lists the addresses whose subscribers take several DELIVERs in a datagram without having shown it,
    ``trusted`` those that need not prove that they receive.
    """

    allow: Container[str] = frozenset()
    required: bool = False
    known: Container[str] = frozenset()
    coalesce: Container[str] = frozenset()
    trusted: Container[str] = frozenset()


class Backbone:
    """The rules, and the subscribers they apply to.

    ``make_cookie`` makes the eight bytes of a CHALLENGE, which nobody can guess.
    """

    def __init__(
        self,
        log: LogBounds,
        door: OwnDoor,
        access: BackboneAccess,
        bounds: UdpBounds,
        make_cookie: Callable[[], bytes],
    ) -> None:
        self._log = log
        self._door = door
        self._access = access
        self._bounds = bounds
        self._subscribers = UdpSubscribers(bounds)
        self._coalescing: OrderedDict[Endpoint, None] = OrderedDict()
        self._make_cookie = make_cookie
        self._challenged: dict[bytes, Endpoint] = {}
        """The destination of each cookie; there are as many as subscribers."""

    def __len__(self) -> int:
        return len(self._subscribers)

    def admits(self, address: str) -> bool:
        """Return whether ``address`` is served at all, by UDP or TCP; this also concerns PUSH."""
        access = self._access
        return not access.required or address in access.allow or address in access.known

    def coalesced(self, source: Endpoint) -> None:
        """Note that a datagram from ``source`` had several packets, so that answers to it may have several, too."""
        self._coalescing[source] = None
        self._coalescing.move_to_end(source)
        if len(self._coalescing) > self._bounds.subscribers:
            self._coalescing.popitem(last=False)
        if (subscriber := self._subscribers.get(source)) is not None:
            subscriber.coalesce = True

    def keepalive(self, frame: Keepalive, source: Endpoint, now: float) -> list[BackboneEffect]:
        """Acknowledge a KEEPALIVE, and subscribe its ADDR:PORT if that is allowed."""
        if not self.admits(source[0]):
            return [Refused(Reason.NOT_ALLOWED, source)]
        effects = self._expire(now)
        # "The backbone has to respond to every KEEPALIVE": to the source, whatever ADDR and PORT say.
        effects.append(Acknowledge(source, KeepaliveAck(frame.address, frame.port)))
        endpoint = self._resolve(frame, source)
        if endpoint is None:
            return [*effects, Refused(Reason.FOREIGN_ADDRESS, source)]
        if endpoint in self._door:
            return [*effects, Refused(Reason.OWN_DOOR, source)]
        known = self._subscribers.get(endpoint)
        cursor = self._log.head + 1
        subscriber = self._subscribers.subscribe(endpoint, cursor, now)
        if subscriber is None:
            return [*effects, Refused(Reason.TABLE_FULL, source)]
        if known is None:
            effects.append(Subscribed(endpoint, cursor))
            subscriber.proven = endpoint[0] in self._access.trusted
        if not subscriber.proven:
            # With the ACK that is 16 bytes for the KEEPALIVE's 7.
            effects.append(self._challenge(subscriber))
        subscriber.coalesce |= (
            source in self._coalescing or endpoint in self._coalescing or endpoint[0] in self._access.coalesce
        )
        return effects

    def request(self, frame: Request, source: Endpoint, now: float) -> list[BackboneEffect]:
        """Serve a REQUEST: from the log, or by FORWARD from another subscriber."""
        if not self.admits(source[0]):
            return [Refused(Reason.NOT_ALLOWED, source)]
        if frame.first > frame.last:
            return [Refused(Reason.BACKWARDS, source)]
        effects = self._expire(now)
        endpoint = self._resolve(frame, source)
        if endpoint is None:
            return [*effects, Refused(Reason.FOREIGN_ADDRESS, source)]
        subscriber = self._subscribers.get(endpoint)
        if subscriber is None:
            return [*effects, Refused(Reason.NOT_SUBSCRIBED, source)]
        if not subscriber.proven:
            return [*effects, Refused(Reason.UNPROVEN, source)]
        first, last = self._asked(frame)
        oldest = self._log.first
        if first <= last and first < oldest:
            effects.append(self._forward(subscriber, first, min(last, oldest - 1), source, now))
            first = oldest
        last = min(last, first + self._bounds.request - 1)
        if first > last:
            return effects
        if not subscriber.ask(first, last):
            return [*effects, Refused(Reason.TOO_MANY_RANGES, source)]
        return [*effects, *subscriber.due(oldest, self._log.head, now)]

    def proof(self, frame: Proof, source: Endpoint, now: float) -> list[BackboneEffect]:
        """Handle the answer to a CHALLENGE: from now on its destination is served, from where it subscribed."""
        effects = self._expire(now)
        endpoint = self._challenged.get(frame.cookie)
        subscriber = None if endpoint is None else self._subscribers.get(endpoint)
        if subscriber is None or subscriber.endpoint[0] != source[0]:
            return [*effects, Refused(Reason.UNPROVEN, source)]
        subscriber.proven = True
        return [*effects, *subscriber.due(self._log.first, self._log.head, now)]

    def stream_request(self, frame: Request, source: Endpoint) -> list[BackboneEffect]:
        """Answer a REQUEST that came over TCP: the whole range goes back over the connection.

        Messages older than the log are only counted: FORWARD would be answered by UDP.
        """
        if frame.first > frame.last:
            return [Refused(Reason.BACKWARDS, source)]
        first, last = self._asked(frame)
        oldest = self._log.first
        effects: list[BackboneEffect] = []
        if first <= last and first < oldest:
            effects.append(Unserved(source, first, min(last, oldest - 1)))
            first = oldest
        if first <= last:
            effects.append(ServeRange(first, last))
        return effects

    def due(self, now: float) -> list[BackboneEffect]:
        """Return what to do after the head has moved or the time of :meth:`next_timer` has come."""
        work = self._expire(now)
        if self._subscribers:
            first, head = self._log.first, self._log.head
            for subscriber in self._subscribers:
                work += subscriber.due(first, head, now)
        return work

    def sent(self, grant: SendRange, last: int, datagrams: int, size: int) -> None:
        """End a grant: its messages up to ``last`` went out. Until then its destination gets no other."""
        if (subscriber := self._subscribers.get(grant.to)) is not None:
            subscriber.sent(grant, last, datagrams, size)

    def next_timer(self) -> float | None:
        """Return when to call :meth:`due`; a time in the past means now, ``None`` never."""
        head = self._log.head
        times = [self._subscribers.next_expiry(), *(each.ready(head) for each in self._subscribers)]
        return min((time for time in times if time is not None), default=None)

    def _asked(self, frame: Request) -> tuple[int, int]:
        """Return a REQUEST's range: FROM 0 means 1, TO is cut to the head."""
        return max(frame.first, 1), min(frame.last, self._log.head)

    def _forward(
        self, requester: UdpSubscriber, first: int, last: int, source: Endpoint, now: float
    ) -> BackboneEffect:
        """Pass a REQUEST for messages that the log no longer holds to another live subscriber."""
        if requester.forwards.allowance(now) == (0, 0):
            return Refused(Reason.TOO_MANY_FORWARDS, source)
        forwarder = self._subscribers.take_turn(requester.endpoint)
        if forwarder is None:
            return Unserved(requester.endpoint, first, last)
        requester.forwards.spend(1, 1)
        return SendForward(forwarder.endpoint, Forward(*requester.endpoint, first, last))

    def _challenge(self, subscriber: UdpSubscriber) -> SendChallenge:
        if not subscriber.cookie:
            subscriber.cookie = self._make_cookie()
            self._challenged[subscriber.cookie] = subscriber.endpoint
        return SendChallenge(subscriber.endpoint, Challenge(subscriber.cookie))

    def _expire(self, now: float) -> list[BackboneEffect]:
        lapsed = self._subscribers.expire(now)
        for gone in lapsed:
            self._challenged.pop(gone.cookie, None)
        return [Lapsed(gone.endpoint, gone.cursor.next) for gone in lapsed]

    def _resolve(self, frame: Keepalive | Request, source: Endpoint) -> Endpoint | None:
        """Return where a client listens: 0.0.0.0 and port 0 mean its datagram's source. ``None`` if it may not."""
        address = source[0] if frame.address == _ANY_ADDRESS else frame.address
        if address != source[0] and address not in self._access.allow:
            return None
        return address, source[1] if frame.port == _ANY_PORT else frame.port
