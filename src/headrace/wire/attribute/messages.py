"""The attribute family's messages at the dispatcher, router and status doors.

A matched message travels from matcher to dispatcher to connector as a push: its MsgId, its payload and the
clients it is for. The legs have nearly the same items and differ in what an entry of the client list is, so
each has its type, and each door the decoder for what may come there. The layout of the bytes is in
:mod:`headrace.wire.attribute.items`; a push that does not fit one message is split and joined in
:mod:`headrace.wire.attribute.push_parts`; the publisher door is in :mod:`headrace.wire.attribute.publish`.

Invariants:

- Ids (of messages, clients, connectors, nodes) are bytes of a fixed length, and a client list is its entries
  side by side, just as on the wire: nothing is made per client.
- A message that parses can be serialized again. The bytes may differ (items in our order, no unknown ones);
  what they say does not.
"""

from __future__ import annotations

import binascii
import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

from headrace.errors import LimitError, MalformedError
from headrace.message import MAX_SEQUENCE
from headrace.wire.attribute.items import (
    UNUSED_EXTRA,
    DoorDecoder,
    Items,
    encode_text,
    entries,
    required,
    required_text,
    serialize_message,
    sized,
)

MSG_ID_BYTES = 12
CLIENT_ID_BYTES = 12

NODE_ID_BYTES = 8
"""Connectors and dispatchers are known by 8 ASCII bytes."""

ROUTE_BYTES = CLIENT_ID_BYTES + NODE_ID_BYTES
"""An entry of a matcher's client list: a client and the connector it is at."""

RING_BYTES = 20
"""A place on the ring of matchers: a SHA-1 digest."""

_TIMESTAMP = struct.Struct("!Q")

_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}")


class Extra(IntEnum):
    """Whether a push, or a heartbeat, is one message or a part of several. On receipt 0 also means ``SINGLE``."""

    SINGLE = 0x01
    HEAD = 0x02
    MID = 0x04
    TAIL = 0x08


class PushItem(IntEnum):
    """Item ids at the dispatcher and router doors."""

    MSG_ID = 1
    PAYLOAD = 2
    CLIENT_LIST = 3
    TIMESTAMP = 4
    NODE_ID = 5
    CONNECTOR_ID = 6
    RELYING = 7


class StatusItem(IntEnum):
    """Item ids at the status door."""

    HOSTNAME = 1
    BIND_ADDR = 2
    RPC_ADDR = 3
    START_HASH = 4
    SERF_NODE = 5
    VNODE_LIST = 6


@dataclass(frozen=True, slots=True)
class MatcherPush:
    """Matcher to dispatcher: an entry of ``clients`` is a client id and the id of its connector."""

    COMMAND: ClassVar[int] = 1
    ENTRY_BYTES: ClassVar[int] = ROUTE_BYTES

    msg_id: bytes
    payload: bytes = b""
    clients: bytes = b""
    extra: Extra = Extra.SINGLE


@dataclass(frozen=True, slots=True)
class DispatcherPush:
    """Dispatcher to dispatcher, for one connector or, where it names none, for all of the receiver's.

    An entry of ``clients`` is a client id. "This message can be sent to corresponding Connector directly": to it the
    same bytes are a :class:`Push`.
    """

    COMMAND: ClassVar[int] = 3
    ENTRY_BYTES: ClassVar[int] = CLIENT_ID_BYTES

    msg_id: bytes
    connector: bytes = b""
    payload: bytes = b""
    clients: bytes = b""
    extra: Extra = Extra.SINGLE


@dataclass(frozen=True, slots=True)
class Push:
    """Dispatcher to connector: an entry of ``clients`` is a client id."""

    COMMAND: ClassVar[int] = 3
    ENTRY_BYTES: ClassVar[int] = CLIENT_ID_BYTES

    msg_id: bytes
    payload: bytes = b""
    clients: bytes = b""
    extra: Extra = Extra.SINGLE


@dataclass(frozen=True, slots=True)
class Handshake:
    """Dispatcher to connector, and the connector's answer: the sender's own id.

    Our extension: a connector that is ``relying`` wants to know how far matchers are, by pushes to nobody. Other
    implementations skip that item.
    """

    COMMAND: ClassVar[int] = 1

    node: bytes
    relying: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """At the dispatcher and router doors: a sign of life; ``timestamp`` is in seconds.

    Our extension: a dispatcher also names the ``connectors`` it has, as ids side by side, and which of them are
    ``relying`` on pushes to nobody. Other implementations skip these items. Where they are too many for one message
    they come in parts, as pushes do (:mod:`headrace.wire.attribute.push_parts`).
    """

    COMMAND: ClassVar[int] = 2

    timestamp: int
    connectors: bytes = b""
    relying: bytes = b""
    extra: Extra = Extra.SINGLE

    @property
    def ends(self) -> bool:
        """Whether this is the last part, which is answered."""
        return self.extra in (Extra.SINGLE, Extra.TAIL)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Where a matcher is: its names and addresses, and the hash at which it starts on the ring."""

    COMMAND: ClassVar[int] = 1

    hostname: str
    bind_addr: str
    rpc_addr: str
    start_hash: bytes
    node: str


@dataclass(frozen=True, slots=True)
class VnodeInfo:
    """A matcher's virtual nodes: an entry of ``vnodes`` is a place on the ring."""

    COMMAND: ClassVar[int] = 2

    hostname: str
    node: str
    vnodes: bytes


AnyPush: TypeAlias = MatcherPush | DispatcherPush | Push
DispatcherMessage: TypeAlias = MatcherPush | Heartbeat | DispatcherPush
RouterMessage: TypeAlias = Handshake | Heartbeat | Push
ConnectorMessage: TypeAlias = Handshake | Heartbeat
StatusMessage: TypeAlias = NodeInfo | VnodeInfo
AttributeMessage: TypeAlias = DispatcherMessage | RouterMessage | StatusMessage


def serialize(message: AttributeMessage) -> bytes:
    """One message as its bytes; a push that does not fit one body has to be split before.

    >>> serialize(Handshake(b"node-001")).hex(" ")
    '01 00 0b 01 05 00 08 6e 6f 64 65 2d 30 30 31'
    """
    match message:
        case MatcherPush() | DispatcherPush() | Push():
            return serialize_message(message.COMMAND, message.extra, _push_items(message))
        case Handshake(node, relying):
            item = {PushItem.NODE_ID: _node_id("node", node)}
            if relying:
                item[PushItem.RELYING] = node
            return serialize_message(message.COMMAND, Extra.SINGLE, item)
        case Heartbeat(timestamp, connectors, relying, extra):
            if not 0 <= timestamp < 1 << 64:
                raise LimitError("attribute", "timestamp", timestamp, "64 bits unsigned")
            item = {PushItem.TIMESTAMP: _TIMESTAMP.pack(timestamp)}
            if connectors:
                item[PushItem.CONNECTOR_ID] = _node_ids("connectors", connectors)
            if relying:
                item[PushItem.RELYING] = _node_ids("relying", relying)
            return serialize_message(message.COMMAND, extra, item)
        case NodeInfo(hostname, bind_addr, rpc_addr, start_hash, node):
            items = {
                StatusItem.HOSTNAME: encode_text("hostname", hostname),
                StatusItem.BIND_ADDR: encode_text("bind_addr", bind_addr),
                StatusItem.RPC_ADDR: encode_text("rpc_addr", rpc_addr),
                StatusItem.START_HASH: sized("start_hash", start_hash, RING_BYTES).hex().encode(),
                StatusItem.SERF_NODE: encode_text("node", node),
            }
            return serialize_message(message.COMMAND, UNUSED_EXTRA, items)
        case VnodeInfo(hostname, node, vnodes):
            items = {
                StatusItem.HOSTNAME: encode_text("hostname", hostname),
                StatusItem.SERF_NODE: encode_text("node", node),
                StatusItem.VNODE_LIST: entries("vnodes", vnodes, RING_BYTES),
            }
            return serialize_message(message.COMMAND, UNUSED_EXTRA, items)


def msg_id(seq: int, node: int) -> bytes:
    """The MsgId of a message: the same wherever and however often it is sent.

    >>> msg_id(1000, 60396).hex(" ")
    '00 00 00 00 03 e8 eb ec 00 00 00 00'
    """
    if not 0 <= seq <= MAX_SEQUENCE:
        raise LimitError("attribute", "seq of a MsgId", seq, MAX_SEQUENCE)
    if not 0 <= node < 1 << 16:
        raise LimitError("attribute", "node of a MsgId", node, (1 << 16) - 1)
    return seq.to_bytes(6) + node.to_bytes(2) + bytes(4)


def parse_msg_id(value: bytes) -> tuple[int, int]:
    """The sequence number and the node in a MsgId.

    >>> parse_msg_id(msg_id(1000, 60396))
    (1000, 60396)
    """
    if not is_msg_id(value):
        raise MalformedError("attribute", "MsgId", value, "seq (6 bytes), node (2), four zero bytes")
    return int.from_bytes(value[:6]), int.from_bytes(value[6:8])


def is_msg_id(value: bytes) -> bool:
    """Whether a MsgId is of our form; others are passed on as they are."""
    return len(value) == MSG_ID_BYTES and not any(value[8:])


def seq_of(value: bytes) -> int | None:
    """The sequence number in a MsgId; ``None`` in one that is not of our form."""
    return int.from_bytes(value[:6]) if is_msg_id(value) else None


def unpack_clients(clients: bytes) -> list[bytes]:
    """The client list of a dispatcher as client ids."""
    entries("clients", clients, CLIENT_ID_BYTES)
    return [clients[at : at + CLIENT_ID_BYTES] for at in range(0, len(clients), CLIENT_ID_BYTES)]


class DispatcherDecoder(DoorDecoder[DispatcherMessage]):
    """What a dispatcher reads at its door, from matchers and other dispatchers."""

    def __init__(self) -> None:
        super().__init__(
            {
                MatcherPush.COMMAND: _parse_matcher_push,
                Heartbeat.COMMAND: _parse_heartbeat,
                DispatcherPush.COMMAND: _parse_dispatcher_push,
            }
        )


class RouterDecoder(DoorDecoder[RouterMessage]):
    """What a connector reads at its router door, from dispatchers."""

    def __init__(self) -> None:
        super().__init__(
            {
                Handshake.COMMAND: _parse_handshake,
                Heartbeat.COMMAND: _parse_heartbeat,
                Push.COMMAND: _parse_push,
            }
        )


class ConnectorDecoder(DoorDecoder[ConnectorMessage]):
    """What a dispatcher reads back from a connector's router door."""

    def __init__(self) -> None:
        super().__init__({Handshake.COMMAND: _parse_handshake, Heartbeat.COMMAND: _parse_heartbeat})


class StatusDecoder(DoorDecoder[StatusMessage]):
    """What is read at the status door, or from it."""

    def __init__(self) -> None:
        super().__init__({NodeInfo.COMMAND: _parse_node_info, VnodeInfo.COMMAND: _parse_vnode_info})


def _parse_matcher_push(extra: int, items: Items) -> MatcherPush:
    clients = _routes(items.get(PushItem.CLIENT_LIST, b""))
    return MatcherPush(_msg_id(items), items.get(PushItem.PAYLOAD, b""), clients, _part(extra))


def _parse_dispatcher_push(extra: int, items: Items) -> DispatcherPush:
    connector = items.get(PushItem.CONNECTOR_ID, b"")
    if PushItem.CONNECTOR_ID in items:
        _node_id("connector", connector)
    push = _parse_push(extra, items)
    return DispatcherPush(push.msg_id, connector, push.payload, push.clients, push.extra)


def _parse_push(extra: int, items: Items) -> Push:
    clients = entries("clients", items.get(PushItem.CLIENT_LIST, b""), CLIENT_ID_BYTES)
    return Push(_msg_id(items), items.get(PushItem.PAYLOAD, b""), clients, _part(extra))


def _parse_handshake(extra: int, items: Items) -> Handshake:
    _whole(extra)
    node = _node_id("node", required(items, PushItem.NODE_ID))
    return Handshake(node, items.get(PushItem.RELYING) == node)


def _parse_heartbeat(extra: int, items: Items) -> Heartbeat:
    timestamp = sized("timestamp", required(items, PushItem.TIMESTAMP), _TIMESTAMP.size)
    connectors = _node_ids("connectors", items.get(PushItem.CONNECTOR_ID, b""))
    relying = _node_ids("relying", items.get(PushItem.RELYING, b""))
    return Heartbeat(int.from_bytes(timestamp), connectors, relying, _part(extra))


def _parse_node_info(_extra: int, items: Items) -> NodeInfo:
    return NodeInfo(
        hostname=required_text(items, StatusItem.HOSTNAME),
        bind_addr=required_text(items, StatusItem.BIND_ADDR),
        rpc_addr=required_text(items, StatusItem.RPC_ADDR),
        start_hash=_start_hash(required_text(items, StatusItem.START_HASH)),
        node=required_text(items, StatusItem.SERF_NODE),
    )


def _parse_vnode_info(_extra: int, items: Items) -> VnodeInfo:
    return VnodeInfo(
        hostname=required_text(items, StatusItem.HOSTNAME),
        node=required_text(items, StatusItem.SERF_NODE),
        vnodes=_vnodes(required(items, StatusItem.VNODE_LIST)),
    )


def _push_items(push: AnyPush) -> dict[PushItem, bytes]:
    items = {PushItem.MSG_ID: sized("MsgId", push.msg_id, MSG_ID_BYTES)}
    # A Mid or a Tail has a payload item only where the payload itself is split.
    if push.payload or push.extra in (Extra.SINGLE, Extra.HEAD):
        items[PushItem.PAYLOAD] = push.payload
    if isinstance(push, DispatcherPush) and push.connector:
        items[PushItem.CONNECTOR_ID] = _node_id("connector", push.connector)
    if isinstance(push, MatcherPush):
        clients = _routes(push.clients)
    else:
        clients = entries("clients", push.clients, CLIENT_ID_BYTES)
    if clients:
        items[PushItem.CLIENT_LIST] = clients
    return items


def _part(extra: int) -> Extra:
    if extra == UNUSED_EXTRA:
        return Extra.SINGLE
    try:
        return Extra(extra)
    except ValueError:
        raise MalformedError("attribute", "extra", extra, "one of 0, 1, 2, 4 and 8") from None


def _whole(extra: int) -> None:
    if _part(extra) is not Extra.SINGLE:
        raise MalformedError("attribute", "extra", extra, "0 or 1, for this message has no parts")


def _msg_id(items: Items) -> bytes:
    return sized("MsgId", required(items, PushItem.MSG_ID), MSG_ID_BYTES)


def _node_id(field: str, content: bytes) -> bytes:
    if not sized(field, content, NODE_ID_BYTES).isascii():
        raise MalformedError("attribute", field, content, "ASCII")
    return content


def _node_ids(field: str, content: bytes) -> bytes:
    if not entries(field, content, NODE_ID_BYTES).isascii():
        raise MalformedError("attribute", field, content, "ASCII")
    return content


def _routes(clients: bytes) -> bytes:
    entries("clients", clients, ROUTE_BYTES)
    # One stride per byte of the ids, however many entries there are.
    if not all(clients[at::ROUTE_BYTES].isascii() for at in range(CLIENT_ID_BYTES, ROUTE_BYTES)):
        raise MalformedError("attribute", "connector", clients, "ASCII in every entry")
    return clients


def _vnodes(content: bytes) -> bytes:
    """Places on the ring: the bytes themselves or, where their number cannot be that, base64."""
    if len(content) % RING_BYTES:
        # Of the whole list, or of each entry: then there is padding inside.
        texts = _BASE64.findall(content)
        if b"".join(texts) == content:
            with suppress(binascii.Error):
                content = b"".join(map(binascii.a2b_base64, texts))
    return entries("vnodes", content, RING_BYTES)


def _start_hash(text: str) -> bytes:
    try:
        start_hash = bytes.fromhex(text)
    except ValueError:
        start_hash = b""
    # fromhex() skips spaces, so the digits are counted as well.
    if len(start_hash) != RING_BYTES or len(text) != 2 * RING_BYTES:
        raise MalformedError("attribute", "start_hash", text, f"{2 * RING_BYTES} hex digits")
    return start_hash
