"""Services: named live objects, kept as a part of the hub's state.

A service has an id, which is a topic, and one of two kinds, fixed when it is created:

- ``json``: a JSON object; a change is a JSON Merge Patch, the snapshot is all of them merged;
- ``last``: any bytes; a change is the new value, the snapshot is the latest.

Messages whose topic is a service's id change it, whatever door they came by. Log entries say which services exist:

- ``service/ID``: ``{"create": "json"}``, ``{"create": "last"}`` or ``{"remove": true}``;
- ``service/``: ``{"auto": …, "max": …, "bytes": …}``, the policy. Its decisions (a service created by an unknown topic,
  one refused as too many, a change refused because all services together would get too large) must be the same whenever
  the log is read again, with any settings. So a hub whose settings differ writes its policy into the log, and the state
  obeys the log alone.

The services take the bytes of their ids and of their objects' text, which are counted exactly. One client's share does
not depend on the log: :mod:`~headrace.hub.services.publish` bounds it by each service's owner.

Removing a service only stops new subscriptions. Its id stays known as removed: no message creates it again, only an
entry does. Its object leaves the state, but messages still change it for as long as a subscriber holds it. The newest
:data:`MAX_REMOVED` removed ids are remembered. The SPP door learns of events by :attr:`Services.observer`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import LimitError, WireError
from headrace.hub.services.entries import PART, Order, ServiceKind, ServicePolicy
from headrace.hub.services.merge_patch import JsonObject, apply_counted, encode, parse_object
from headrace.hub.state import LargePart
from headrace.log.snapshots.pieces import byte_strings, map_header, rows
from headrace.message import Batch
from headrace.wire.spp import MAX_PACKET, MAX_SERVICE

MAX_REMOVED: Final = 100_000
"""Most removed ids that are remembered. This is not a setting, since the state must depend on the log alone."""

_STRINGS: Final = 8
"""Bytes for the lengths of the two STRINGs in the packet that carries a whole object."""


class StateOwner(Protocol):
    """A client that is charged for bytes of the state."""

    state_bytes: int
    """Bytes of the services that it was the last to publish to."""


Value: TypeAlias = JsonObject | bytes


class Service:
    """One live object. ``created`` is its number among all that were ever created, which orders services by age;
    ``seq`` is the message that last changed it or, before the first, that its creation stands after.

    A value is never changed in place: a reader that holds one keeps it as it was.
    """

    __slots__ = (
        "__weakref__",
        "_room",
        "_snapshot",
        "created",
        "id",
        "kind",
        "owner",
        "seq",
        "value",
        "weight",
    )

    def __init__(self, service_id: str, kind: ServiceKind, created: int, seq: int) -> None:
        self.id = service_id
        self.kind = kind
        self.created = created
        self.seq = seq
        self.value: Value = {} if kind is ServiceKind.JSON else b""
        self.weight = 2 if kind is ServiceKind.JSON else 0
        """Bytes of the object's text."""
        self.owner: StateOwner | None = None
        """The client that is charged for its bytes; ``None`` after a restart."""
        self._room = MAX_PACKET - _STRINGS - len(service_id.encode())
        self._snapshot: bytes | None = None

    @property
    def snapshot(self) -> bytes:
        """The whole object as bytes."""
        if isinstance(self.value, bytes):
            return self.value
        if self._snapshot is None:
            self._snapshot = encode(self.value)
        return self._snapshot

    @property
    def charge(self) -> int:
        """Bytes of its id and of the object's text, which the budgets are charged for."""
        return len(self.id.encode()) + self.weight

    def frozen(self) -> Value:
        """Return the object's text, if it was made before, or the value to make it from later."""
        return self._snapshot or self.value

    def changed(self, change: bytes) -> tuple[Value, int]:
        """Return the value after a change, and its size; raise an error if it is malformed or too large."""
        if len(change) > self._room:
            raise LimitError("spp", "change", len(change), self._room)
        if isinstance(self.value, bytes):
            return change, len(change)
        value, growth = apply_counted(self.value, parse_object(change))
        if self.weight + growth > self._room:
            # The object would be too long to be sent.
            raise LimitError("spp", "object", self.weight + growth, self._room)
        return value, self.weight + growth

    def take(self, value: Value, size: int, seq: int) -> None:
        """Take a new value."""
        self.value, self.weight, self.seq, self._snapshot = value, size, seq, None

    def restore(self, snapshot: bytes, seq: int) -> None:
        """Take the value over from a snapshot."""
        self.value = msgspec.json.decode(snapshot) if self.kind is ServiceKind.JSON else snapshot
        self.weight = len(snapshot)
        self.seq = seq

    def belongs_to(self, owner: StateOwner | None) -> None:
        """Charge its bytes to another client."""
        if self.owner is not None:
            self.owner.state_bytes -= self.charge
        self.owner = owner
        if owner is not None:
            owner.state_bytes += self.charge


class ServiceCreated(NamedTuple):
    """A service was created; ``instead`` is the removed one that still has subscribers, if any."""

    service: Service
    instead: Service | None


class ServiceRemoved(NamedTuple):
    """A service is no longer offered."""

    service: Service


class ServiceChanged(NamedTuple):
    """A service changed; ``before`` is its previous value."""

    service: Service
    change: bytes
    before: Value


class ChangeRefused(NamedTuple):
    """Message ``seq`` could not change or create its service."""

    service_id: str
    seq: int
    reason: str
    detail: object


ServiceEvent: TypeAlias = ServiceCreated | ServiceRemoved | ServiceChanged | ChangeRefused


class Services(LargePart):
    """All services, in the order of their creation."""

    name = PART

    def __init__(self) -> None:
        self.policy = ServicePolicy()
        self.observer: Callable[[ServiceEvent], None] | None = None
        """Called with each event, right after the state has followed it."""
        self.total_bytes = 0
        """Bytes of all services that are offered."""
        self._services: dict[str, Service] = {}
        self._order: list[Service] = []
        self._removed: dict[str, ServiceKind] = {}
        self._held: WeakValueDictionary[str, Service] = WeakValueDictionary()
        self._created = 0
        """Number of services ever created."""

    def __len__(self) -> int:
        return len(self._services)

    def __iter__(self) -> Iterator[Service]:
        return iter(self._order)

    def get(self, service_id: str) -> Service | None:
        """Return the service that is offered under an id."""
        return self._services.get(service_id)

    def kind(self, service_id: str) -> ServiceKind | None:
        """Return the kind of a service that is offered or removed; ``None`` for an unknown id."""
        service = self._services.get(service_id)
        return self._removed.get(service_id) if service is None else service.kind

    def after(self, created: int, count: int) -> list[Service]:
        """Return the next ``count`` services that were created after ``created``, in order."""
        begin = bisect_right(self._order, created, key=_created)
        return self._order[begin : begin + count]

    def apply(self, name: str, payload: bytes, seq: int, _op: int) -> None:
        """Apply an entry."""
        try:
            self._enter(name, payload, seq)
        except msgspec.DecodeError as error:
            self._tell(ChangeRefused(name, seq, "malformed", error))

    def follow(self, batch: Batch) -> None:
        """Apply a batch of messages."""
        if batch.is_entries or not (self._services or self._held or self.policy.auto):
            return
        for row, topic, payload in self._rows(batch):
            self._message(topic, payload, batch.first + row)

    def freeze(self) -> Iterator[bytes]:
        """Return the pieces of the snapshot's section, which a thread makes; values never change in place."""
        order = self._order
        policy, count, removed = self.policy, self._created, self._removed.copy()
        # Make columns: rows would take three times as long, and the hub does nothing else meanwhile.
        columns: list[tuple[str, list[object]]] = [
            ("ids", [service.id for service in order]),
            ("kinds", [service.kind for service in order]),
            ("created", [service.created for service in order]),
            ("seqs", [service.seq for service in order]),
        ]
        values = [service.frozen() for service in order]

        def pieces() -> Iterator[bytes]:
            yield map_header(len(_Kept.__struct_fields__))
            for name, value in (("policy", policy), ("count", count)):
                yield encode_msgpack(name) + encode_msgpack(value)
            for name, column in columns:
                yield encode_msgpack(name)
                yield from rows(column)
            yield encode_msgpack("snapshots")
            texts = (value if isinstance(value, bytes) else encode(value) for value in values)
            yield from byte_strings(texts, len(values))
            yield encode_msgpack("removed")
            yield from rows(list(removed.items()))

        return pieces()

    def load(self, section: bytes) -> None:
        """Take the services over from a snapshot."""
        kept = msgspec.msgpack.decode(section, type=_Kept)
        self.policy = kept.policy
        self._services.clear()
        self._held.clear()
        self._removed = dict(kept.removed)
        self._created = kept.count
        columns = (kept.ids, kept.kinds, kept.created, kept.seqs, kept.snapshots)
        for service_id, kind, created, seq, snapshot in zip(*columns, strict=True):
            service = self._services[service_id] = Service(service_id, kind, created, seq)
            service.restore(snapshot, seq)
        self._order = list(self._services.values())
        self.total_bytes = sum(service.charge for service in self._order)

    def _rows(self, batch: Batch) -> Iterator[tuple[int, str, bytes]]:
        """Yield row, topic and payload of the messages that may concern a service."""
        columns, run = batch.columns, batch.run
        if columns is None or "topic" not in columns.schema.names:
            if batch.topic and self._concerned(batch.topic):
                for row, payload in enumerate(run if run.lone is None else (run.lone,)):
                    yield row, batch.topic, payload
            return
        # Few of very many messages may concern a service: only those are handled one by one.
        encoded = columns.column("topic").dictionary_encode()
        wanted = self._wanted(encoded.dictionary)
        if not wanted.any():
            return
        codes, texts = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
        edges, data = run.offsets.tolist(), run.data.data
        for row in np.flatnonzero(wanted[codes]).tolist():
            yield row, texts[codes[row]], bytes(data[edges[row] : edges[row + 1]])

    def _wanted(self, topics: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which topics may concern a service, in time that grows with the fewer of topics and services."""
        if self.policy.auto:
            wanted = pc.not_equal(topics, "")
        elif len(self._services) + len(self._held) < len(topics):
            wanted = pc.is_in(topics, value_set=pa.array([*self._services, *self._held], pa.string()))
        else:
            return np.array([self._concerned(topic) for topic in topics.to_pylist()], np.bool_)
        mask: npt.NDArray[np.bool_] = wanted.to_numpy(zero_copy_only=False)
        return mask

    def _concerned(self, topic: str) -> bool:
        return topic in self._services or self.policy.auto or topic in self._held

    def _message(self, topic: str, payload: bytes, seq: int) -> None:
        service = self._services.get(topic)
        if service is None:
            service = self._held.get(topic)
        if service is None and self.policy.auto and topic not in self._removed:
            service = self._create(topic, ServiceKind.LAST, seq)
        if service is None:
            return
        before = service.value
        try:
            value, size = service.changed(payload)
        except WireError as error:
            self._tell(ChangeRefused(topic, seq, error.reason, error))
            return
        # The object of a removed service is not part of the state.
        growth = size - service.weight if service.id in self._services else 0
        if growth > 0 and self.total_bytes + growth > self.policy.most_bytes:
            self._tell(ChangeRefused(topic, seq, "state_bytes", self.too_large()))
            return
        service.take(value, size, seq)
        self.total_bytes += growth
        if service.owner is not None:
            service.owner.state_bytes += growth
        if self.observer is not None:
            self.observer(ServiceChanged(service, payload, before))

    def _enter(self, name: str, payload: bytes, seq: int) -> None:
        if not name:
            self.policy = msgspec.json.decode(payload, type=ServicePolicy)
            return
        order = msgspec.json.decode(payload, type=Order)
        if order.create is not None:
            self._create(name, order.create, seq)
        elif order.remove:
            self._remove(name)

    def _create(self, service_id: str, kind: ServiceKind, seq: int) -> Service | None:
        if service_id in self._services:
            return None  # It keeps the kind it was created with.
        if len(self._services) >= self.policy.max:
            detail = f"{self.policy.max} services are there (services.max)"
            self._tell(ChangeRefused(service_id, seq, "services_max", detail))
            return None
        if len(service_id.encode()) > MAX_SERVICE:
            # A topic of another door that SPP cannot name.
            self._tell(
                ChangeRefused(service_id, seq, "limit", f"a service's id has at most {MAX_SERVICE} bytes")
            )
            return None
        service = Service(service_id, kind, self._created + 1, seq)
        if self.total_bytes + service.charge > self.policy.most_bytes:
            self._tell(ChangeRefused(service_id, seq, "state_bytes", self.too_large()))
            return None
        self._created += 1
        self._services[service_id] = service
        self.total_bytes += service.charge
        self._order.append(service)
        self._removed.pop(service_id, None)
        self._tell(ServiceCreated(service, self._held.pop(service_id, None)))
        return service

    def _remove(self, service_id: str) -> None:
        service = self._services.pop(service_id, None)
        if service is None:
            return
        del self._order[bisect_left(self._order, service.created, key=_created)]
        self.total_bytes -= service.charge
        service.belongs_to(None)
        self._removed[service_id] = service.kind
        self._held[service_id] = service
        if len(self._removed) > MAX_REMOVED:
            # Forget it even if it is held: the id's future must not depend on who subscribes where.
            forgotten = next(iter(self._removed))
            del self._removed[forgotten]
            self._held.pop(forgotten, None)
        self._tell(ServiceRemoved(service))

    def too_large(self) -> str:
        """Return why no service may grow."""
        return f"all services take {self.total_bytes} bytes of {self.policy.most_bytes} (limits.state_bytes)"

    def _tell(self, event: ServiceEvent) -> None:
        if self.observer is not None:
            self.observer(event)


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    policy: ServicePolicy
    count: int
    ids: list[str]
    kinds: list[ServiceKind]
    created: list[int]
    seqs: list[int]
    snapshots: list[bytes]
    removed: list[tuple[str, ServiceKind]]


_created = attrgetter("created")
encode_msgpack = msgspec.msgpack.encode
