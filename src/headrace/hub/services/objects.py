"""Services: named live objects, kept as a part of the hub's state.

A service has an id, which is a topic, and one of two kinds, fixed when it is created:

- ``json``: a JSON object; a change is a JSON Merge Patch, the snapshot is all of them merged;
- ``last``: any bytes; a change is the new value, the snapshot is the latest.

Messages whose topic is a service's id change it, whatever door they came by. Entries of the log say which services
there are:

- ``service/ID``: ``{"create": "json"}``, ``{"create": "last"}`` or ``{"remove": true}``;
- ``service/``: ``{"auto": …, "max": …}``, the policy. What a policy decides (a service made of an unknown topic, one
  too many not made) must come out the same whenever the log is read again, under whatever settings. So a hub whose
  settings differ from the policy says so in the log, and the state obeys the log alone.

Removing a service stops new subscriptions and nothing else. Its id stays known as removed: no message makes a service
of it again, only an entry does. Its object leaves the state with it, and lives on for as long as somebody holds it, who
is then a subscriber: messages go on changing it for them. The newest :data:`MAX_REMOVED` removed ids are remembered.

Whoever must know what happens while it happens (the SPP door) sets :attr:`Services.observer`.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from enum import StrEnum
from operator import attrgetter
from typing import Annotated, Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import LimitError, UsageError, WireError
from headrace.hub.services.merge_patch import JsonObject, apply, encode, parse_object
from headrace.hub.state import entry
from headrace.message import NOT_A_MESSAGE, Batch
from headrace.wire.spp import MAX_PACKET, MAX_SERVICE

MAX_REMOVED: Final = 100_000
"""Removed ids that are remembered. Not a setting: the state would then depend on more than the log."""

PART: Final = "service"
POLICY: Final = f"{PART}/"
"""The topic of an entry that says which policy holds; only the hub that numbers says so."""

_STRINGS: Final = 8
"""The lengths of the two STRINGs in the packet that must be able to carry any object whole."""


class Kind(StrEnum):
    """What a service's object is, and what changes it."""

    JSON = "json"
    LAST = "last"


class Policy(msgspec.Struct, frozen=True):
    """Whether an unknown topic creates a ``last`` service, and how many services there may be."""

    auto: bool = False
    max: Annotated[int, msgspec.Meta(ge=0, le=sys.maxsize)] = 100_000


Value: TypeAlias = JsonObject | bytes


class Service:
    """One live object. ``created`` is the sequence number it appeared at, ``seq`` that of its last change.

    A value is never changed in place: who has taken one keeps it as it was.
    """

    __slots__ = ("__weakref__", "_bound", "_room", "_snapshot", "created", "id", "kind", "seq", "value")

    def __init__(self, service_id: str, kind: Kind, created: int) -> None:
        self.id = service_id
        self.kind = kind
        self.created = created
        self.seq = created
        self.value: Value = {} if kind is Kind.JSON else b""
        self._room = MAX_PACKET - _STRINGS - len(service_id.encode())
        self._snapshot: bytes | None = None
        # A JSON object's text is never longer than this. Known without writing the text after each change, since a
        # change adds no more than its own text.
        self._bound = 2

    @property
    def snapshot(self) -> bytes:
        """The whole object as bytes."""
        if isinstance(self.value, bytes):
            return self.value
        if self._snapshot is None:
            self._snapshot = encode(self.value)
            self._bound = len(self._snapshot)
        return self._snapshot

    @property
    def weight(self) -> int:
        """About how many bytes the object's text has."""
        return self._bound if self.kind is Kind.JSON else len(self.value)

    def change(self, change: bytes, seq: int) -> None:
        """Follow a change; one that cannot be, for what it is or for its size, raises and changes nothing."""
        if len(change) > self._room:
            raise LimitError("spp", "change", len(change), self._room)
        if self.kind is Kind.JSON:
            patch = parse_object(change)
            self._patch(apply(self.value, patch), len(encode(patch)))
        else:
            self.value = change
        self.seq = seq

    def restore(self, snapshot: bytes, seq: int) -> None:
        """Become what a snapshot says."""
        self.value = msgspec.json.decode(snapshot) if self.kind is Kind.JSON else snapshot
        self._bound = len(snapshot)
        self.seq = seq

    def _patch(self, value: JsonObject, added: int) -> None:
        bound = self._bound + added
        text = None
        if bound > self._room:
            text = encode(value)
            bound = len(text)
            if bound > self._room:
                # Otherwise nobody could be sent the object any more.
                raise LimitError("spp", "object", bound, self._room)
        self.value, self._bound, self._snapshot = value, bound, text


class Created(NamedTuple):
    """A service appeared; ``instead`` is the removed one that still has subscribers, if any."""

    service: Service
    instead: Service | None


class Removed(NamedTuple):
    """A service is no longer offered."""

    service: Service


class Changed(NamedTuple):
    """A change was made; ``before`` is what the object was."""

    service: Service
    change: bytes
    before: Value


class Refused(NamedTuple):
    """Message ``seq`` could not change, or create, the service that it is for."""

    service_id: str
    seq: int
    reason: str
    detail: object


Event: TypeAlias = Created | Removed | Changed | Refused


class Services:
    """The services there are, in the order of their creation."""

    name = PART
    follows_messages = True

    def __init__(self) -> None:
        self.policy = Policy()
        self.observer: Callable[[Event], None] | None = None
        """Told each event as it happens: the state is then just behind it."""
        self._services: dict[str, Service] = {}
        self._order: list[Service] = []
        self._removed: dict[str, Kind] = {}
        self._held: WeakValueDictionary[str, Service] = WeakValueDictionary()
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._services)

    def __iter__(self) -> Iterator[Service]:
        return iter(self._order)

    def get(self, service_id: str) -> Service | None:
        """The service that is offered under an id."""
        return self._services.get(service_id)

    def kind(self, service_id: str) -> Kind | None:
        """The kind of a service that is offered, or was and is removed; ``None`` for an id that is neither."""
        service = self._services.get(service_id)
        return self._removed.get(service_id) if service is None else service.kind

    def after(self, created: int, count: int) -> list[Service]:
        """The next ``count`` services that were created after ``created``, in order."""
        begin = bisect_right(self._order, created, key=_created)
        return self._order[begin : begin + count]

    def apply(self, name: str, payload: bytes, seq: int) -> None:
        """Take note of an entry; it is followed at its place among the messages of its batch."""
        self._entries.append(_Entry(seq, name, payload))

    def follow(self, batch: Batch) -> None:
        """Follow a batch's entries and messages in their order."""
        entries = self._entries
        if entries:
            self._entries = []
        elif not (self._services or self._held or self.policy.auto):
            return
        waiting = iter(entries)
        due = next(waiting, None)
        for seq, topic, payload in self._rows(batch, every=bool(entries)):
            while due is not None and due.seq < seq:
                self._try_to_enter(due)
                due = next(waiting, None)
            self._message(topic, payload, seq)
        while due is not None:
            self._try_to_enter(due)
            due = next(waiting, None)

    def dump(self) -> bytes:
        """The services as a snapshot's section."""
        order = self._order
        kept = _Kept(
            policy=self.policy,
            # By columns: the hub does nothing else meanwhile, and rows would take three times as long.
            ids=[service.id for service in order],
            kinds=[service.kind for service in order],
            created=[service.created for service in order],
            seqs=[service.seq for service in order],
            snapshots=[service.snapshot for service in order],
            removed=list(self._removed.items()),
        )
        return msgspec.msgpack.encode(kept)

    def load(self, section: bytes) -> None:
        """Take the services over from a snapshot."""
        kept = msgspec.msgpack.decode(section, type=_Kept)
        self.policy = kept.policy
        self._services.clear()
        self._held.clear()
        self._removed = dict(kept.removed)
        columns = (kept.ids, kept.kinds, kept.created, kept.seqs, kept.snapshots)
        for service_id, kind, created, seq, snapshot in zip(*columns, strict=True):
            service = self._services[service_id] = Service(service_id, kind, created)
            service.restore(snapshot, seq)
        self._order = list(self._services.values())

    def _rows(self, batch: Batch, *, every: bool) -> Iterator[tuple[int, str, bytes]]:
        """The messages of a batch that may concern a service: number, topic, payload."""
        columns, run = batch.columns, batch.run
        names = () if columns is None else columns.schema.names
        if columns is None or not ("topic" in names or "origin" in names):
            if batch.topic and batch.origin != NOT_A_MESSAGE and (every or self._concerned(batch.topic)):
                for seq, payload in enumerate(run if run.lone is None else (run.lone,), batch.first):
                    yield seq, batch.topic, payload
            return
        origins, topics = (
            columns.column(name) if name in names else pa.repeat(getattr(batch, name), len(batch))
            for name in ("origin", "topic")
        )
        # Batches may have very many messages of which few concern a service: only those are touched one by one.
        encoded = topics.dictionary_encode()
        wanted = self._wanted(encoded.dictionary, every=every)
        if not wanted.any():
            return
        codes, texts = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
        messages = pc.not_equal(origins, NOT_A_MESSAGE).to_numpy(zero_copy_only=False)
        edges, data = run.offsets.tolist(), run.data.data
        for row in np.flatnonzero(wanted[codes] & messages).tolist():
            yield batch.first + row, texts[codes[row]], bytes(data[edges[row] : edges[row + 1]])

    def _wanted(self, topics: pa.Array, *, every: bool) -> npt.NDArray[np.bool_]:
        """Which of some topics may concern a service: in time that goes by the topics or the services, the fewer."""
        if every or self.policy.auto:
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
            service = self._create(topic, Kind.LAST, seq)
        if service is None:
            return
        before = service.value
        try:
            service.change(payload, seq)
        except WireError as error:
            self._tell(Refused(topic, seq, error.reason, error))
        else:
            if self.observer is not None:
                self.observer(Changed(service, payload, before))

    def _try_to_enter(self, entered: _Entry) -> None:
        try:
            self._enter(entered)
        except msgspec.DecodeError as error:
            self._tell(Refused(entered.name, entered.seq, "malformed", error))

    def _enter(self, entered: _Entry) -> None:
        if not entered.name:
            self.policy = msgspec.json.decode(entered.payload, type=Policy)
            return
        order = msgspec.json.decode(entered.payload, type=_Order)
        if order.create is not None:
            self._create(entered.name, order.create, entered.seq)
        elif order.remove:
            self._remove(entered.name)

    def _create(self, service_id: str, kind: Kind, seq: int) -> Service | None:
        if service_id in self._services:
            return None  # It is what it was created as.
        if len(self._services) >= self.policy.max:
            detail = f"{self.policy.max} services are there (services.max)"
            self._tell(Refused(service_id, seq, "services_max", detail))
            return None
        if len(service_id.encode()) > MAX_SERVICE:
            # A topic of another door; SPP could not name it.
            self._tell(Refused(service_id, seq, "limit", f"a service's id has at most {MAX_SERVICE} bytes"))
            return None
        service = self._services[service_id] = Service(service_id, kind, seq)
        self._order.append(service)
        self._removed.pop(service_id, None)
        self._tell(Created(service, self._held.pop(service_id, None)))
        return service

    def _remove(self, service_id: str) -> None:
        service = self._services.pop(service_id, None)
        if service is None:
            return
        del self._order[bisect_left(self._order, service.created, key=_created)]
        self._removed[service_id] = service.kind
        self._held[service_id] = service
        if len(self._removed) > MAX_REMOVED:
            # Held or not: what becomes of the id from now on must not depend on who subscribes where.
            forgotten = next(iter(self._removed))
            del self._removed[forgotten]
            self._held.pop(forgotten, None)
        self._tell(Removed(service))

    def _tell(self, event: Event) -> None:
        if self.observer is not None:
            self.observer(event)


def check_id(service_id: str) -> None:
    """Raise unless a service may have this id: 1 to 1,024 bytes of UTF-8."""
    try:
        size = len(service_id.encode())
    except UnicodeEncodeError:
        raise UsageError(f"a service's id is UTF-8 text, not {service_id!a}") from None
    if not size:
        raise UsageError("a service's id is not empty")
    if size > MAX_SERVICE:
        raise LimitError("spp", "service", size, MAX_SERVICE)


def create(service_id: str, kind: Kind) -> Batch:
    """The log entry that creates a service, or offers a removed id again; it does nothing to one that is there."""
    check_id(service_id)
    return entry(PART, service_id, encode({"create": kind}))


def remove(service_id: str) -> Batch:
    """The log entry that removes a service."""
    check_id(service_id)
    return entry(PART, service_id, encode({"remove": True}))


def obey(policy: Policy) -> Batch:
    """The log entry that makes ``policy`` the one that holds."""
    return entry(PART, "", encode(policy))


class _Entry(NamedTuple):
    seq: int
    name: str
    payload: bytes


class _Order(msgspec.Struct, frozen=True):
    create: Kind | None = None
    remove: bool = False


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy
    ids: list[str]
    kinds: list[Kind]
    created: list[int]
    seqs: list[int]
    snapshots: list[bytes]
    removed: list[tuple[str, Kind]]


_created = attrgetter("created")
