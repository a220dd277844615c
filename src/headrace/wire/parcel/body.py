"""The contents of parcels: the node information object, and one body for each parcel type.

A body is a frozen dataclass named as its parcel type; its fields are the keys on the wire, and their annotations
say how each travels (:mod:`headrace.wire.parcel.serde`). A new parcel type is a class here and its name in
:data:`Body`: nothing else lists them.

On the wire a body is ``{Type: {fields}}``, or the text ``Empty`` when it has no fields or all of them have their
defaults. Bytes that follow a parcel on the stream, its *bulk*, are announced by one more key, ``bulk``, after
the fields; since every body can have it, every parcel can carry an authentication tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeAlias, get_args

from headrace.errors import MalformedError
from headrace.protocols import PORTS
from headrace.wire.parcel.serde import (
    U16,
    U64,
    Shape,
    Text,
    fields_of,
    list_of,
    one_of,
    pack_struct,
    struct,
    text,
    unpack_struct,
    unsigned,
)

PORT = PORTS["parcel"]

MAX_NAME = 64
"""The longest node name in bytes. With :data:`MAX_HOST` it makes sure that any one node fits a parcel."""

MAX_HOST = 64
"""The longest host in bytes; an IPv6 address in brackets with its port takes up to 47."""

EMPTY = "Empty"
BULK = "bulk"


def _host() -> Shape:
    plain = text(MAX_HOST)

    def check(name: str, value: object) -> str:
        host: str = plain.unpack(name, value)
        parse_host(host, name)
        return host

    return Shape(check, check)


class Mode(Enum):
    """A node's general status: discovery, work, error."""

    DSC = "DSC"
    WRK = "WRK"
    ERR = "ERR"


class Fault(Enum):
    """The kind of error that a ProtoError reports."""

    BAD_RES = "BadRes"
    BAD_REQ = "BadReq"


NodeMode = Annotated[Mode, one_of(Mode)]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The information object by which nodes know each other; ``host`` is "ip" or "ip:port"."""

    id: U16
    mode: NodeMode
    name: Annotated[str, text(MAX_NAME)]
    host: Annotated[str, _host()]

    @property
    def address(self) -> tuple[str, int]:
        """Where the node listens.

        >>> NodeInfo(60396, Mode.WRK, "Ivan", "127.0.0.1").address
        ('127.0.0.1', 7878)
        """
        return parse_host(self.host)


class _Body:
    """Properties of all parcels with this body."""

    __slots__ = ()

    is_response: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    """Whether the state of a stream depends on it; others may pass whenever the stream is open."""
    carries_batch: ClassVar[bool] = False
    """Whether its bulk may hold part of a log; that of other parcels is at most an authentication tag."""


@dataclass(frozen=True, slots=True)
class DscReq(_Body):
    """Discovery: the sender's identity, and a question for neighbours. Answered by DscRes on the same stream."""

    ordered = True
    identity: Annotated[NodeInfo, struct(NodeInfo)]


@dataclass(frozen=True, slots=True)
class DscRes(_Body):
    """The responder, whose mode is its general status, and as many of its neighbours as fit."""

    ordered = True
    is_response = True
    neighbours: Annotated[tuple[NodeInfo, ...], list_of(struct(NodeInfo))]


@dataclass(frozen=True, slots=True)
class SeqReq(_Body):
    """Sequence recovery: asks for the sequence number."""

    ordered = True


@dataclass(frozen=True, slots=True)
class SeqRes(_Body):
    """The responder's sequence number."""

    ordered = True
    is_response = True
    seq_number: U64


@dataclass(frozen=True, slots=True)
class ProtoError(_Body):
    """A refusal, after which the stream closes. With its defaults, an Empty body."""

    ordered = True
    is_response = True
    error: Annotated[Fault, one_of(Fault)] = Fault.BAD_REQ
    reason: Text = ""


@dataclass(frozen=True, slots=True)
class StateChange(_Body):
    """The sender's mode is now this."""

    mode: NodeMode


@dataclass(frozen=True, slots=True)
class Ping(_Body):
    """A heartbeat."""


@dataclass(frozen=True, slots=True)
class Pong(_Body):
    """The answer to a heartbeat."""

    is_response = True


@dataclass(frozen=True, slots=True)
class Publish(_Body):
    """A node passes a batch (the bulk) to the view's primary; ``request`` numbers the sender's own."""

    carries_batch = True
    view: U64
    request: U64


@dataclass(frozen=True, slots=True)
class Ack(_Body):
    """The primary: the batch of ``request`` is committed, as sequence numbers ``first`` to ``last``.

    The bulk says what numbers cannot: that they are no longer known, or why the batch was refused.
    """

    is_response = True
    carries_batch = True
    view: U64
    request: U64
    first: U64
    last: U64


@dataclass(frozen=True, slots=True)
class Prepare(_Body):
    """The primary appended operations ``first`` to ``last`` (the bulk); all up to ``commit`` is committed.

    Here and below, ``first``, ``last`` and ``commit`` count the log's operations, messages and entries alike. Sequence
    numbers, which messages alone have, are in the bulk.
    """

    carries_batch = True
    view: U64
    first: U64
    last: U64
    commit: U64


@dataclass(frozen=True, slots=True)
class PrepareOk(_Body):
    """A backup has appended everything up to ``last``."""

    is_response = True
    view: U64
    last: U64


@dataclass(frozen=True, slots=True)
class Commit(_Body):
    """The primary, when there is nothing to prepare: its log ends at ``last``, all up to ``commit`` is committed."""

    view: U64
    last: U64
    commit: U64


@dataclass(frozen=True, slots=True)
class StartViewChange(_Body):
    """The sender wants to move from the view before to ``view``."""

    view: U64


@dataclass(frozen=True, slots=True)
class DoViewChange(_Body):
    """To the primary of ``view``: how far the sender's log goes, and in which view it was last normal.

    Its bulk, like that of StartView and RecoveryResponse, tells which view wrote which part of the sender's log.
    """

    carries_batch = True
    view: U64
    last_normal: U64
    last: U64
    commit: U64


@dataclass(frozen=True, slots=True)
class StartView(_Body):
    """The primary of ``view``: the log that the view starts from ends at ``last``."""

    carries_batch = True
    view: U64
    last: U64
    commit: U64


@dataclass(frozen=True, slots=True)
class Recovery(_Body):
    """A node that has lost its memory asks for the state; ``nonce`` tells its answers from older ones.

    ``incarnation`` numbers its lives: votes from an earlier one do not count any more.
    """

    nonce: U64
    incarnation: U64


@dataclass(frozen=True, slots=True)
class RecoveryResponse(_Body):
    """The answer to Recovery: where the sender stands. Only the log of the view's primary counts."""

    is_response = True
    carries_batch = True
    view: U64
    nonce: U64
    last: U64
    commit: U64


@dataclass(frozen=True, slots=True)
class GetState(_Body):
    """A node asks for what follows ``last`` in the log of ``view``."""

    view: U64
    last: U64


@dataclass(frozen=True, slots=True)
class NewState(_Body):
    """The answer to GetState: operations ``first`` to ``last`` (the bulk); without bulk, there is no more.

    A ``first`` beyond what was asked for is the oldest operation that the sender still has.
    """

    is_response = True
    carries_batch = True
    view: U64
    first: U64
    last: U64
    commit: U64


@dataclass(frozen=True, slots=True)
class GetSnapshot(_Body):
    """A node asks for a piece of a snapshot that reaches past ``after``; ``token`` numbers the sender's own."""

    token: U64
    after: U64
    offset: U64


@dataclass(frozen=True, slots=True)
class SnapshotPart(_Body):
    """The answer to GetSnapshot: a piece (the bulk) of the snapshot at ``op``, which has ``size`` bytes in all."""

    is_response = True
    carries_batch = True
    token: U64
    op: U64
    offset: U64
    size: U64


Discovery: TypeAlias = DscReq | DscRes | SeqReq | SeqRes | ProtoError | StateChange | Ping | Pong
Replication: TypeAlias = (
    Publish | Ack | Prepare | PrepareOk | Commit | StartViewChange | DoViewChange | StartView
    | Recovery | RecoveryResponse | GetState | NewState | GetSnapshot | SnapshotPart
)  # fmt: skip
Body: TypeAlias = Discovery | Replication

BODIES: Mapping[str, type[Body]] = {cls.__name__: cls for cls in get_args(Body)}
"""Every parcel type by its name on the wire."""


def pack_body(body: Body, bulk: int) -> Any:
    """A body as its CBOR value, announcing ``bulk`` bytes after its parcel."""
    name = type(body).__name__
    if bulk:
        return {name: {**pack_struct(name, body), BULK: bulk}}
    if all(getattr(body, field.name) == field.default for field in fields_of(type(body))):
        return EMPTY
    return {name: pack_struct(name, body)}


def unpack_body(parcel_type: str, value: object) -> tuple[Body, int]:
    """A body from its CBOR value, and how many bytes of bulk it announces."""
    cls = BODIES.get(parcel_type)
    if cls is None:
        raise MalformedError("parcel", "parcel_type", parcel_type, f"must be one of {', '.join(BODIES)}")
    if value == EMPTY:
        return unpack_struct(cls, parcel_type, {}), 0
    if not isinstance(value, dict) or list(value) != [parcel_type]:
        raise MalformedError("parcel", "body", value, f"must be the one of a {parcel_type}")
    inner = value[parcel_type]
    body = unpack_struct(cls, parcel_type, inner)
    return body, _BULK.unpack(BULK, inner.get(BULK, 0))


def parse_host(host: str, name: str = "host") -> tuple[str, int]:
    """A host as address and port: "ip", "ip:port", and an IPv6 address bare or in brackets.

    >>> parse_host("10.0.0.7:7001"), parse_host("[fe80::1]:7001"), parse_host("fe80::1")
    (('10.0.0.7', 7001), ('fe80::1', 7001), ('fe80::1', 7878))
    """
    found = _HOST.fullmatch(host)
    port = int((found and found["port"]) or PORT)
    if not found or not 0 < port < 1 << 16:
        raise MalformedError("parcel", name, host, 'must be "ip" or "ip:port"')
    return found["bracketed"] or found["name"] or found["bare"], port


_BULK = unsigned(64)
_HOST = re.compile(
    r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z_.-]+))(?::(?P<port>[0-9]{1,5}))?"
    r"|(?P<bare>[0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){2,})"
)
"""Addresses, and host names where a cluster uses them; no spaces, controls or other characters."""
