"""The sessions of a door that shows services, and what remains to be sent to each.

A session that keeps up gets each change as it is committed; a change is encoded once for all sessions. A session whose
client is full is owed the rest, and what it is owed does not grow with what it misses:

- *removals*: ids that are gone;
- *offers*: its position in the order of creation, after which everything is still to be offered;
- *objects*: for each service it lags in, the value it last got. Once there is room it gets one change from there to
  now: for ``json`` a patch, for ``last`` the newest value, and the whole object where it has nothing yet.

They are paid in this order, so that an id is gone before it is offered again, and no object comes before its offer.
The values that a session last got are shared with the state and with other sessions, so they cost little more than what
has changed since. Still they are bounded by :data:`HELD_BYTES`; a session above that is cut off, and gets everything
when it reconnects.

Nothing here knows a socket: a :class:`ServiceClient` takes bytes, and its owner calls :meth:`ServiceSession.pause` and
:meth:`ServiceSession.resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol, TypeAlias

from headrace.errors import LimitError
from headrace.hub.counters import Counters
from headrace.hub.services.merge_patch import JsonObject, diff, encode
from headrace.hub.services.objects import (
    ChangeRefused,
    Service,
    ServiceChanged,
    ServiceCreated,
    ServiceEvent,
    ServiceRemoved,
    Services,
    Value,
)
from headrace.wire import spp

HELD_BYTES: Final = 64 << 20
"""Bytes, as text, of the objects that one session may lag in."""

SLICE: Final = 512
"""Packets sent to one session in a row before others have their turn."""

_WAYS: Final = 4
"""Most patches kept for one service, each from another value to the current one; sessions that lag alike share one."""

_BLOCKS: Final = 256
"""Most blocks of offers that are kept encoded, each from another position: enough for 100,000 services."""


SeenServices: TypeAlias = Callable[[Sequence[str]], list[bool]]
"""Returns which of some services, given by their ids, a session may see."""


class ServiceClient(Protocol):
    """Where a session's packets go: its client's connection."""

    def send(self, data: bytes) -> None:
        """Send packets."""

    def later(self) -> None:
        """Call :meth:`ServiceSession.pay` soon: there is more to send."""

    def overburdened(self, detail: str) -> None:
        """Cut the session off, since more is owed to it than can be kept."""


class ServiceSession:
    """One client that is offered services; :meth:`ServiceSubscribers.join` makes one."""

    __slots__ = (
        "_audience", "_held", "_offered", "_removals", "behind", "outlet", "paused", "sees", "subscriptions"
    )  # fmt: skip

    def __init__(
        self, audience: ServiceSubscribers, outlet: ServiceClient, sees: SeenServices | None = None
    ) -> None:
        self.outlet = outlet
        self.sees = sees
        """Returns which services it may see; ``None`` for all."""
        self.paused = False
        self.subscriptions: dict[str, Service] = {}
        """The service under each subscribed id, removed ones included."""
        self.behind: dict[Service, _Behind] = {}
        """Services whose changes it is owed."""
        self._audience = audience
        self._removals: dict[str, None] = {}
        self._offered = 0
        self._held = 0

    def subscribe(self, service_id: str) -> bool:
        """Subscribe; the whole object follows at once. Return ``False`` if nothing is offered under this id."""
        service = self._audience.services.get(service_id)
        if service is None:
            return False
        self.subscriptions[service_id] = service
        channel = self._audience.open(service)
        channel.subscribers[self] = None
        self._settle(service)
        if self.paused or service.created > self._offered:
            self.behind[service] = _Behind()
        else:
            self.outlet.send(channel.whole())
        return True

    def unsubscribe(self, service_id: str) -> bool:
        """Unsubscribe; return ``False`` if it was not subscribed."""
        service = self.subscriptions.pop(service_id, None)
        if service is None:
            return False
        self._settle(service)
        self._audience.leave(self, service)
        return True

    def pause(self) -> None:
        """Stop sending, since the client is full."""
        self.paused = True

    def resume(self) -> None:
        """Continue sending, since the client has room again."""
        self.paused = False
        self.pay()

    def close(self) -> None:
        """Forget the session and send it nothing more."""
        self.paused = True
        for service_id in tuple(self.subscriptions):
            self.unsubscribe(service_id)
        self._audience.sessions.pop(self, None)

    def pay(self) -> None:
        """Send what is owed while there is room."""
        budget = SLICE
        while budget > 0 and not self.paused:
            if self._removals:
                gone = tuple(islice(self._removals, budget))
                for service_id in gone:
                    del self._removals[service_id]
                self.outlet.send(b"".join(spp.serialize(spp.Removed(service_id)) for service_id in gone))
                budget -= len(gone)
            elif (offers := self._audience.offers(self._offered, self.sees)) is not None:
                self._offered = offers.upto
                if offers.packets:
                    self.outlet.send(offers.packets)
                budget -= offers.amount
            elif self.behind:
                self._pay_object(next(iter(self.behind)))
                budget -= 1
            else:
                return
        if not self.paused:
            self.outlet.later()

    def miss(self, service: Service, before: Value, changes: int) -> None:
        """Owe changes of a service whose value was ``before`` ahead of the first of them."""
        behind = self.behind.get(service)
        if behind is not None:
            behind.missed += changes
            return
        if isinstance(before, bytes):
            self.behind[service] = _Behind(missed=changes)
            return
        self.behind[service] = _Behind(before, changes, service.weight)
        self._held += service.weight
        if self._held > HELD_BYTES:
            self.outlet.overburdened(f"it lags in objects of {self._held} bytes")

    def withdraw(self, service: Service) -> None:
        """Owe the removal of a service, if its offer was sent."""
        if service.created <= self._offered and (self.sees is None or self.sees([service.id])[0]):
            self._removals[service.id] = None

    def move(self, old: Service, new: Service) -> None:
        """Owe the whole object that takes a removed one's place."""
        self._settle(old)
        self.subscriptions[new.id] = new
        self.behind[new] = _Behind()

    def _pay_object(self, service: Service) -> None:
        behind = self.behind[service]
        self._settle(service)
        channel = self._audience.open(service)
        try:
            packet = channel.whole() if behind.before is None else channel.since(behind.before)
        except LimitError as error:
            # Both values fit a packet each, but the patch between them does not.
            self.outlet.overburdened(str(error))
            return
        if behind.missed:
            self._audience.conflated.value += behind.missed
        self.outlet.send(packet)

    def _settle(self, service: Service) -> None:
        behind = self.behind.pop(service, None)
        if behind is not None:
            self._held -= behind.weight


class ServiceChannel:
    """A service with subscribers, and the packets that several of them may need."""

    __slots__ = ("_since", "_whole", "service", "subscribers")

    def __init__(self, service: Service) -> None:
        self.service = service
        self.subscribers: dict[ServiceSession, None] = {}
        self._whole: bytes | None = None
        self._since: dict[int, tuple[JsonObject, bytes]] = {}

    def whole(self) -> bytes:
        """Return the packet with the whole object."""
        if self._whole is None:
            self._whole = spp.serialize(spp.Info(self.service.id, self.service.snapshot))
        return self._whole

    def since(self, before: JsonObject) -> bytes:
        """Return the packet with the change from ``before`` to now."""
        known = self._since.get(id(before))
        if known is None:
            if len(self._since) >= _WAYS:
                self._since.clear()
            now = self.service.value
            patch = encode(diff(before, now)) if isinstance(now, dict) else b""
            known = self._since[id(before)] = before, spp.serialize(spp.Info(self.service.id, patch))
        return known[1]

    def changed(self) -> None:
        """Drop the packets, since the object has changed."""
        self._whole = None
        self._since.clear()


class Offers(NamedTuple):
    """The offers of ``amount`` services in a row, the last of them created at ``upto``."""

    packets: bytes
    upto: int
    amount: int


class ServiceSubscribers:
    """All sessions of a door. It observes the services; its owner calls :meth:`deliver` after each commit."""

    def __init__(self, services: Services, counters: Counters) -> None:
        self.services = services
        self.sessions: dict[ServiceSession, None] = {}
        self.conflated = counters.counter("conflated", door="spp")
        """Number of changes that were not sent by themselves, since one change stood for several."""
        self.delivered = counters.counter("delivered", door="spp")
        self._counters = counters
        self._channels: dict[Service, ServiceChannel] = {}
        self._turns: dict[ServiceChannel, _Turn] = {}
        self._changes = 0
        self._offers: dict[int, Offers] = {}
        self._news = False
        services.observer = self._follow

    def join(self, outlet: ServiceClient, sees: SeenServices | None = None) -> ServiceSession:
        """Make a session; it is owed the offer of every service, which :meth:`ServiceSession.pay` sends.

        A session that ``sees`` only some services is offered those.
        """
        session = ServiceSession(self, outlet, sees)
        self.sessions[session] = None
        return session

    def deliver(self) -> None:
        """Send what has happened since the last call to every session it concerns."""
        self._send_changes()
        if self._news:
            self._news = False
            for session in tuple(self.sessions):
                session.pay()

    def open(self, service: Service) -> ServiceChannel:
        """Return the channel of a service, made if need be."""
        channel = self._channels.get(service)
        if channel is None:
            channel = self._channels[service] = ServiceChannel(service)
        return channel

    def leave(self, session: ServiceSession, service: Service) -> None:
        """Remove a subscriber, and with the last one the channel."""
        channel = self._channels[service]
        channel.subscribers.pop(session, None)
        if not channel.subscribers:
            del self._channels[service]

    def offers(self, after: int, sees: SeenServices | None = None) -> Offers | None:
        """Return some offers of services created after ``after``; ``None`` if there are none."""
        if sees is not None:
            return self._some_offers(after, sees)
        offers = self._offers.get(after)
        if offers is None:
            services = self.services.after(after, SLICE)
            if not services:
                return None
            if len(self._offers) >= _BLOCKS:
                self._offers.clear()
            packets = b"".join(spp.serialize(spp.Offer(service.id)) for service in services)
            offers = self._offers[after] = Offers(packets, services[-1].created, len(services))
        return offers

    def _some_offers(self, after: int, sees: SeenServices) -> Offers | None:
        """Return offers of the next services, of which a session may see only some; there may be none."""
        services = self.services.after(after, SLICE)
        if not services:
            return None
        ids = [service.id for service in services]
        seen = [name for name, shown in zip(ids, sees(ids), strict=True) if shown]
        packets = b"".join(spp.serialize(spp.Offer(name)) for name in seen)
        return Offers(packets, services[-1].created, len(services))

    def _follow(self, event: ServiceEvent) -> None:
        match event:
            case ServiceChanged(service, change, before):
                channel = self._channels.get(service)
                if channel is not None:
                    turn = self._turns.get(channel)
                    if turn is None:
                        turn = self._turns[channel] = _Turn(before)
                    turn.places.append(self._changes)
                    turn.changes.append(change)
                    self._changes += 1
            case ServiceCreated(service, instead):
                self._renew()
                if instead is not None:
                    self._move(instead, service)
            case ServiceRemoved(service):
                self._renew()
                for session in self.sessions:
                    session.withdraw(service)
            case ChangeRefused(service_id, seq, reason, detail):
                self._counters.refuse("services", reason, f"message {seq} for {service_id!r}", detail)

    def _renew(self) -> None:
        self._offers.clear()
        self._news = True

    def _move(self, old: Service, new: Service) -> None:
        """ "Old subscribers move to the new object"; what happened to the old one before is sent before."""
        self._send_changes()
        channel = self._channels.pop(old, None)
        if channel is None:
            return  # It had no subscriber, or none is left: one that lagged too far was cut off just now.
        channel.service = new
        channel.changed()
        self._channels[new] = channel
        for session in channel.subscribers:
            session.move(old, new)

    def _send_changes(self) -> None:
        turns = self._turns
        if not turns:
            return
        self._turns, self._changes = {}, 0
        for channel in turns:
            channel.changed()
        if len(turns) == 1:
            ((channel, turn),) = turns.items()
            self._send_one(channel, turn)
        else:
            self._send_many(turns)

    def _send_one(self, channel: ServiceChannel, turn: _Turn) -> None:
        service, count = channel.service, len(turn.changes)
        packets = turn.packets(service)
        sent = 0
        for session in tuple(channel.subscribers):
            if session.paused or service in session.behind:
                session.miss(service, turn.before, count)
            else:
                session.outlet.send(packets)
                sent += count
        self.delivered.value += sent

    def _send_many(self, turns: dict[ServiceChannel, _Turn]) -> None:
        """Send each session the changes of all its services in the order of the log, in one write."""
        concerned: dict[ServiceSession, list[ServiceChannel]] = {}
        for channel in turns:
            for session in channel.subscribers:
                concerned.setdefault(session, []).append(channel)
        pieces: dict[tuple[ServiceChannel, ...], tuple[bytes, int]] = {}
        for session, channels in concerned.items():
            ready = []
            for channel in channels:
                if session.paused or channel.service in session.behind:
                    turn = turns[channel]
                    session.miss(channel.service, turn.before, len(turn.changes))
                else:
                    ready.append(channel)
            if not ready:
                continue
            key = tuple(ready)
            piece = pieces.get(key)
            if piece is None:
                piece = pieces[key] = _in_order((channel.service.id, turns[channel]) for channel in key)
            session.outlet.send(piece[0])
            self.delivered.value += piece[1]


@dataclass(slots=True)
class _Behind:
    """The value of a service that a session last got; ``None`` if it got none, or if that does not matter."""

    before: JsonObject | None = None
    missed: int = 0
    weight: int = 0


@dataclass(slots=True)
class _Turn:
    """The changes of one service that are to be sent, and their positions among all changes."""

    before: Value
    places: list[int] = field(default_factory=list)
    changes: list[bytes] = field(default_factory=list)

    def packets(self, service: Service) -> bytes:
        return spp.serialize_infos((service.id, change) for change in self.changes)


_Placed: TypeAlias = tuple[int, str, bytes]


def _in_order(turns: Iterable[tuple[str, _Turn]]) -> tuple[bytes, int]:
    """Return the packets of several services' changes, in the order of the log, and their number."""
    placed: list[_Placed] = sorted(
        chain.from_iterable(
            ((place, service_id, change) for place, change in zip(turn.places, turn.changes, strict=True))
            for service_id, turn in turns
        )
    )
    return spp.serialize_infos((service_id, change) for _, service_id, change in placed), len(placed)
