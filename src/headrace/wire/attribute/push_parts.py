"""Splitting pushes and heartbeats that do not fit one message, and joining them again.

A push whose MsgId, payload and client list pass MaxBodyLength becomes a Head, Mids and a Tail. Strategy: fill
each part to the brim, first with payload and then with clients, so that the Head carries the payload and the
first clients, as the protocol has it, and a payload too long for that simply goes on in the next part.

A :class:`PushJoiner` belongs to one connection. Invariants:

- Clients count only once the Tail has come: a push comes out whole or not at all.
- What it holds is bounded in bytes, in pushes and in seconds. The peer that passes a bound is refused; other
  connections have joiners of their own.
- ``join`` of all parts of ``split`` is the push that was split.

A dispatcher's heartbeat names its connectors. Those that do not fit one message continue in the next part, and count
once the Tail has come: a :class:`HeartbeatJoiner` has at most one heartbeat begun, of :data:`MAX_CONNECTORS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from headrace.errors import LimitError, UnexpectedError
from headrace.wire.attribute.items import ITEM, MAX_BODY, entries
from headrace.wire.attribute.messages import (
    MSG_ID_BYTES,
    NODE_ID_BYTES,
    AnyPush,
    DispatcherPush,
    Extra,
    Heartbeat,
)

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Payload and clients that one connection may have begun and not finished: the longest message of any door,
and some hundred thousand clients."""

MAX_HELD_PUSHES = 64
"""Pushes that one connection may have begun and not finished; a sender that ends one before the next needs 1."""

MAX_HELD_SECONDS = 30.0
"""From Head to Tail."""

MAX_CONNECTORS = 1024
"""Connectors that a heartbeat may name, and as many that rely on marks."""

P = TypeVar("P", bound=AnyPush)

_TIMESTAMP_BYTES = 8

_Key: TypeAlias = tuple[type[AnyPush], bytes, bytes]


@dataclass(slots=True)
class _Held:
    """What has come of a push since its Head, at ``since``."""

    since: float
    payload: bytearray = field(default_factory=bytearray)
    clients: bytearray = field(default_factory=bytearray)

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.clients)


def split(push: P) -> Iterator[P]:
    """The messages that carry a push: the push itself if it fits one, else Head, Mids and Tail."""
    size = push.ENTRY_BYTES
    entries("clients", push.clients, size)
    room = MAX_BODY - (ITEM.size + MSG_ID_BYTES)
    if isinstance(push, DispatcherPush) and push.connector:
        room -= ITEM.size + NODE_ID_BYTES
    paid = listed = 0
    extra = Extra.HEAD
    while True:
        payload = push.payload[paid : paid + room - ITEM.size]
        paid += len(payload)
        # A Head has its payload item even when the payload is empty.
        left = room - (ITEM.size + len(payload) if payload or extra is Extra.HEAD else 0) - ITEM.size
        clients = push.clients[listed : listed + max(left, 0) // size * size]
        listed += len(clients)
        if paid == len(push.payload) and listed == len(push.clients):
            extra = Extra.SINGLE if extra is Extra.HEAD else Extra.TAIL
            yield replace(push, payload=payload, clients=clients, extra=extra)
            return
        yield replace(push, payload=payload, clients=clients, extra=extra)
        extra = Extra.MID


def split_heartbeat(heartbeat: Heartbeat) -> Iterator[Heartbeat]:
    """The messages that carry a heartbeat: itself if it fits one, else Head, Mids and Tail."""
    # Behind its timestamp, and what begins two items.
    room = (MAX_BODY - (ITEM.size + _TIMESTAMP_BYTES) - 2 * ITEM.size) // NODE_ID_BYTES * NODE_ID_BYTES
    connectors, relying = heartbeat.connectors, heartbeat.relying
    extra = Extra.HEAD
    while True:
        some = connectors[:room]
        more = relying[: room - len(some)]
        connectors, relying = connectors[len(some) :], relying[len(more) :]
        if not connectors and not relying:
            extra = Extra.SINGLE if extra is Extra.HEAD else Extra.TAIL
        yield replace(heartbeat, connectors=some, relying=more, extra=extra)
        if extra in (Extra.SINGLE, Extra.TAIL):
            return
        extra = Extra.MID


class HeartbeatJoiner:
    """Whole heartbeats out of the parts that come on one connection."""

    def __init__(self) -> None:
        self._begun: Heartbeat | None = None

    def join(self, part: Heartbeat) -> Heartbeat | None:
        """Take a message; return the whole heartbeat if this completes one."""
        begun, self._begun = self._begun, None
        if part.extra in (Extra.MID, Extra.TAIL):
            if begun is None:
                raise UnexpectedError(
                    "attribute", "extra", int(part.extra), f"a {part.extra.name} without a Head"
                )
            part = replace(
                part, connectors=begun.connectors + part.connectors, relying=begun.relying + part.relying
            )
        for field_name, ids in (("connectors", part.connectors), ("relying", part.relying)):
            if len(ids) > MAX_CONNECTORS * NODE_ID_BYTES:
                raise LimitError("attribute", field_name, len(ids) // NODE_ID_BYTES, MAX_CONNECTORS)
        if not part.ends:
            self._begun = part
            return None
        return replace(part, extra=Extra.SINGLE)


class PushJoiner:
    """Whole pushes out of the parts that come on one connection."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_HELD_BYTES,
        max_pushes: int = MAX_HELD_PUSHES,
        max_seconds: float = MAX_HELD_SECONDS,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_pushes = max_pushes
        self.max_seconds = max_seconds
        self._held: dict[_Key, _Held] = {}
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """Payload and clients of the pushes begun and not finished."""
        return self._bytes

    @property
    def held_pushes(self) -> int:
        """How many pushes are begun and not finished."""
        return len(self._held)

    def join(self, push: P, now: float) -> P | None:
        """Take a message; return the whole push if this completes one."""
        if push.extra is Extra.SINGLE:
            return push
        key = _key(push)
        if push.extra is Extra.HEAD:
            self._begin(key, now)
        held = self._add(key, push, now)
        if push.extra is not Extra.TAIL:
            return None
        self._drop(key)
        return replace(push, payload=bytes(held.payload), clients=bytes(held.clients), extra=Extra.SINGLE)

    def expire(self, now: float) -> list[bytes]:
        """Drop the pushes whose Tail is overdue and return their MsgIds."""
        late = [key for key, held in self._held.items() if self._is_late(held, now)]
        for key in late:
            self._drop(key)
        return [msg_id for _, msg_id, _ in late]

    def _begin(self, key: _Key, now: float) -> None:
        # A sender that begins again has given its first attempt up.
        if key in self._held:
            self._drop(key)
        if len(self._held) >= self.max_pushes:
            raise LimitError("attribute", "pushes without a Tail", len(self._held) + 1, self.max_pushes)
        self._held[key] = _Held(now)

    def _add(self, key: _Key, push: AnyPush, now: float) -> _Held:
        held = self._held.get(key)
        if held is None:
            raise UnexpectedError("attribute", "MsgId", push.msg_id, f"a {push.extra.name} without a Head")
        if self._is_late(held, now):
            raise LimitError("attribute", "seconds since the Head", now - held.since, self.max_seconds)
        size = len(push.payload) + len(push.clients)
        if self._bytes + size > self.max_bytes:
            raise LimitError("attribute", "bytes without a Tail", self._bytes + size, self.max_bytes)
        held.payload += push.payload
        held.clients += push.clients
        self._bytes += size
        return held

    def _drop(self, key: _Key) -> None:
        self._bytes -= self._held.pop(key).size

    def _is_late(self, held: _Held, now: float) -> bool:
        return now - held.since > self.max_seconds


def _key(push: AnyPush) -> _Key:
    """Parts of one push agree in these. The same message for two connectors is two pushes."""
    return type(push), push.msg_id, push.connector if isinstance(push, DispatcherPush) else b""
