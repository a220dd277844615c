"""A client's subscriptions as values: their parts, each with an id for the matcher and a label for the client.

**Parts.** For a matcher, every alternative is a subscription of its own, which is identified by 12 bytes, like a
client. The only alternative of an unnamed subscription has the client's id, as in the protocol document; any other has
a hash of the client, the name and the alternative's place. The state tells which client a part belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headrace.wire.attribute.messages import CLIENT_ID_BYTES
from headrace.wire.sdk.fence import Fence, Track
from headrace.wire.sdk.predicate import (
    Predicate,
    Predicates,
    fence_of,
    parse_field,
    serialize_field,
    weight,
)

Fields: TypeAlias = dict[str, str]
"""The field JSON of each attribute that a subscription names."""

Named: TypeAlias = dict[str, list[Fields]]
"""The alternatives of each of a client's subscriptions, by name; the unnamed one's name is empty."""

FENCE: Final = b"fence"
POLYGON: Final = b"polygon"
"""Names in the JSON of predicates with polygons; most predicates have neither, and need not be parsed."""


class Label(NamedTuple):
    """What a client learns about a part that a message satisfies."""

    name: str = ""
    """The subscription's name."""
    event: str = ""
    """The event of its fence, if it has one."""


UNNAMED: Final = Label()


class Part(NamedTuple):
    """One alternative of a subscription: the matcher's unit."""

    name: str
    """The subscription's name."""
    fields: Fields

    @property
    def predicates(self) -> dict[str, Predicate]:
        """The fields, parsed."""
        return parse_fields(self.fields)

    @property
    def label(self) -> Label:
        """The label that the client gets."""
        fence = _fence(self.fields)
        return Label(self.name, "" if fence is None else fence[1].events[0])


class Subscription(NamedTuple):
    """A client's connector, the entry that last changed its subscriptions, and what they are."""

    connector: bytes
    seq: int
    """The message that the entry stands after."""
    op: int
    """The entry's own position in the log, by which it is told apart from others after the same message."""
    packed: bytes | dict[str, bytes]
    """The fields of an unnamed subscription, as JSON; or each subscription's alternatives, as JSON, by name.

    A client may have many subscriptions, and change one: the others are neither read nor written then."""
    part_count: int = 1
    """The number of parts."""
    weight: int = 0
    """The additional cost of its predicates: the vertices of polygons."""

    @property
    def by_name(self) -> dict[str, bytes]:
        """Each subscription's alternatives, as JSON; not to be changed."""
        return {"": b"[%b]" % self.packed} if isinstance(self.packed, bytes) else self.packed

    @property
    def named(self) -> Named:
        """The client's subscriptions."""
        return {name: self.alternatives(name) for name in self.by_name}

    @property
    def is_plain(self) -> bool:
        """Whether there is only an unnamed subscription without alternatives."""
        return isinstance(self.packed, bytes)

    def alternatives(self, name: str) -> list[Fields]:
        """The alternatives of one subscription; none if there is no such."""
        return msgspec.json.decode(self.by_name.get(name, b"[]"), type=list[Fields])

    def tracks(self, names: Iterable[str] | None = None) -> Counter[Track]:
        """The tracks that the fences of all subscriptions, or of some, need; and how many subscriptions need each."""
        if isinstance(self.packed, bytes) and FENCE not in self.packed:
            return Counter()
        by_name = self.by_name
        fenced = (name for name in (by_name if names is None else names) if FENCE in by_name.get(name, b""))
        return Counter(track for name in fenced for track in tracks_of(self.alternatives(name)))

    def parts(self, client: bytes, names: Iterable[str] | None = None) -> dict[bytes, Part]:
        """The parts of all subscriptions, or of some, by the ids that matchers know them by."""
        return parts_of(
            client, {name: self.alternatives(name) for name in (self.by_name if names is None else names)}
        )


def parse_fields(fields: Mapping[str, str]) -> dict[str, Predicate]:
    """Parse fields, by attribute."""
    return {name: parse_field(field.encode()) for name, field in fields.items()}


def serialize_fields(predicates: Predicates) -> Fields:
    """Write predicates as fields."""
    return {name: serialize_field(predicate).decode() for name, predicate in predicates.items()}


def tracks_of(alternatives: Iterable[Fields]) -> set[Track]:
    """The tracks that the fences of alternatives need."""
    return {fence.track(x) for x, fence in filter(None, map(_fence, alternatives))}


def weight_of(alternatives: Iterable[Fields]) -> int:
    """The cost of predicates besides their places in the index: one for each vertex of a polygon."""
    word = POLYGON.decode()
    return sum(
        weight(parse_fields(fields))
        for fields in alternatives
        if any(word in field for field in fields.values())
    )


def start_fences(alternatives: Iterable[Fields], after: int) -> list[Fields]:
    """The same alternatives with fences for which positions count after a message."""
    started = []
    for fields in alternatives:
        found = _fence(fields)
        if found is not None:
            x, fence = found
            fields = {**fields, x: serialize_field(replace(fence, after=after)).decode()}
        started.append(fields)
    return started


def _fence(fields: Fields) -> tuple[str, Fence] | None:
    word = FENCE.decode()
    return fence_of({name: parse_field(field.encode()) for name, field in fields.items() if word in field})


def parts_of(client: bytes, named: Named) -> dict[bytes, Part]:
    """The parts of a client's subscriptions, by the ids that matchers know them by."""
    return {
        _part_id(client, name, place): Part(name, fields)
        for name, alternatives in named.items()
        for place, fields in enumerate(alternatives)
    }


def _part_id(client: bytes, name: str, place: int) -> bytes:
    if not (name or place):
        return client
    return sha256(b"%b%d/%b" % (client, place, name.encode())).digest()[:CLIENT_ID_BYTES]
