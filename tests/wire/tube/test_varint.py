from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LimitError, MalformedError
from headrace.wire.tube.varint import MAX_VALUE, MIN_VALUE, parse_varint, serialize_varint

VALUES = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (-2, "03"),
    (63, "7e"),
    (64, "80 01"),
    (100, "c8 01"),
    (32000, "80 f4 03"),
    (MAX_VALUE, "fe ff ff ff 0f"),
    (MIN_VALUE, "ff ff ff ff 0f"),
]

int32 = st.integers(MIN_VALUE, MAX_VALUE)


@pytest.mark.parametrize(("value", "wire"), VALUES)
def test_golden(value: int, wire: str) -> None:
    data = bytes.fromhex(wire)
    assert serialize_varint(value) == data
    assert parse_varint(data) == (value, len(data))


@given(int32, st.binary(max_size=3), st.binary(max_size=3))
def test_round_trip_amid_other_bytes(value: int, before: bytes, behind: bytes) -> None:
    wire = serialize_varint(value)
    end = len(before) + len(wire)
    for kind in (bytes, bytearray, memoryview):
        assert parse_varint(kind(before + wire + behind), len(before)) == (value, end)


@given(int32)
def test_every_cut_asks_for_more(value: int) -> None:
    wire = serialize_varint(value)
    for cut in range(len(wire)):
        assert parse_varint(wire[:cut]) is None


@pytest.mark.parametrize(("wire", "value"), [("80 00", 0), ("82 80 80 80 00", 1), ("81 80 00", -1)])
def test_longer_forms_than_necessary_are_read(wire: str, value: int) -> None:
    data = bytes.fromhex(wire)
    assert parse_varint(data) == (value, len(data))


@pytest.mark.parametrize("wire", ["80 80 80 80 80", "80 80 80 80 80 00", "ff ff ff ff ff ff"])
def test_more_than_five_bytes_is_refused_at_the_fifth(wire: str) -> None:
    data = bytes.fromhex(wire)
    assert parse_varint(data[:4]) is None
    with pytest.raises(MalformedError) as refused:
        parse_varint(data, field="fragment size", offset=7)
    error = refused.value
    assert (error.protocol, error.field, error.value) == ("tube", "fragment size", data[:5])
    assert (error.limit, error.offset) == ("at most 5 bytes", 7)


@pytest.mark.parametrize("last", [0x10, 0x1F, 0x7F])
def test_more_than_32_bits_is_refused(last: int) -> None:
    with pytest.raises(MalformedError, match="32 bits"):
        parse_varint(bytes([0xFF, 0xFF, 0xFF, 0xFF, last]))


@pytest.mark.parametrize("value", [MAX_VALUE + 1, MIN_VALUE - 1, 1 << 70])
def test_values_out_of_32_bits_are_not_written(value: int) -> None:
    with pytest.raises(LimitError) as refused:
        serialize_varint(value, field="fragment length")
    assert (refused.value.field, refused.value.value) == ("fragment length", value)


@given(st.binary(max_size=8))
def test_any_bytes_against_plain_arithmetic(data: bytes) -> None:
    head = data[: next((i + 1 for i, byte in enumerate(data) if byte < 0x80), len(data))]
    folded = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(head))
    if len(head) > 5 or (len(head) == 5 and (head[-1] >= 0x80 or folded >> 32)):
        with pytest.raises(MalformedError):
            parse_varint(data)
    elif not head or head[-1] >= 0x80:
        assert parse_varint(data) is None
    else:
        expected = -(folded + 1) // 2 if folded % 2 else folded // 2
        assert parse_varint(data) == (expected, len(head))
