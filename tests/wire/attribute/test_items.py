"""Header and items, whatever they mean."""

from __future__ import annotations

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import cut, read
from tests.wire.outcome import outcome

from headrace.errors import LimitError, MalformedError
from headrace.wire.attribute.items import (
    MAX_BODY,
    DoorDecoder,
    Items,
    encode_text,
    entries,
    parse_items,
    required,
    required_text,
    serialize_message,
    sized,
)


class Number(IntEnum):
    ONE = 1
    TWO = 2
    HIGH = 255


def decoder() -> DoorDecoder[tuple[int, Items]]:
    return DoorDecoder({7: lambda extra, items: (extra, items)})


def item(number: int, content: bytes) -> bytes:
    return bytes((number,)) + len(content).to_bytes(2) + content


def test_a_message_and_its_items() -> None:
    wire = serialize_message(7, 9, {Number.TWO: b"bc", Number.ONE: b""})
    assert wire == b"\x07\x00\x08\x09" + b"\x02\x00\x02bc" + b"\x01\x00\x00"
    assert read(decoder(), [wire]) == [(9, {2: b"bc", 1: b""})]


def test_a_message_may_have_no_items() -> None:
    assert read(decoder(), [serialize_message(7, 0, {})]) == [(0, {})]


def test_the_last_of_a_repeated_item_wins() -> None:
    assert parse_items(item(1, b"a") + item(2, b"b") + item(1, b"c")) == {1: b"c", 2: b"b"}


@pytest.mark.parametrize("left", [b"\x01", b"\x01\x00"])
def test_bytes_left_over_are_refused(left: bytes) -> None:
    with pytest.raises(MalformedError, match="left over") as caught:
        parse_items(item(1, b"a") + left)
    assert caught.value.value == left


@pytest.mark.parametrize("length", [2, 3, 2000, 65535])
def test_an_item_that_overruns_the_body_is_refused(length: int) -> None:
    with pytest.raises(MalformedError, match="only 1 bytes") as caught:
        parse_items(b"\x05" + length.to_bytes(2) + b"a")
    assert (caught.value.field, caught.value.value) == ("length of item 5", length)


def test_an_item_that_overruns_into_the_next_message_is_refused() -> None:
    first = b"\x07\x00\x04\x00" + b"\x01\x00\x02a"
    frames, error = outcome(decoder(), [first + serialize_message(7, 0, {})])
    assert frames == []
    assert error is not None
    assert error[0] is MalformedError


@pytest.mark.parametrize("length", [2001, 65535])
def test_a_body_over_the_limit_is_refused_by_its_header(length: int) -> None:
    _, error = outcome(decoder(), [b"\x07" + length.to_bytes(2) + b"\x00"])
    assert error == (LimitError, "attribute", "body length", length, MAX_BODY, 0)


def test_the_longest_body() -> None:
    wire = serialize_message(7, 0, {Number.ONE: bytes(MAX_BODY - 3)})
    assert read(decoder(), [wire]) == [(0, {1: bytes(MAX_BODY - 3)})]
    with pytest.raises(LimitError) as caught:
        serialize_message(7, 0, {Number.ONE: bytes(MAX_BODY - 2)})
    assert (caught.value.value, caught.value.limit) == (2001, MAX_BODY)


def test_the_header_is_judged_before_the_body_comes() -> None:
    _, error = outcome(decoder(), [b"\x08\x00\x00\x00"])
    assert error is not None
    assert error[2:4] == ("command", 8)


def test_unfinished_tells_whether_a_stream_was_cut() -> None:
    wire = serialize_message(7, 0, {Number.HIGH: b"abc"})
    reading = decoder()
    for count, byte in enumerate(wire[:-1], start=1):
        assert list(reading.feed(bytes((byte,)))) == []
        assert reading.unfinished == count
    assert len(list(reading.feed(wire[-1:]))) == 1
    assert reading.unfinished == 0


def test_what_an_item_can_be_required_to_be() -> None:
    items = {1: b"caf\xc3\xa9", 2: b"\xff"}
    assert required(items, Number.ONE) == b"caf\xc3\xa9"
    assert required_text(items, Number.ONE) == "café"
    assert sized("x", b"abc", 3) == b"abc"
    assert entries("x", b"abcdef", 3) == b"abcdef"
    assert encode_text("x", "é") == b"\xc3\xa9"
    with pytest.raises(MalformedError, match="HIGH"):
        required(items, Number.HIGH)
    with pytest.raises(MalformedError, match="UTF-8"):
        required_text(items, Number.TWO)
    with pytest.raises(MalformedError, match="exactly 3"):
        sized("x", b"ab", 3)
    with pytest.raises(MalformedError, match="entries of 3 bytes"):
        entries("x", b"abcd", 3)
    with pytest.raises(MalformedError, match="UTF-8"):
        encode_text("x", "\udc00")


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=8),
    st.integers(0, 255),
    st.lists(st.integers(0, 1 << 12), max_size=8),
)
def test_any_items_are_read(items: list[tuple[int, bytes]], extra: int, places: list[int]) -> None:
    body = b"".join(item(number, content) for number, content in items)
    wire = b"\x07" + len(body).to_bytes(2) + bytes((extra,)) + body
    assert outcome(decoder(), cut(wire * 2, places)) == ([(extra, dict(items))] * 2, None)


@given(st.binary(max_size=60))
def test_any_body_is_its_items_or_refused(body: bytes) -> None:
    try:
        items = parse_items(body)
    except MalformedError:
        return
    assert sum(3 + len(content) for content in items.values()) <= len(body)
