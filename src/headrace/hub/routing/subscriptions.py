"""Content subscriptions, kept as a part of the hub's state.

They are in the log, so that a restarted hub, a frontend, a matcher elsewhere and a cluster node with the same log have
the same subscriptions, and each change has one place in the sequence: it counts from the next message on. The entries:

- ``subscription/CLIENT``: ``{"connector": ID, "fields": {NAME: FIELD, …}}``: the client, at this connector, wants what
  satisfies all of these fields (each the JSON that the client sent) instead of what it wanted before; no fields at all
  withdraw;
- ``{"connector": ID}``: the client is at this connector now, its subscription unchanged;
- ``{"expired": OP}``: withdrawn, if nothing has changed since the entry at ``OP``: the client was away for too long;
- ``subscription/``: ``{"connector": ID}``: a sign of life of this connector.

``CLIENT`` is the client's id in hex. Fields are kept here as text; a matcher has an index of its own, which follows
each change (:attr:`Subscriptions.observers`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from headrace.errors import WireError
from headrace.hub.state import entry
from headrace.log.snapshot_pieces import rows
from headrace.message import Batch
from headrace.wire.attribute.items import sized
from headrace.wire.attribute.messages import NODE_ID_BYTES
from headrace.wire.link.message import SUBSCRIPTIONS
from headrace.wire.sdk.auth import client_id_text, parse_client_id
from headrace.wire.sdk.predicate import Predicate, parse_field, serialize_field

PART: Final = "subscription"

MAX_ROWS: Final = 1024
MAX_TABLE_BYTES: Final = 1 << 20
"""Bytes of one piece of the table, at most: some milliseconds' work, and well within a message of the link."""

Fields: TypeAlias = dict[str, str]
"""The field JSON of each attribute that a subscription names."""

Predicates: TypeAlias = Mapping[str, Predicate]

logger = logging.getLogger("headrace")


class Subscription(NamedTuple):
    """A client's connector, the entry that last changed the subscription, and its fields."""

    connector: bytes
    seq: int
    """The message that the entry stands after."""
    op: int
    """The entry's own position in the log, by which it is told apart from others after the same message."""
    packed: bytes

    @property
    def fields(self) -> Fields:
        """The fields as the client sent them."""
        return msgspec.json.decode(self.packed, type=Fields)

    @property
    def predicates(self) -> dict[str, Predicate]:
        """The fields, parsed."""
        return parse_fields(self.fields)


class SubscriptionChange(NamedTuple):
    """A client's subscription as it was and as it is; ``None`` where there is none."""

    client: bytes
    old: Subscription | None
    new: Subscription | None

    @property
    def same_fields(self) -> bool:
        """Whether only the client's connector has changed."""
        return self.old is not None and self.new is not None and self.old.packed == self.new.packed


Observer: TypeAlias = Callable[[SubscriptionChange], None]


class Subscriptions:
    """All subscriptions, by client id; a part of the state."""

    name = PART

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        """Called with each change after it has happened."""
        self.signs: list[Callable[[bytes], None]] = []
        """Called with each connector that gives a sign of life."""
        self._kept: dict[bytes, Subscription] = {}
        self._ids: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, client: object) -> bool:
        return client in self._kept

    def __iter__(self) -> Iterator[tuple[bytes, Subscription]]:
        return iter(self._kept.items())

    def clients(self) -> Iterable[bytes]:
        """The clients that have a subscription."""
        return self._kept.keys()

    def get(self, client: bytes) -> Subscription | None:
        """A client's subscription."""
        return self._kept.get(client)

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        """Follow a ``subscription`` entry; one that makes no sense is passed over."""
        try:
            client = parse_client_id(name) if name else b""
            order = msgspec.json.decode(payload, type=_Order)
            connector = sized("connector", order.connector.encode("ascii"), NODE_ID_BYTES)
            if order.fields:
                parse_fields(order.fields)
        except (WireError, msgspec.MsgspecError, UnicodeEncodeError) as error:
            # Doors write no such entry. A log that has one must still open.
            logger.warning(
                "an entry after message %d, of subscription %r, is passed over: %s", seq, name, error
            )
            return
        if not client:
            for hear in self.signs:
                hear(connector)
            return
        old = self._kept.get(client)
        if order.expired is not None:
            if old is not None and old.op == order.expired:
                self._set(client, None)
        elif order.fields is None:
            if old is not None:
                self._set(client, Subscription(self._same(connector), seq, op, old.packed))
        elif order.fields:
            packed = msgspec.json.encode(order.fields)
            self._set(client, Subscription(self._same(connector), seq, op, packed))
        else:
            self._set(client, None)

    def dump(self) -> bytes:
        """The subscriptions as a snapshot's section."""
        return b"".join(self.freeze())

    def freeze(self) -> Iterator[bytes]:
        """Return the pieces of the snapshot's section, which a thread makes."""
        clients, kept = list(self._kept), list(self._kept.values())
        return rows(range(len(clients)), lambda some: [(clients[place], *kept[place]) for place in some])

    def load(self, section: bytes) -> None:
        """Take the subscriptions over from a snapshot."""
        for client in list(self._kept):
            self._set(client, None)
        self.add(msgspec.msgpack.decode(section, type=_Rows))

    def add(self, rows: Iterable[_Row]) -> None:
        """Take over subscriptions: client, connector, number and position of the last change, packed fields."""
        for client, connector, seq, op, packed in rows:
            self._set(client, Subscription(self._same(connector), seq, op, packed))

    def _set(self, client: bytes, new: Subscription | None) -> None:
        old = self._kept.pop(client, None)
        if new is not None:
            self._kept[client] = new
        if old is not None or new is not None:
            change = SubscriptionChange(client, old, new)
            for observer in self.observers:
                observer(change)

    def _same(self, connector: bytes) -> bytes:
        """One object for each id, however many clients it has."""
        return self._ids.setdefault(connector, connector)


def parse_fields(fields: Mapping[str, str]) -> dict[str, Predicate]:
    """Parse fields, by attribute."""
    return {name: parse_field(field.encode()) for name, field in fields.items()}


def serialize_fields(predicates: Predicates) -> Fields:
    """Write predicates as fields."""
    return {name: serialize_field(predicate).decode() for name, predicate in predicates.items()}


def tables(subscriptions: Iterable[tuple[bytes, Subscription]]) -> Iterator[pa.RecordBatch]:
    """Subscriptions as rows of the matcher's table, in pieces of bounded size."""
    some: list[tuple[bytes, Subscription]] = []
    size = 0
    for each in subscriptions:
        some.append(each)
        size += len(each[1].packed)
        if len(some) >= MAX_ROWS or size >= MAX_TABLE_BYTES:
            yield _table(some)
            some, size = [], 0
    if some:
        yield _table(some)


def _table(subscriptions: Sequence[tuple[bytes, Subscription]]) -> pa.RecordBatch:
    columns = [
        pa.array([client.hex() for client, _ in subscriptions], pa.string()),
        pa.array([kept.connector.decode() for _, kept in subscriptions], pa.string()),
        pa.array([kept.seq for _, kept in subscriptions], pa.int64()),
        pa.array([kept.op for _, kept in subscriptions], pa.int64()),
        pa.array(
            [list(kept.fields.items()) for _, kept in subscriptions], SUBSCRIPTIONS.field("fields").type
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SUBSCRIPTIONS)


def subscribe(client: bytes, connector: bytes, fields: Fields) -> Batch:
    """The log entry that replaces a subscription; without fields, withdraws it."""
    return _entry(client, _Order(connector.decode(), fields))


def move(client: bytes, connector: bytes) -> Batch:
    """The log entry of a client that is at another connector now."""
    return _entry(client, _Order(connector.decode()))


def expire(client: bytes, op: int) -> Batch:
    """The log entry that withdraws a subscription unless it has changed since the entry at ``op``."""
    return _entry(client, _Order(expired=op))


def alive(connector: bytes) -> Batch:
    """The log entry that is a connector's sign of life."""
    return entry(PART, "", msgspec.json.encode(_Order(connector.decode())))


def _entry(client: bytes, order: _Order) -> Batch:
    return entry(PART, client_id_text(client), msgspec.json.encode(order))


class _Order(msgspec.Struct, frozen=True, omit_defaults=True):
    connector: str = " " * NODE_ID_BYTES
    fields: Fields | None = None
    expired: int | None = None


_Row = tuple[bytes, bytes, int, int, bytes]
_Rows = list[_Row]
