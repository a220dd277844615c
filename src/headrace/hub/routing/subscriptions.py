"""Content subscriptions, kept as a part of the hub's state.

They are in the log, so that a restarted hub, a frontend, a matcher elsewhere and a cluster node with the same log have
the same subscriptions, and each change has one place in the sequence: it counts from the next message on. A client has
the document's one subscription, whose name is empty, and named ones. Each is a list of alternatives; a message
satisfies it when it satisfies all fields of one of them. The entries:

- ``subscription/CLIENT``: ``{"connector": ID, "fields": {NAME: FIELD, …}}``: the client, at this connector, replaces
  its unnamed subscription by one for messages that satisfy all of these fields (each the JSON that the client sent);
  without fields it is withdrawn;
- ``{"connector": ID, "named": {SUBSCRIPTION: [{NAME: FIELD, …}, …], …}}``: the same for each of these subscriptions and
  its alternatives; none withdraw one;
- ``{"connector": ID, "named": …, "only": true}``: the client has these subscriptions and no others;
- ``{"connector": ID}``: the client is at this connector now, its subscriptions unchanged;
- ``{"expired": OP}``: all are withdrawn if nothing has changed since the entry at ``OP``: the client was away too long;
- ``subscription/``: ``{"connector": ID}``: a sign of life of this connector.

``CLIENT`` is the client's id in hex. Fields are kept here as text; a matcher has an index of its own, which follows
each change (:attr:`Subscriptions.observers`).

What a subscription is made of is in :mod:`headrace.hub.routing.subscription_parts`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from headrace.errors import LimitError, MalformedError, WireError
from headrace.hub.routing.subscription_parts import (
    FENCE,
    POLYGON,
    UNNAMED,
    Fields,
    Label,
    Named,
    Subscription,
    parse_fields,
    parts_of,
    weight_of,
)
from headrace.hub.state import LargePart, entry
from headrace.log.snapshots.pieces import rows
from headrace.message import Batch
from headrace.wire.attribute.items import sized
from headrace.wire.attribute.messages import NODE_ID_BYTES
from headrace.wire.link.message import SUBSCRIPTIONS
from headrace.wire.sdk.auth import client_id_text, parse_client_id
from headrace.wire.sdk.fence import Track
from headrace.wire.sdk.subscribe import MAX_ALTERNATIVES, serialize_subscription_name

PART: Final = "subscription"

MAX_ROWS: Final = 1024
MAX_TABLE_BYTES: Final = 1 << 20
"""Most bytes of one piece of the table: some milliseconds' work, and well within a message of the link."""

MAX_PARTS: Final = 1024
"""Most alternatives of a client's subscriptions. This is not a setting: the state must depend on the log alone."""

logger = logging.getLogger("headrace")


class SubscriptionChange(NamedTuple):
    """A client's subscriptions as they were and as they are; ``None`` where there are none."""

    client: bytes
    old: Subscription | None
    new: Subscription | None
    names: tuple[str, ...]
    """The subscriptions that are not as they were; none if only the client's connector has changed."""


Observer: TypeAlias = Callable[[SubscriptionChange], None]


class Subscriptions(LargePart):
    """All subscriptions, by client id; a part of the state."""

    name = PART

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        """Called with each change after it has happened."""
        self.signs: list[Callable[[bytes], None]] = []
        """Called with each connector that gives a sign of life."""
        self._kept: dict[bytes, Subscription] = {}
        self._ids: dict[bytes, bytes] = {}
        self._parts: dict[bytes, tuple[bytes, Label]] = {}
        """The client and the label of each part, for clients that have more than an unnamed subscription."""
        self._plain = 0
        self._plain_fences: dict[bytes, tuple[bytes, Label]] = {}
        """The same for clients that have only an unnamed subscription, with a fence."""
        self.tracks: Counter[Track] = Counter()
        """The tracks that fences need, and how many subscriptions need each."""

    def __len__(self) -> int:
        """The number of parts: each takes a place in the index."""
        return self._plain + len(self._parts)

    def __contains__(self, client: object) -> bool:
        return client in self._kept

    def __iter__(self) -> Iterator[tuple[bytes, Subscription]]:
        return iter(self._kept.items())

    def clients(self) -> Iterable[bytes]:
        """The clients that have a subscription."""
        return self._kept.keys()

    def get(self, client: bytes) -> Subscription | None:
        """A client's subscriptions."""
        return self._kept.get(client)

    def find_part(self, part: bytes) -> tuple[bytes, Label]:
        """The client that a part belongs to, and the label that it gets."""
        return self._parts.get(part) or self._plain_fences.get(part) or (part, UNNAMED)

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        """Follow a ``subscription`` entry; skip an invalid one."""
        try:
            client = parse_client_id(name) if name else b""
            order = msgspec.json.decode(payload, type=_Order)
            connector = sized("connector", order.connector.encode("ascii"), NODE_ID_BYTES)
            orders = _ordered(order)
            old = self._kept.get(client)
            named = {} if order.only or old is None else dict(old.by_name)
            count, vertices = sum(map(len, orders.values())), sum(map(weight_of, orders.values()))
            if named and old is not None:
                replaced = [old.alternatives(name) for name in orders]
                count += old.part_count - sum(map(len, replaced))
                vertices += old.weight - sum(map(weight_of, replaced))
            if count > MAX_PARTS:
                raise LimitError("sdk", "alternatives of all subscriptions", count, MAX_PARTS)
            parts = parts_of(client, orders)
            if clash := next((part for part in parts if self._is_foreign(part, client)), None):
                raise MalformedError("sdk", "id", clash.hex(), "not another client's")
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
        if order.expired is not None:
            if old is not None and old.op == order.expired:
                self._set(client, None)
        elif orders or order.only:
            for name, alternatives in orders.items():
                if alternatives:
                    named[name] = msgspec.json.encode(alternatives)
                else:
                    named.pop(name, None)
            kept = self._subscription(connector, seq, op, named, count, vertices)
            self._set(client, kept if named else None)
        elif order.fields is None and old is not None:
            self._set(client, old._replace(connector=self._same(connector), seq=seq, op=op))

    def freeze(self) -> Iterator[bytes]:
        """Return the pieces of the snapshot's section, which a thread makes."""
        clients, kept = list(self._kept), list(self._kept.values())

        def row(place: int) -> _Row:
            connector, seq, op, packed, *_ = kept[place]
            whole = packed if isinstance(packed, bytes) else _pack(kept[place].named)
            return clients[place], connector, seq, op, whole

        return rows(range(len(clients)), lambda some: list(map(row, some)))

    def load(self, section: bytes) -> None:
        """Take the subscriptions over from a snapshot."""
        for client in list(self._kept):
            self._set(client, None)
        self.add(msgspec.msgpack.decode(section, type=_Rows))

    def add(self, rows: Iterable[_Row]) -> None:
        """Take over subscriptions: client, connector, number and position of the last change, packed form."""
        for client, connector, seq, op, packed in rows:
            if packed.startswith(b"{"):
                vertices = weight_of([msgspec.json.decode(packed, type=Fields)]) if POLYGON in packed else 0
                self._set(client, Subscription(self._same(connector), seq, op, packed, weight=vertices))
                continue
            named = dict(msgspec.json.decode(packed, type=list[tuple[str, list[Fields]]]))
            alternatives = {name: msgspec.json.encode(each) for name, each in named.items()}
            count, vertices = sum(map(len, named.values())), sum(map(weight_of, named.values()))
            self._set(client, self._subscription(connector, seq, op, alternatives, count, vertices))

    def _subscription(
        self, connector: bytes, seq: int, op: int, named: dict[str, bytes], count: int, vertices: int
    ) -> Subscription:
        # The usual form takes the least memory.
        packed = named[""][1:-1] if count == 1 and "" in named else named
        return Subscription(self._same(connector), seq, op, packed, count, vertices)

    def _set(self, client: bytes, new: Subscription | None) -> None:
        old = self._kept.pop(client, None)
        names = _changed({} if old is None else old.by_name, {} if new is None else new.by_name)
        # A plain one has no part of its own here: then there are all to note, or none.
        some = names if not (old is None or old.is_plain or new is None or new.is_plain) else None
        if old is not None:
            if old.is_plain:
                self._plain -= 1
                self._plain_fences.pop(client, None)
            else:
                for part in old.parts(client, some):
                    del self._parts[part]
        if new is not None:
            self._kept[client] = new
            if isinstance(new.packed, bytes):
                self._plain += 1
                if FENCE in new.packed:
                    self._plain_fences[client] = client, new.parts(client)[client].label
            else:
                parts = new.parts(client, some)
                self._parts.update((part, (client, each.label)) for part, each in parts.items())
        if old is not None:
            self.tracks -= old.tracks(names)
        if new is not None:
            self.tracks += new.tracks(names)
        if old is not None or new is not None:
            change = SubscriptionChange(client, old, new, names)
            for observer in self.observers:
                observer(change)

    def _is_foreign(self, part: bytes, client: bytes) -> bool:
        """Whether another client, or a part of another, is known by this id."""
        return (part != client and part in self._kept) or self._parts.get(part, (client,))[0] != client

    def _same(self, connector: bytes) -> bytes:
        """Return one shared object for each connector's id."""
        return self._ids.setdefault(connector, connector)


def rows_of_tables(pieces: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    """Turn the rows of :func:`tables` into what :meth:`Subscriptions.add` takes; a client's rows are adjacent."""
    names = SUBSCRIPTIONS.names
    every = (
        row
        for piece in pieces
        for row in zip(*(piece.column(name).to_pylist() for name in names), strict=True)
    )
    for (client, connector, seq, op), parts in groupby(every, itemgetter(0, 1, 2, 3)):
        named: Named = {}
        for *_, name, fields in parts:
            named.setdefault(name, []).append(dict(fields))
        yield bytes.fromhex(client), connector.encode(), seq, op, _pack(named)


def tables(subscriptions: Iterable[tuple[bytes, Subscription]]) -> Iterator[pa.RecordBatch]:
    """Subscriptions as rows of the matcher's table, in pieces of bounded size."""
    some: list[tuple[bytes, Subscription]] = []
    size = 0
    for each in subscriptions:
        some.append(each)
        size += sum(map(len, each[1].by_name.values()))
        if len(some) >= MAX_ROWS or size >= MAX_TABLE_BYTES:
            yield _table(some)
            some, size = [], 0
    if some:
        yield _table(some)


def _table(subscriptions: Sequence[tuple[bytes, Subscription]]) -> pa.RecordBatch:
    rows = [
        (client.hex(), kept.connector.decode(), kept.seq, kept.op, name, list(fields.items()))
        for client, kept in subscriptions
        for name, alternatives in kept.named.items()
        for fields in alternatives
    ]
    columns = [
        pa.array(column, each.type)
        for column, each in zip(zip(*rows, strict=True), SUBSCRIPTIONS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SUBSCRIPTIONS)


def subscribe(client: bytes, connector: bytes, fields: Fields) -> Batch:
    """Make the log entry that replaces a client's unnamed subscription or, without fields, withdraws it."""
    return _entry(client, _Order(connector.decode(), fields))


def change(client: bytes, connector: bytes, named: Named) -> Batch:
    """Make the log entry that replaces some of a client's subscriptions; one without alternatives is withdrawn."""
    match named:
        case {"": ([] | [_]) as unnamed, **others} if not others:
            return subscribe(client, connector, unnamed[0] if unnamed else {})
        case _:
            return _entry(client, _Order(connector.decode(), named=named))


def replace(client: bytes, connector: bytes, named: Named) -> Batch:
    """Make the log entry that replaces all of a client's subscriptions."""
    return _entry(client, _Order(connector.decode(), named=named, only=True))


def move(client: bytes, connector: bytes) -> Batch:
    """Make the log entry of a client that is at another connector now."""
    return _entry(client, _Order(connector.decode()))


def expire(client: bytes, op: int) -> Batch:
    """Make the log entry that withdraws a client's subscriptions unless they changed after the entry at ``op``."""
    return _entry(client, _Order(expired=op))


def alive(connector: bytes) -> Batch:
    """Make the log entry that is a connector's sign of life."""
    return entry(PART, "", msgspec.json.encode(_Order(connector.decode())))


def _entry(client: bytes, order: _Order) -> Batch:
    return entry(PART, client_id_text(client), msgspec.json.encode(order))


class _Order(msgspec.Struct, frozen=True, omit_defaults=True):
    connector: str = " " * NODE_ID_BYTES
    fields: Fields | None = None
    expired: int | None = None
    named: Named | None = None
    only: bool = False


def _ordered(order: _Order) -> Named:
    """The subscriptions that an order replaces, checked."""
    named = order.named or {}
    if order.fields is not None:
        named = {"": [order.fields] if order.fields else []}
    for name, alternatives in named.items():
        if name:
            serialize_subscription_name(name)
        if len(alternatives) > MAX_ALTERNATIVES:
            raise LimitError("sdk", "alternatives", len(alternatives), MAX_ALTERNATIVES)
        for fields in alternatives:
            parse_fields(fields)
            if not fields:
                raise MalformedError("sdk", "alternatives", name, "each names an attribute")
    return named


def _changed(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> tuple[str, ...]:
    return tuple(name for name in {**old, **new} if old.get(name) != new.get(name))


def _pack(named: Named) -> bytes:
    """Pack subscriptions; the usual one, unnamed and without alternatives, shortest. Nothing packs to nothing."""
    match named:
        case {"": [fields], **others} if not others:
            return msgspec.json.encode(fields)
        case _:
            return msgspec.json.encode(list(named.items())) if named else b""


_Row = tuple[bytes, bytes, int, int, bytes]
_Rows = list[_Row]
