"""The binary messages of the attribute family, door by door."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.attribute.client_lists import pack_routes
from tests.wire.golden import Golden, check_golden, cut, read_bytewise, read_whole
from tests.wire.outcome import outcome, traced_peak

from headrace.errors import LimitError, MalformedError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.attribute import publish
from headrace.wire.attribute.items import MAX_BODY, serialize_message
from headrace.wire.attribute.messages import (
    CLIENT_ID_BYTES,
    ROUTE_BYTES,
    AttributeMessage,
    ConnectorDecoder,
    DispatcherDecoder,
    DispatcherPush,
    Extra,
    Handshake,
    Heartbeat,
    MatcherPush,
    NodeInfo,
    Push,
    PushItem,
    RouterDecoder,
    StatusDecoder,
    StatusItem,
    VnodeInfo,
    msg_id,
    parse_msg_id,
    seq_of,
    serialize,
    unpack_clients,
)
from headrace.wire.attribute.publish import PublisherDecoder, Publishes
from headrace.wire.receive_buffer import Decoder

MSG_ID = msg_id(1000, 60396)
FOREIGN_ID = bytes.fromhex("5f3c0a10b1e24d7780c1a2ff")
CLIENT_1, CLIENT_2, CLIENT_3 = (bytes.fromhex(f"5f3c0a10b1e24d7780c1a20{n}") for n in (1, 2, 3))

GOLDEN = [
    Golden("attribute", "publish", Publishes([{"city": "Oslo", "degrees": -3.5}], Run.of([b"snow"]))),
    Golden(
        "attribute",
        "matcher push",
        MatcherPush(MSG_ID, b"snow", pack_routes([(CLIENT_1, b"conn-001"), (CLIENT_2, b"conn-002")])),
    ),
    Golden("attribute", "dispatcher push", DispatcherPush(MSG_ID, b"conn-001", b"snow", CLIENT_1 + CLIENT_3)),
    Golden(
        "attribute",
        "dispatcher push of the original",
        DispatcherPush(FOREIGN_ID, b"", b"snow", CLIENT_1 + CLIENT_3),
    ),
    Golden("attribute", "heartbeat", Heartbeat(1_700_000_000)),
    Golden("attribute", "handshake", Handshake(b"disp-001")),
    Golden(
        "attribute", "handshake of a connector that relies on marks", Handshake(b"conn-001", relying=True)
    ),
    Golden(
        "attribute", "heartbeat of a dispatcher", Heartbeat(1_700_000_000, b"conn-001conn-002", b"conn-002")
    ),
    Golden("attribute", "mark", Push(msg_id(1001, 60396))),
    Golden("attribute", "router push", Push(MSG_ID, b"snow", CLIENT_1 + CLIENT_3)),
    Golden("attribute", "push Head", Push(MSG_ID, b"sno", extra=Extra.HEAD)),
    Golden("attribute", "push Mid", Push(MSG_ID, b"w", CLIENT_1, Extra.MID)),
    Golden("attribute", "push Tail", Push(MSG_ID, b"", CLIENT_3, Extra.TAIL)),
    Golden(
        "attribute",
        "node info",
        NodeInfo("mill", "127.0.0.1:5500", "127.0.0.1:5501", b"\x40" + bytes(19), "Ivan"),
    ),
    Golden("attribute", "vnode info", VnodeInfo("mill", "Ivan", b"\x40" + bytes(19) + b"\x50" + bytes(19))),
]

DOORS: dict[str, list[Callable[[], Decoder[Any]]]] = {
    "publish": [PublisherDecoder],
    "matcher push": [DispatcherDecoder],
    "dispatcher push": [DispatcherDecoder],
    "dispatcher push of the original": [DispatcherDecoder],
    "heartbeat": [DispatcherDecoder, RouterDecoder, ConnectorDecoder],
    "handshake": [RouterDecoder, ConnectorDecoder],
    "handshake of a connector that relies on marks": [RouterDecoder, ConnectorDecoder],
    "heartbeat of a dispatcher": [DispatcherDecoder, RouterDecoder, ConnectorDecoder],
    "mark": [RouterDecoder],
    "router push": [RouterDecoder],
    "push Head": [RouterDecoder],
    "push Mid": [RouterDecoder],
    "push Tail": [RouterDecoder],
    "node info": [StatusDecoder],
    "vnode info": [StatusDecoder],
}
AT_DOORS = [pytest.param(golden, make, id=golden.name) for golden in GOLDEN for make in DOORS[golden.name]]

DECODERS: list[Callable[[], Decoder[Any]]] = [
    DispatcherDecoder,
    RouterDecoder,
    ConnectorDecoder,
    StatusDecoder,
]


def refusal(make: Callable[[], Decoder[Any]], wire: bytes) -> tuple[Any, ...]:
    """The facts of the error with which a door meets these bytes, read whole and byte by byte."""
    frames, error = outcome(make(), [wire])
    assert frames == []
    assert error is not None
    assert outcome(make(), (wire[i : i + 1] for i in range(len(wire)))) == ([], error)
    return error


# Golden bytes


@pytest.mark.parametrize(("golden", "make"), AT_DOORS)
def test_golden(golden: Golden, make: Callable[[], Decoder[Any]]) -> None:
    check_golden(golden, make, following=golden.wire[:3])
    assert read_whole(make(), golden.wire)[0] == golden.frame


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_is_what_we_write(golden: Golden) -> None:
    if isinstance(golden.frame, Publishes):
        assert publish.serialize_all(golden.frame) == golden.wire
    else:
        assert serialize(golden.frame) == golden.wire


@pytest.mark.parametrize(("golden", "make"), AT_DOORS)
def test_golden_again_and_again(golden: Golden, make: Callable[[], Decoder[Any]]) -> None:
    frames = read_bytewise(make(), golden.wire * 3)
    assert frames == [golden.frame] * 3


# Commands and extra


@pytest.mark.parametrize("make", DECODERS)
@pytest.mark.parametrize("command", [0, 4, 255])
def test_an_unknown_command_is_refused(make: Callable[[], Decoder[Any]], command: int) -> None:
    kind, protocol, field, value, _, offset = refusal(make, bytes((command, 0, 0, 1)))
    assert (kind, protocol, field, value, offset) == (MalformedError, "attribute", "command", command, 0)


@pytest.mark.parametrize(("make", "command"), [(StatusDecoder, 3), (ConnectorDecoder, 3)])
def test_a_command_of_another_door_is_unknown(make: Callable[[], Decoder[Any]], command: int) -> None:
    assert refusal(make, bytes((command, 0, 0, 1)))[2] == "command"


@pytest.mark.parametrize(("extra", "part"), [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8)])
def test_extra_of_a_push(extra: int, part: int) -> None:
    wire = bytearray(serialize(Push(MSG_ID, b"snow")))
    wire[3] = extra
    assert read_whole(RouterDecoder(), bytes(wire)) == [Push(MSG_ID, b"snow", extra=Extra(part))]


@pytest.mark.parametrize("extra", [3, 5, 16, 128, 255])
def test_any_other_extra_of_a_push_is_refused(extra: int) -> None:
    wire = bytearray(serialize(Push(MSG_ID, b"snow")))
    wire[3] = extra
    assert refusal(RouterDecoder, bytes(wire))[:4] == (MalformedError, "attribute", "extra", extra)


@pytest.mark.parametrize("extra", [2, 4, 8, 3])
def test_a_handshake_has_no_parts(extra: int) -> None:
    message = Handshake(b"disp-001")
    wire = bytearray(serialize(message))
    wire[3] = 0
    assert read_whole(RouterDecoder(), bytes(wire)) == [message]
    wire[3] = extra
    assert refusal(RouterDecoder, bytes(wire))[2] == "extra"


@pytest.mark.parametrize(("extra", "ends"), [(0, True), (1, True), (2, False), (4, False), (8, True)])
def test_a_heartbeat_may_be_a_part(extra: int, ends: bool) -> None:
    wire = bytearray(serialize(Heartbeat(7)))
    wire[3] = extra
    heartbeat = Heartbeat(7, extra=Extra(extra or 1))
    assert read_whole(RouterDecoder(), bytes(wire)) == [heartbeat]
    assert heartbeat.ends is ends
    assert serialize(heartbeat)[3] == (extra or 1)
    wire[3] = 3
    assert refusal(RouterDecoder, bytes(wire))[2] == "extra"


@pytest.mark.parametrize("extra", [0, 1, 2, 3, 255])
def test_extra_of_a_status_message_is_ignored(extra: int) -> None:
    info = VnodeInfo("mill", "Ivan", bytes(20))
    wire = bytearray(serialize(info))
    wire[3] = extra
    assert read_whole(StatusDecoder(), bytes(wire)) == [info]


# What an item may be


def message(command: int, *items: tuple[int, bytes]) -> bytes:
    body = b"".join(bytes((number,)) + len(content).to_bytes(2) + content for number, content in items)
    return bytes((command,)) + len(body).to_bytes(2) + b"\x01" + body


@pytest.mark.parametrize(
    ("make", "wire", "field"),
    [
        (RouterDecoder, message(3), "item 1"),
        (RouterDecoder, message(3, (2, b"snow"), (3, CLIENT_1)), "item 1"),
        (RouterDecoder, message(3, (1, MSG_ID[:-1])), "MsgId"),
        (RouterDecoder, message(3, (1, MSG_ID + b"\0")), "MsgId"),
        (RouterDecoder, message(3, (1, MSG_ID), (3, CLIENT_1[:-1])), "clients"),
        (RouterDecoder, message(3, (1, MSG_ID), (3, CLIENT_1 + b"\0")), "clients"),
        (DispatcherDecoder, message(1, (1, MSG_ID), (3, CLIENT_1)), "clients"),
        (DispatcherDecoder, message(1, (1, MSG_ID), (3, CLIENT_1 + b"conn-00\xff")), "connector"),
        (DispatcherDecoder, message(1, (1, MSG_ID), (3, CLIENT_1 + b"\x80onn-001")), "connector"),
        (DispatcherDecoder, message(3, (1, MSG_ID), (3, CLIENT_1), (6, b"")), "connector"),
        (DispatcherDecoder, message(3, (1, MSG_ID), (6, b"conn-0001")), "connector"),
        (DispatcherDecoder, message(3, (1, MSG_ID), (6, "cönn-01".encode())), "connector"),
        (RouterDecoder, message(1), "item 5"),
        (RouterDecoder, message(1, (5, b"")), "node"),
        (RouterDecoder, message(1, (5, b"disp-1")), "node"),
        (RouterDecoder, message(1, (5, b"disp-00\x80")), "node"),
        (RouterDecoder, message(2), "item 4"),
        (RouterDecoder, message(2, (4, bytes(7))), "timestamp"),
        (DispatcherDecoder, message(2, (4, bytes(9))), "timestamp"),
        (StatusDecoder, message(2, (1, b"mill"), (5, b"Ivan")), "item 6"),
        (StatusDecoder, message(2, (1, b"mill"), (5, b"Ivan"), (6, bytes(21))), "vnodes"),
        (StatusDecoder, message(2, (1, b"\xff"), (5, b"Ivan"), (6, b"")), "HOSTNAME"),
        (StatusDecoder, message(2, (5, b"Ivan"), (6, b"")), "item 1"),
    ],
)
def test_what_an_item_must_be(make: Callable[[], Decoder[Any]], wire: bytes, field: str) -> None:
    kind, protocol, found, _, _, offset = refusal(make, wire)
    assert (kind, protocol, found, offset) == (MalformedError, "attribute", field, 0)


@pytest.mark.parametrize(
    "text", [b"40" * 19, b"40" * 21, b"4g" + b"00" * 19, b"40 " * 20, b"40 00" * 8, "é".encode() * 20, b""]
)
def test_a_start_hash_is_40_hex_digits(text: bytes) -> None:
    items = [(1, b"h"), (2, b"b"), (3, b"r"), (4, text), (5, b"n")]
    assert refusal(StatusDecoder, message(1, *items))[2] == "start_hash"


def test_a_start_hash_may_have_capital_digits() -> None:
    items = [(1, b"h"), (2, b"b"), (3, b"r"), (4, b"AbCdEf" + b"00" * 17), (5, b"n")]
    [info] = read_whole(StatusDecoder(), message(1, *items))
    assert info.start_hash == bytes.fromhex("abcdef") + bytes(17)


def test_a_dispatcher_push_may_name_no_connector() -> None:
    wire = message(3, (1, MSG_ID), (2, b"snow"), (3, CLIENT_1))
    assert read_whole(DispatcherDecoder(), wire) == [DispatcherPush(MSG_ID, b"", b"snow", CLIENT_1)]


VNODES = b"".join(bytes([n]) * 20 for n in (0x40, 0x50))


@pytest.mark.parametrize("text", [b64encode(VNODES), b64encode(VNODES[:20]) + b64encode(VNODES[20:])])
def test_vnodes_may_be_base64_of_the_list_or_of_each(text: bytes) -> None:
    wire = message(2, (1, b"mill"), (5, b"Ivan"), (6, text))
    assert read_whole(StatusDecoder(), wire) == [VnodeInfo("mill", "Ivan", VNODES)]


@pytest.mark.parametrize("text", [b64encode(VNODES)[:-2], b64encode(VNODES[:-1]), b"!" + b64encode(VNODES)])
def test_what_is_no_list_of_vnodes(text: bytes) -> None:
    assert refusal(StatusDecoder, message(2, (1, b"mill"), (5, b"Ivan"), (6, text)))[2] == "vnodes"


def test_a_foreign_msg_id_has_no_number() -> None:
    assert seq_of(MSG_ID) == 1000
    assert seq_of(MSG_ID[:-1] + b"\1") is None
    assert seq_of(FOREIGN_ID) is None


def test_a_push_may_be_for_nobody_and_say_nothing() -> None:
    assert read_whole(RouterDecoder(), message(3, (1, MSG_ID))) == [Push(MSG_ID)]


def test_a_connector_reads_the_bytes_of_a_dispatcher_push_as_a_push() -> None:
    wire = serialize(DispatcherPush(MSG_ID, b"conn-001", b"snow", CLIENT_1))
    assert read_whole(RouterDecoder(), wire) == [Push(MSG_ID, b"snow", CLIENT_1)]


def test_an_error_names_the_byte_at_which_its_message_begins() -> None:
    good = serialize(Heartbeat(1))
    frames, error = outcome(RouterDecoder(), [good * 2 + message(3)])
    assert frames == [Heartbeat(1)] * 2
    assert error is not None
    assert error[-1] == 2 * len(good)


# Ids and client lists


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, 65535))
def test_a_msg_id_says_seq_and_node(seq: int, node: int) -> None:
    assert len(msg_id(seq, node)) == 12
    assert msg_id(seq, node).endswith(bytes(4))
    assert parse_msg_id(msg_id(seq, node)) == (seq, node)


@pytest.mark.parametrize(("seq", "node"), [(-1, 0), (MAX_SEQUENCE + 1, 0), (0, -1), (0, 65536)])
def test_a_msg_id_has_no_room_for_more(seq: int, node: int) -> None:
    with pytest.raises(LimitError):
        msg_id(seq, node)


@pytest.mark.parametrize("value", [b"", bytes(11), bytes(13), bytes(11) + b"\x01", bytes(8) + b"\x01\0\0\0"])
def test_what_is_no_msg_id_of_ours(value: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_msg_id(value)


def test_client_lists_are_entries_side_by_side() -> None:
    assert unpack_clients(CLIENT_1 + CLIENT_2) == [CLIENT_1, CLIENT_2]
    assert unpack_clients(b"") == []


@pytest.mark.parametrize(
    "act",
    [
        lambda: serialize(Push(MSG_ID, b"", CLIENT_1 + b"short")),
        lambda: serialize(MatcherPush(MSG_ID, b"", b"short" + b"conn-001")),
        lambda: serialize(MatcherPush(MSG_ID, b"", CLIENT_1 + b"conn-1")),
        lambda: serialize(MatcherPush(MSG_ID, b"", CLIENT_1 + b"conn-00\xff")),
        lambda: serialize(MatcherPush(MSG_ID, b"", bytes(12))),
        lambda: unpack_clients(bytes(13)),
    ],
)
def test_what_is_no_client_list(act: Callable[[], object]) -> None:
    with pytest.raises(MalformedError):
        act()


# What we do not write


@pytest.mark.parametrize(
    "wrong",
    [
        Push(b"short"),
        Push(MSG_ID, clients=bytes(13)),
        MatcherPush(MSG_ID, clients=bytes(12)),
        MatcherPush(MSG_ID, clients=b"\xff" * 20),
        DispatcherPush(MSG_ID, b"conn"),
        DispatcherPush(MSG_ID, b"conn-001", clients=bytes(20)),
        Handshake(b"too long for it"),
        Handshake(b"\xff" * 8),
        Heartbeat(1, b"too short"),
        Heartbeat(1, b"\xff" * 8),
        Heartbeat(1, b"", b"\xff" * 8),
        NodeInfo("\ud800", "", "", bytes(20), ""),
        NodeInfo("", "", "", bytes(19), ""),
        VnodeInfo("", "", bytes(19)),
    ],
)
def test_what_is_malformed_is_not_written(wrong: AttributeMessage) -> None:
    with pytest.raises(MalformedError) as caught:
        serialize(wrong)
    assert caught.value.protocol == "attribute"


@pytest.mark.parametrize(
    "wrong",
    [
        Push(MSG_ID, bytes(MAX_BODY - 15 - 3 + 1)),
        Push(MSG_ID, b"", bytes(12 * 170)),
        VnodeInfo("", "", bytes(20 * 100)),
        NodeInfo("x" * 70_000, "", "", bytes(20), ""),
        Heartbeat(-1),
        Heartbeat(1 << 64),
    ],
)
def test_what_does_not_fit_is_not_written(wrong: AttributeMessage) -> None:
    with pytest.raises(LimitError):
        serialize(wrong)


def test_a_body_of_exactly_the_limit() -> None:
    push = Push(MSG_ID, bytes(MAX_BODY - 15 - 3))
    wire = serialize(push)
    assert len(wire) == 4 + MAX_BODY
    assert read_whole(RouterDecoder(), wire) == [push]


# Anything at all

IDS = st.binary(min_size=12, max_size=12)
NODES = st.text(st.characters(max_codepoint=127), min_size=8, max_size=8).map(str.encode)
CLIENTS = st.lists(IDS, max_size=20).map(b"".join)
ROUTES = st.lists(st.tuples(IDS, NODES), max_size=20).map(pack_routes)
PAYLOADS = st.binary(max_size=200)
TEXTS = st.text(max_size=40)
RING = st.binary(min_size=20, max_size=20)

SOME_NODES = st.lists(NODES, max_size=100).map(b"".join)
HEARTBEATS = st.builds(Heartbeat, st.integers(0, (1 << 64) - 1), SOME_NODES, SOME_NODES)
MESSAGES: dict[Callable[[], Decoder[Any]], st.SearchStrategy[AttributeMessage]] = {
    DispatcherDecoder: st.one_of(
        st.builds(MatcherPush, IDS, PAYLOADS, ROUTES, st.sampled_from(Extra)),
        HEARTBEATS,
        st.builds(DispatcherPush, IDS, NODES | st.just(b""), PAYLOADS, CLIENTS, st.sampled_from(Extra)),
    ),
    RouterDecoder: st.one_of(
        st.builds(Handshake, NODES, st.booleans()),
        HEARTBEATS,
        st.builds(Push, IDS, PAYLOADS, CLIENTS, st.sampled_from(Extra)),
    ),
    ConnectorDecoder: st.one_of(st.builds(Handshake, NODES, st.booleans()), HEARTBEATS),
    StatusDecoder: st.one_of(
        st.builds(NodeInfo, TEXTS, TEXTS, TEXTS, RING, TEXTS),
        st.builds(VnodeInfo, TEXTS, TEXTS, st.lists(RING, max_size=16).map(b"".join)),
    ),
}
PLACES = st.lists(st.integers(0, 1 << 16), max_size=12)


@pytest.mark.parametrize("make", MESSAGES)
@given(data=st.data())
def test_what_is_written_is_read_back(make: Callable[[], Decoder[Any]], data: st.DataObject) -> None:
    messages = data.draw(st.lists(MESSAGES[make], max_size=5))
    wire = b"".join(map(serialize, messages))
    assert outcome(make(), cut(wire, data.draw(PLACES))) == (messages, None)


ITEMS = st.tuples(
    st.integers(0, 7),
    st.one_of(IDS, NODES, ROUTES, CLIENTS, st.binary(max_size=30), st.just(b"40" * 20)),
)


def near_messages(command: int, extra: int, items: Sequence[tuple[int, bytes]], damage: int) -> bytes:
    wire = bytearray(message(command, *items))
    wire[3] = extra
    if damage:
        wire[damage % len(wire)] ^= 1 + damage % 255
    return bytes(wire)


NEAR_MESSAGES = st.builds(
    near_messages,
    st.integers(0, 4),
    st.sampled_from([0, 1, 2, 4, 8, 1, 2, 4, 8, 16]),
    st.lists(ITEMS, max_size=6),
    st.one_of(st.just(0), st.integers(0, 1 << 16)),
)


@pytest.mark.parametrize("make", DECODERS)
@given(
    wire=st.one_of(st.binary(max_size=200), st.lists(NEAR_MESSAGES, max_size=4).map(b"".join)), places=PLACES
)
def test_any_chunking_reads_the_same(
    make: Callable[[], Decoder[Any]], wire: bytes, places: list[int]
) -> None:
    whole = outcome(make(), [wire])
    assert outcome(make(), cut(wire, places)) == whole
    for frame in whole[0]:
        assert read_whole(make(), serialize(frame)) == [frame]


@given(st.permutations(range(4)), IDS, PAYLOADS, CLIENTS, NODES)
def test_items_come_in_any_order(
    order: list[int], msg: bytes, payload: bytes, clients: bytes, connector: bytes
) -> None:
    items = [(1, msg), (2, payload), (3, clients), (6, connector)]
    wire = message(3, *(items[i] for i in order))
    assert read_whole(DispatcherDecoder(), wire) == [DispatcherPush(msg, connector, payload, clients)]


@given(
    st.lists(st.one_of(NEAR_MESSAGES, st.binary(max_size=2000)), max_size=40),
    st.integers(1, 3000),
    st.sampled_from(DECODERS),
)
def test_memory_stays_within_the_limits(
    pieces: list[bytes], step: int, make: Callable[[], Decoder[Any]]
) -> None:
    wire = b"".join(pieces)
    chunks = [wire[i : i + step] for i in range(0, len(wire), step)]
    assert traced_peak(make(), chunks) < 8 * (MAX_BODY + step) + 16_384


def test_a_length_over_the_limit_is_refused_before_its_bytes_come() -> None:
    kind, _, field, value, limit, offset = refusal(RouterDecoder, b"\x03\x07\xd1\x01")
    assert (kind, field, value, limit, offset) == (LimitError, "body length", 2001, MAX_BODY, 0)


def test_the_enumerations_are_the_documents() -> None:
    assert [extra.value for extra in Extra] == [0x01, 0x02, 0x04, 0x08]
    # Timestamp, node id and connector id fill what the document leaves open; 7 is an extension of ours.
    assert [item.value for item in PushItem] == [1, 2, 3, 4, 5, 6, 7]
    assert [item.value for item in StatusItem] == [1, 2, 3, 4, 5, 6]
    assert (CLIENT_ID_BYTES, ROUTE_BYTES, MAX_BODY) == (12, 20, 2000)


def test_a_part_without_payload_has_no_payload_item() -> None:
    head = serialize(Push(MSG_ID, b"", CLIENT_1, Extra.HEAD))
    tail = serialize(replace(Push(MSG_ID, b"", CLIENT_1), extra=Extra.TAIL))
    assert len(head) == len(tail) + 3
    assert tail == serialize_message(3, 8, {PushItem.MSG_ID: MSG_ID, PushItem.CLIENT_LIST: CLIENT_1})
