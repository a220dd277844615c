"""Parcels: how the nodes of a cluster speak to each other.

On the stream a parcel is one length byte *n*, *n* bytes of CBOR, and then its bulk: as many application bytes
as its body announces (a batch of messages, an authentication tag). The CBOR is the map of ``is_response``,
``parcel_type``, ``id`` (the sender's), ``size`` (of the encoded body) and ``body``; what bodies hold is in
:mod:`headrace.wire.parcel.body`.

Strategy: *n* bounds what a parcel costs, so it is read whole. One pass over its CBOR heads refuses whatever
parcels never hold (tags, indefinite lengths, lengths past the end, a second item), so that cbor2 neither acts
on a tag nor takes memory on a peer's word; the values are then checked field by field. Bulk is bounded by a
limit before a byte of it is kept, and handed over whole, with its parcel.

Invariants:

- ``parcel_type`` settles ``is_response`` and the kind of body; a parcel that contradicts itself is refused, except
  that a SeqRes that is no response is the SeqReq that the document calls so.
- What we write is exact: keys in declaration order, definite lengths, the shortest integers, ``size`` true.
- What we read may have its keys in any order, keys we do not know, and any ``size``.
- Discovery is strictly request and response on one stream, and only the node that opened a stream asks on it,
  so two requests never cross: :data:`DIALLER` and its mirror image :data:`LISTENER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, NoReturn

import cbor2

from headrace.errors import LimitError, MalformedError, WireError
from headrace.wire.parcel.body import (
    BODIES,
    EMPTY,
    Body,
    DscRes,
    Fault,
    NodeInfo,
    ProtoError,
    SeqReq,
    SeqRes,
    pack_body,
    unpack_body,
)
from headrace.wire.parcel.serde import (
    U16,
    U64,
    Bool,
    Text,
    anything,
    fields_of,
    struct,
    unpack_struct,
    unsigned,
)
from headrace.wire.receive_buffer import Decoder
from headrace.wire.state_machine import StateMachine

MAX_PARCEL = 255
"""What the length byte can say."""

MAX_BULK = 64 * 1024 * 1024
"""The longest bulk of a parcel that carries a batch."""

MAX_TAG = 64
"""The longest bulk of all other parcels: an authentication tag."""

MAX_REASON = 96
"""How much of a reason a ProtoError repeats, in bytes, so that it always fits."""

MAX_DEPTH = 8
"""How deep CBOR may nest; a DscRes takes 5."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One parcel: the sender's ``id``, what it says, and the bytes that follow it on the stream."""

    id: int
    body: Body
    bulk: bytes = b""

    @property
    def parcel_type(self) -> str:
        """The type's name on the wire."""
        return type(self.body).__name__

    @property
    def is_response(self) -> bool:
        """Whether parcels of this type answer another."""
        return self.body.is_response


class ParcelState(Enum):
    """The state of a stream, the same for both its ends."""

    IDLE = "idle"
    DISCOVERY = "discovery"
    RECOVERY = "sequence recovery"
    CLOSED = "closed"


class ParcelEvent(Enum):
    """A parcel sent or received, as far as the order of parcels is concerned."""

    SEND_DSC_REQ = "send DscReq"
    SEND_DSC_RES = "send DscRes"
    SEND_SEQ_REQ = "send SeqReq"
    SEND_SEQ_RES = "send SeqRes"
    SEND_PROTO_ERROR = "send ProtoError"
    SEND_OTHER = "send other"
    RECEIVE_DSC_REQ = "receive DscReq"
    RECEIVE_DSC_RES = "receive DscRes"
    RECEIVE_SEQ_REQ = "receive SeqReq"
    RECEIVE_SEQ_RES = "receive SeqRes"
    RECEIVE_PROTO_ERROR = "receive ProtoError"
    RECEIVE_OTHER = "receive other"

    @property
    def mirrored(self) -> ParcelEvent:
        """The same parcel as the other end of the stream sees it."""
        verb, _, what = self.value.partition(" ")
        return ParcelEvent(f"{'receive' if verb == 'send' else 'send'} {what}")


DIALLER: Mapping[tuple[ParcelState, ParcelEvent], ParcelState] = {
    # "Strict Request/Response on same TCP stream": nothing comes between DscReq and DscRes.
    (ParcelState.IDLE, ParcelEvent.SEND_DSC_REQ): ParcelState.DISCOVERY,
    (ParcelState.DISCOVERY, ParcelEvent.RECEIVE_DSC_RES): ParcelState.IDLE,
    # SeqReq is not called strict: heartbeats and replication go on meanwhile.
    (ParcelState.IDLE, ParcelEvent.SEND_SEQ_REQ): ParcelState.RECOVERY,
    (ParcelState.RECOVERY, ParcelEvent.RECEIVE_SEQ_RES): ParcelState.IDLE,
    (ParcelState.IDLE, ParcelEvent.SEND_OTHER): ParcelState.IDLE,
    (ParcelState.IDLE, ParcelEvent.RECEIVE_OTHER): ParcelState.IDLE,
    (ParcelState.RECOVERY, ParcelEvent.SEND_OTHER): ParcelState.RECOVERY,
    (ParcelState.RECOVERY, ParcelEvent.RECEIVE_OTHER): ParcelState.RECOVERY,
    # A node that refuses says so and closes.
    (ParcelState.IDLE, ParcelEvent.SEND_PROTO_ERROR): ParcelState.CLOSED,
    (ParcelState.IDLE, ParcelEvent.RECEIVE_PROTO_ERROR): ParcelState.CLOSED,
    (ParcelState.DISCOVERY, ParcelEvent.SEND_PROTO_ERROR): ParcelState.CLOSED,
    (ParcelState.DISCOVERY, ParcelEvent.RECEIVE_PROTO_ERROR): ParcelState.CLOSED,
    (ParcelState.RECOVERY, ParcelEvent.SEND_PROTO_ERROR): ParcelState.CLOSED,
    (ParcelState.RECOVERY, ParcelEvent.RECEIVE_PROTO_ERROR): ParcelState.CLOSED,
}
"""The end that opened the stream."""

LISTENER: Mapping[tuple[ParcelState, ParcelEvent], ParcelState] = {
    (state, event.mirrored): after for (state, event), after in DIALLER.items()
}
"""The end that accepted the stream."""


class Exchange:
    """Which parcels may pass on one stream now; the stream's owner reports each before it acts on it."""

    __slots__ = ("_machine", "open")

    def __init__(self, table: Mapping[tuple[ParcelState, ParcelEvent], ParcelState]) -> None:
        self._machine = StateMachine("parcel", table, ParcelState.IDLE)
        self.open = True
        """Whether parcels that are not :attr:`~headrace.wire.parcel.body.Body.ordered` may pass, either way."""

    @property
    def state(self) -> ParcelState:
        """The state of the stream."""
        return self._machine.state

    def sent(self, body: Body) -> ParcelState:
        """Move by a parcel we send; one that may not pass now raises."""
        return self._step(_event("send", type(body).__name__))

    def received(self, body: Body) -> ParcelState:
        """Move by a parcel that came; one that may not pass now raises."""
        return self._step(_event("receive", type(body).__name__))

    def _step(self, event: ParcelEvent) -> ParcelState:
        state = self._machine.step(event)
        self.open = state in (ParcelState.IDLE, ParcelState.RECOVERY)
        return state


def serialize(parcel: Parcel) -> bytes:
    """One parcel, bulk included, as it goes on the stream."""
    return b"".join(serialize_parts(parcel))


def serialize_parts(parcel: Parcel) -> tuple[bytes, bytes]:
    """One parcel as its own bytes and its bulk, which is not copied."""
    return serialize_head(parcel.id, parcel.body, len(parcel.bulk)), parcel.bulk


def serialize_head(node: int, body: Body, bulk: int) -> bytes:
    """A parcel's own bytes, which ``bulk`` others follow."""
    limit = MAX_BULK if body.carries_batch else MAX_TAG
    if bulk > limit:
        raise LimitError("parcel", "bulk", bulk, limit)
    said = cbor2.dumps(pack_body(body, bulk))
    sender = cbor2.dumps(_ID.pack("ProtoParcel.id", node))
    kind = type(body).__name__
    beginning = _beginning(kind, body.is_response)
    encoded = b"".join((beginning, sender, _SIZE, cbor2.dumps(len(said)), _BODY, said))
    if len(encoded) > MAX_PARCEL:
        raise LimitError("parcel", kind, len(encoded), MAX_PARCEL)
    return bytes((len(encoded),)) + encoded


@cache
def _beginning(kind: str, is_response: bool) -> bytes:
    """The first bytes of a type's parcels, up to the sender's id: a map of five, and its first two entries."""
    facts = (_KEYS[0], is_response, _KEYS[1], kind, _KEYS[2])
    return b"".join((b"\xa5", *map(cbor2.dumps, facts)))


def parse_parcel(encoded: bytes) -> tuple[Parcel, int]:
    """Parse a parcel from the CBOR after its length byte; return it and how many bytes of bulk follow."""
    envelope = unpack_struct(_ProtoParcel, "ProtoParcel", _load(encoded))
    if envelope.parcel_type == SeqRes.__name__ and not envelope.is_response and envelope.body == EMPTY:
        return Parcel(envelope.id, SeqReq()), 0
    body, bulk = unpack_body(envelope.parcel_type, envelope.body)
    if isinstance(body, SeqRes) and not envelope.is_response:
        # "Ivan can send a `SeqRes` to each of its neighbours", says the document of the request.
        return Parcel(envelope.id, SeqReq()), bulk
    if envelope.is_response != body.is_response:
        raise MalformedError(
            "parcel", "is_response", envelope.is_response, f"not so for a {envelope.parcel_type}"
        )
    return Parcel(envelope.id, body), bulk


def discovered(responder: NodeInfo, neighbours: Iterable[NodeInfo], *, tag: int = 0) -> Parcel:
    """The answer to a DscReq: the responder, then as many of its neighbours as fit, freshest first.

    ``neighbours`` leaves out the requester. ``tag`` is the length of the authentication tag that the caller
    is going to add as bulk, so that there is room to announce it. A neighbour too long for what is left does
    not keep out the shorter ones after it; those left out are found by asking the others in turn.
    """
    alone = Parcel(responder.id, DscRes((responder,)), bytes(tag))
    room = MAX_PARCEL + 1 - len(serialize_parts(alone)[0])
    listed = [responder]
    for node in neighbours:
        size = len(cbor2.dumps(_NODE.pack("neighbours", node)))
        if size <= room:
            listed.append(node)
            room -= size
        if room < _SMALLEST_NODE:
            break
    return Parcel(responder.id, DscRes(tuple(listed)))


def refusal(node: int, fault: Fault, reason: str) -> Parcel:
    """A ProtoError whose reason is cut to what fits."""
    cut = reason.encode(errors="replace")[:MAX_REASON].decode(errors="ignore")
    return Parcel(node, ProtoError(fault, cut))


class ParcelDecoder(Decoder[Parcel]):
    """Reads parcels, each with its bulk; both ends of a stream read the same.

    ``max_bulk`` bounds the bulk of parcels that carry a batch. It may be changed between parcels, so that a
    session can take little from a stranger and more from a peer it knows.
    """

    def __init__(self, *, max_bulk: int = MAX_BULK) -> None:
        super().__init__()
        self.max_bulk = max_bulk
        self._begin = 0
        self._waiting: tuple[Parcel, int] | None = None

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete parcel and its bulk."""
        return self.inbox.position - self._begin + len(self.inbox)

    def _next(self) -> Parcel | None:
        if self._waiting is None:
            self._waiting = self._read_parcel()
            if self._waiting is None:
                return None
        parcel, bulk = self._waiting
        if len(self.inbox) < bulk:
            return None
        if bulk:
            parcel = Parcel(parcel.id, parcel.body, self.inbox.take(bulk))
        self._waiting = None
        self._begin = self.inbox.position
        return parcel

    def _read_parcel(self) -> tuple[Parcel, int] | None:
        if not self.inbox:
            return None
        length = self.inbox.peek(1)[0]
        if len(self.inbox) < 1 + length:
            return None
        try:
            parcel, bulk = parse_parcel(self.inbox.peek(length, 1))
            limit = self.max_bulk if parcel.body.carries_batch else MAX_TAG
            if bulk > limit:
                raise LimitError("parcel", "bulk", bulk, limit)
        except WireError as error:
            raise type(error)(
                error.protocol, error.field, error.value, error.limit, offset=self._begin
            ) from None
        self.inbox.skip(1 + length)
        return parcel, bulk


@dataclass(frozen=True, slots=True)
class _ProtoParcel:
    """The envelope; its fields are the keys in their order on the wire."""

    is_response: Bool
    parcel_type: Text
    id: U16
    size: U64  # a u16 when we write it; any value is accepted
    body: Annotated[Any, anything()]


_KEYS = [field.name for field in fields_of(_ProtoParcel)]
_SIZE, _BODY = (cbor2.dumps(key) for key in _KEYS[3:])
_ID = unsigned(16)


@cache
def _event(verb: str, kind: str) -> ParcelEvent:
    return ParcelEvent(f"{verb} {kind if kind in _ORDERED else 'other'}")


_ORDERED = frozenset(name for name, body in BODIES.items() if body.ordered)


_BYTES, _TEXT, _ARRAY, _MAP, _TAG = 2, 3, 4, 5, 6
"""CBOR's major types, as far as they change what follows."""


def _load(encoded: bytes) -> Any:
    """The one CBOR item that ``encoded`` is, made of definite lengths and no tags."""
    at, end, items = 0, len(encoded), 1
    while items:
        if items > end - at:  # each item takes at least its head's byte
            _refuse(encoded, "it ends before its last item")
        size, within = _SHORT[encoded[at]]
        if not size:
            size, within = _long_item(encoded, at)
        at += size
        items += within - 1
    if at != end:
        _refuse(encoded, "it must be exactly one item")
    try:
        return cbor2.loads(encoded, max_depth=MAX_DEPTH, allow_duplicate_keys=False)
    except cbor2.CBORDecodeError as error:
        _refuse(encoded, str(error))


def _short_item(head: int) -> tuple[int, int]:
    """How far to go for an item whose head says it all, and how many items are in it; nowhere for all others."""
    major, information = head >> 5, head & 0x1F
    counts = major in (_BYTES, _TEXT, _ARRAY, _MAP)
    if major == _TAG or information > 27 or (counts and information > 23):
        return 0, 0
    if information > 23:  # a number, which follows
        return 1 + (1 << (information - 24)), 0
    size = 1 + information if major in (_BYTES, _TEXT) else 1
    return size, {_ARRAY: 1, _MAP: 2}.get(major, 0) * information


_SHORT: Final = tuple(map(_short_item, range(256)))
"""Nearly every item of a parcel is a short one: looking it up is quicker than reading its head."""


def _long_item(encoded: bytes, at: int) -> tuple[int, int]:
    """The same for an item with an argument of its own."""
    major, information = encoded[at] >> 5, encoded[at] & 0x1F
    if major == _TAG:
        _refuse(encoded, "parcels have no tags")
    if information > 27:
        _refuse(encoded, "lengths must be definite")
    width = 1 << (information - 24)
    argument = int.from_bytes(encoded[at + 1 : at + 1 + width])
    size = argument if major in (_BYTES, _TEXT) else 0
    return 1 + width + size, {_ARRAY: 1, _MAP: 2}.get(major, 0) * argument


def _refuse(encoded: bytes, rule: str) -> NoReturn:
    raise MalformedError("parcel", "CBOR", encoded, rule) from None


_NODE = struct(NodeInfo)
_SMALLEST_NODE = len(cbor2.dumps({"id": 0, "mode": "DSC", "name": "", "host": "a"}))
