from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.fyrehose_frames import WRITTEN, by_name, frames
from tests.wire.golden import Golden

from headrace.errors import LimitError, MalformedError, WireError
from headrace.message import MAX_SEQUENCE
from headrace.wire.fyrehose.packet import (
    ANYWHERE,
    AT_CLIENT,
    AT_HUB,
    MAX_DATA,
    MAX_PACKET,
    Deliver,
    Forward,
    Frame,
    Keepalive,
    KeepaliveAck,
    Push,
    Request,
    packet_size,
    parse,
    read_example,
    serialize,
)

HERE = "127.0.0.1"


@given(frames)
def test_round_trip(frame: Frame) -> None:
    assert parse(serialize(frame)) == frame


@given(st.binary(max_size=40) | st.builds(lambda a, b: a + b, st.sampled_from([b"\1", b"\2"]), st.binary()))
def test_any_bytes_are_one_packet_or_refused(packet: bytes) -> None:
    try:
        frame = parse(packet)
    except WireError:
        return
    if isinstance(frame, Request | Forward) and packet[7:13] == bytes(6):
        assert frame.first == 1
    else:
        assert serialize(frame) == packet


@given(frames, st.binary(min_size=1, max_size=5))
def test_a_packet_is_exactly_one(frame: Frame, more: bytes) -> None:
    wire = serialize(frame)
    with pytest.raises(MalformedError, match="packet size"):
        parse(wire + more)
    for end in {1, 2, len(wire) // 2, len(wire) - 1} - {0, len(wire)}:
        with pytest.raises(MalformedError, match="packet size"):
            parse(wire[:end])


@by_name(WRITTEN)
def test_the_size_is_known_from_three_bytes(golden: Golden) -> None:
    wire = golden.wire
    assert packet_size(wire, 0, 1, ANYWHERE) <= len(wire)
    assert packet_size(wire, 0, 3, ANYWHERE) == len(wire)
    assert packet_size(b"??" + wire, 2, 5, ANYWHERE) == len(wire)


def test_every_type_has_one_side_to_go_to() -> None:
    assert AT_HUB | AT_CLIENT == ANYWHERE
    assert not AT_HUB & AT_CLIENT


@given(st.integers(0, 255).filter(lambda kind: kind not in ANYWHERE))
def test_other_types_are_refused(kind: int) -> None:
    with pytest.raises(MalformedError, match=f"fyrehose: TYPE {kind} at byte 0 is malformed: one of 0x01 DE"):
        parse(bytes([kind]) + bytes(18))


@pytest.mark.parametrize(
    ("packet", "error", "field", "value"),
    [
        ("", MalformedError, "TYPE", b""),
        ("01 0000 000000000000", MalformedError, "SEQUENCE", 0),
        ("01 fff7 000000000001", LimitError, "LENGTH", MAX_DATA + 1),
        ("02 ffff", LimitError, "LENGTH", 65535),
        ("04 7f000001 0913 000000000003 000000000002", MalformedError, "FROM_SEQ", 3),
        ("04 7f000001 0913 000000000000 000000000000", MalformedError, "FROM_SEQ", 1),
        ("08 7f000001 0913 ffffffffffff fffffffffffe", MalformedError, "FROM_SEQ", MAX_SEQUENCE),
    ],
)
def test_what_is_wrong_is_named(packet: str, error: type[WireError], field: str, value: object) -> None:
    with pytest.raises(error) as caught:
        parse(bytes.fromhex(packet))
    assert (caught.value.protocol, caught.value.field, caught.value.value) == ("fyrehose", field, value)
    assert str(caught.value.limit)
    assert caught.value.offset == 0


def test_an_error_says_where_on_its_connection_it_arose() -> None:
    with pytest.raises(LimitError) as caught:
        packet_size(b"????\x02\xff\xff", 4, 7, AT_HUB, origin=1000)
    assert caught.value.offset == 1004


def test_the_longest_packet() -> None:
    assert len(serialize(Deliver(1, bytes(MAX_DATA)))) == MAX_PACKET
    assert parse(serialize(Push(bytes(MAX_DATA)))) == Push(bytes(MAX_DATA))


@pytest.mark.parametrize(
    ("frame", "error", "field"),
    [
        (Push(bytes(MAX_DATA + 1)), LimitError, "LENGTH"),
        (Deliver(1, bytes(MAX_DATA + 1)), LimitError, "LENGTH"),
        (Deliver(0, b""), MalformedError, "SEQUENCE"),
        (Deliver(-1, b""), MalformedError, "SEQUENCE"),
        (Deliver(MAX_SEQUENCE + 1, b""), LimitError, "SEQUENCE"),
        (Request(HERE, 1, 5, 4), LimitError, "FROM_SEQ"),
        (Request(HERE, 1, -1, 4), MalformedError, "FROM_SEQ"),
        (Request(HERE, 1, 0, 0), MalformedError, "TO_SEQ"),
        (Forward(HERE, 1, 1, MAX_SEQUENCE + 1), LimitError, "TO_SEQ"),
        (Forward(HERE, 65536, 1, 1), LimitError, "PORT"),
        (Keepalive(HERE, -1), MalformedError, "PORT"),
        (Keepalive("localhost", 1), MalformedError, "ADDR"),
        (Keepalive("127.0.0.01", 1), MalformedError, "ADDR"),
        (Keepalive("", 1), MalformedError, "ADDR"),
        (KeepaliveAck("::1", 1), MalformedError, "ADDR"),
        (KeepaliveAck("256.0.0.1", 1), MalformedError, "ADDR"),
    ],
)
def test_nothing_is_written_that_would_be_refused(frame: Frame, error: Any, field: str) -> None:
    with pytest.raises(error, match=f"^fyrehose: {field} "):
        serialize(frame)


def test_from_0_may_be_asked_and_means_1() -> None:
    assert parse(serialize(Request(HERE, 1, 0, 4))) == Request(HERE, 1, 1, 4)


@pytest.mark.parametrize(
    ("datagram", "found"),
    [
        ("02 7f000001 0913", Keepalive(HERE, 2323)),
        ("02 01000000 0000", Keepalive("1.0.0.0", 0)),
        ("02 0004 61626364", None),
        ("02 7f000001 09", None),
        ("02 7f000001 0913 00", None),
        ("10 7f000001 0913", None),
        ("", None),
    ],
)
def test_the_documents_example_is_told_apart(datagram: str, found: Keepalive | None) -> None:
    assert read_example(bytes.fromhex(datagram)) == found


def test_a_refused_length_takes_no_memory() -> None:
    packet = b"\x02\xff\xff"
    tracemalloc.start()
    for _ in range(100):
        with pytest.raises(LimitError):
            parse(packet)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 65_535
