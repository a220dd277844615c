from __future__ import annotations

import contextlib
import itertools
import os
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import Golden, check_golden

from headrace.errors import LimitError, MalformedError, WireError
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.frames import (
    COMPRESS_FROM,
    DEFLATE,
    MAX_FRAGMENTS,
    RAW,
    Discarded,
    FragmentSize,
    Header,
    Message,
    NotSupported,
    Ping,
    Pong,
    deflate,
    inflate,
    parse_header,
    serialize,
    stream_pieces,
    websocket_pieces,
)
from headrace.wire.tube.reassembly import StreamDecoder
from headrace.wire.tube.varint import serialize_varint

PACKED = "78 01 2b 29 4d 4a 55 28 41 21 00 47 d3 07 21"

GOLDEN = [
    Golden("tube", "fragment size 100", FragmentSize(100)),
    Golden("tube", "fragment size 262144", FragmentSize(262144)),
    Golden("tube", "message hello", Message(b"hello")),
    Golden("tube", "message in two fragments", Message(b"hello")),
    Golden("tube", "message in eight fragments", Message(b"abcdefgh")),
    Golden("tube", "message in one counted fragment", Message(b"hello")),
    Golden("tube", "empty message", Message(b"")),
    Golden("tube", "message of no fragments", Message(b"")),
    Golden("tube", "compressed message", Message(b"tube tube tube tube", DEFLATE)),
    Golden("tube", "message in compression 2", Discarded(2, 3)),
    Golden("tube", "compression 1 not supported", NotSupported(1)),
    Golden("tube", "compression 7 not supported", NotSupported(7)),
    Golden("tube", "ping", Ping()),
    Golden("tube", "ping with low bits", Ping()),
    Golden("tube", "pong", Pong()),
]

PING = b"\x80"

Cut = Callable[[bytes, int], Iterator[Buffer]]


def stream_decoder(opened: bool) -> StreamDecoder:
    decoder = StreamDecoder()
    if opened:
        assert list(decoder.feed(b"\x02")) == [FragmentSize(1)]
    return decoder


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden(golden: Golden) -> None:
    opened = not isinstance(golden.frame, FragmentSize)
    check_golden(golden, lambda: stream_decoder(opened), following=PING)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_is_what_we_write(golden: Golden) -> None:
    match golden.frame:
        case FragmentSize() | NotSupported() | Pong():
            assert serialize(golden.frame) == golden.wire
        case Ping():
            assert serialize(golden.frame) == b"\x80"  # low bits are sent 0
        case Message(data, compression=0) if golden.name in ("message hello", "empty message"):
            assert b"".join(stream_pieces(data, 100)) == golden.wire
        case Message(data) if golden.name == "message in two fragments":
            assert b"".join(stream_pieces(data, 3)) == golden.wire
        case Message(data) if golden.name == "message in eight fragments":
            assert b"".join(stream_pieces(data, 1)) == golden.wire
        case Message(_, compression=1):
            assert b"".join(stream_pieces(bytes.fromhex(PACKED), 100, DEFLATE)) == golden.wire


# Headers and control codes


@given(st.integers(0, 7), st.integers(0, MAX_FRAGMENTS), st.binary(max_size=4))
def test_header_round_trip(compression: int, fragments: int, behind: bytes) -> None:
    header = Header(compression, fragments)
    wire = serialize(header)
    assert parse_header(wire + behind) == (header, len(wire))
    for cut in range(len(wire)):
        assert parse_header(wire[:cut]) is None


@pytest.mark.parametrize(
    ("fragments", "wire"),
    [
        (0, "00 00"),
        (1, "01"),
        (7, "07"),
        (8, "00 10"),
        (100, "00 c8 01"),
        (MAX_FRAGMENTS, "00 fe ff ff ff 0f"),
    ],
)
def test_fragment_counts(fragments: int, wire: str) -> None:
    assert serialize(Header(RAW, fragments)).hex(" ") == wire


@pytest.mark.parametrize("fragments", range(1, 8))
def test_small_counts_are_accepted_as_varints_too(fragments: int) -> None:
    wire = b"\x00" + serialize_varint(fragments)
    assert parse_header(wire) == (Header(RAW, fragments), 2)


@pytest.mark.parametrize("low", range(8))
def test_low_bits_of_control_codes_are_ignored_and_no_count_follows(low: int) -> None:
    assert parse_header(bytes([16 << 3 | low, 0xFF])) == (Ping(), 1)
    assert parse_header(bytes([17 << 3 | low, 0xFF])) == (Pong(), 1)
    for compression in range(1, 8):
        wire = bytes([8 + compression << 3 | low, 0xFF])
        assert parse_header(wire) == (NotSupported(compression), 1)


@pytest.mark.parametrize("compression", range(1, 8))
def test_refusals_round_trip(compression: int) -> None:
    wire = serialize(NotSupported(compression))
    assert wire == bytes([(8 + compression) << 3])
    assert parse_header(wire) == (NotSupported(compression), 1)


@pytest.mark.parametrize("code", [8, *range(18, 32)])
def test_unused_and_reserved_codes_are_refused(code: int) -> None:
    with pytest.raises(MalformedError) as refused:
        parse_header(bytes([code << 3 | 1]), offset=5)
    error = refused.value
    assert (error.protocol, error.field, error.value, error.offset) == ("tube", "message code", code, 5)
    assert error.limit == "0 to 7 or 9 to 17"


def test_negative_count_is_refused() -> None:
    with pytest.raises(MalformedError) as refused:
        parse_header(b"\x00\x01", offset=5)
    assert (refused.value.field, refused.value.value, refused.value.offset) == ("fragment count", -1, 6)


@pytest.mark.parametrize(
    "frame",
    [
        FragmentSize(0),
        FragmentSize(-1),
        FragmentSize(1 << 31),
        Header(8, 1),
        Header(-1, 1),
        Header(0, -1),
        Header(0, 1 << 31),
        NotSupported(0),
        NotSupported(8),
    ],
)
def test_what_cannot_be_said_is_not_written(frame: FragmentSize | Header | NotSupported) -> None:
    with pytest.raises(LimitError):
        serialize(frame)


# Fragmentation


def plain_fragments(message: bytes, size: int) -> list[bytes]:
    return [message[i : i + size] for i in range(0, len(message), size)] or [b""]


def plain_stream(message: bytes, size: int, compression: int) -> bytes:
    fragments = plain_fragments(message, size)
    out = serialize(Header(compression, len(fragments)))
    for fragment in fragments:
        out += serialize_varint(len(fragment)) + fragment
    return out


sizes = st.integers(1, 200) | st.sampled_from([4095, 4096, 4097, 8192, MAX_FRAGMENTS])
messages = st.binary(max_size=600) | st.sampled_from([0, 1, 4095, 4096, 4097, 8192, 12289]).map(bytes)


@given(messages, sizes, st.integers(0, 7))
def test_stream_pieces_against_plain_cutting(message: bytes, size: int, compression: int) -> None:
    for kind in (bytes, bytearray, memoryview):
        pieces = stream_pieces(kind(message), size, compression)
        assert b"".join(pieces) == plain_stream(message, size, compression)


@pytest.mark.parametrize("size", [1, 7, 128, 4095])
def test_short_fragments_in_more_than_one_block(size: int) -> None:
    message = os.urandom(300_001)
    pieces = list(stream_pieces(message, size))
    assert len(pieces) == 4  # the header, two blocks of full fragments, the last fragment
    assert b"".join(pieces) == b"".join(
        [serialize(Header(RAW, -(-len(message) // size)))]
        + [serialize_varint(len(part)) + part for part in plain_fragments(message, size)]
    )


@given(messages, sizes, st.integers(0, 7))
def test_websocket_pieces_are_the_header_and_the_fragments(
    message: bytes, size: int, compression: int
) -> None:
    fragments = plain_fragments(message, size)
    header = serialize(Header(compression, len(fragments)))
    assert [bytes(piece) for piece in websocket_pieces(message, size, compression)] == [header, *fragments]


def test_long_fragments_are_not_copied() -> None:
    message = bytearray(1 << 20)
    pieces = list(stream_pieces(message, 1 << 16))
    views = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert all(view.obj is message for view in views)
    assert sum(map(len, views)) == len(message)
    assert sum(map(len, pieces)) - len(message) == len(serialize(Header(RAW, 16))) + 16 * 3


@pytest.mark.parametrize("cut", [stream_pieces, websocket_pieces])
def test_a_wish_for_one_byte_fragments_takes_no_memory_at_once(cut: Cut) -> None:
    message = bytes(1 << 23)
    tracemalloc.start()
    try:
        for _ in itertools.islice(cut(message, 1), 3):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 21


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("cut", [stream_pieces, websocket_pieces])
def test_no_fragment_size_below_one(cut: Cut, size: int) -> None:
    with pytest.raises(LimitError):
        list(cut(b"hello", size))


# Compression


@given(st.binary(max_size=64), st.integers(1, 400))
def test_deflate_then_inflate(seed: bytes, times: int) -> None:
    message = seed * times
    packed = deflate(message)
    if packed is None:
        return
    assert len(packed) < len(message)
    assert inflate(packed, len(message)) == message
    assert zlib.decompress(packed) == message


def test_short_messages_stay_raw() -> None:
    assert deflate(bytes(COMPRESS_FROM - 1)) is None
    assert deflate(bytes(COMPRESS_FROM)) is not None


@pytest.mark.parametrize("length", [COMPRESS_FROM, 10_000, 1 << 20])
def test_what_does_not_shrink_stays_raw(length: int) -> None:
    assert deflate(os.urandom(length)) is None


def test_a_compressible_middle_alone_is_not_enough() -> None:
    noise = os.urandom(1 << 16)
    assert deflate(noise + bytes(8192) + noise) is None


def test_inflation_stops_at_the_limit() -> None:
    packed = zlib.compress(bytes(1 << 26))
    tracemalloc.start()
    try:
        with pytest.raises(LimitError) as refused:
            inflate(packed, 1 << 16, offset=3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 19
    assert (refused.value.field, refused.value.limit, refused.value.offset) == ("inflated length", 1 << 16, 3)


def test_inflation_to_exactly_the_limit() -> None:
    packed = zlib.compress(bytes(1000))
    assert inflate(packed, 1000) == bytes(1000)
    with pytest.raises(LimitError):
        inflate(packed, 999)


def with_dictionary() -> bytes:
    stream = zlib.compressobj(zdict=b"hello")
    return stream.compress(b"hello hello") + stream.flush()


def without_zlib_format() -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(b"hello hello") + stream.flush()


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        zlib.compress(b"hello")[:-1],
        zlib.compress(b"hello")[:-1] + b"\x00",
        zlib.compress(b"hello") + b"\x00",
        zlib.compress(b"hello") * 2,
        with_dictionary(),
        without_zlib_format(),
    ],
    ids=["nothing", "cut", "checksum", "trailing", "two streams", "preset dictionary", "raw deflate"],
)
def test_what_is_not_one_whole_zlib_stream_is_refused(packed: bytes) -> None:
    with pytest.raises(MalformedError) as refused:
        inflate(packed, 1000, offset=9)
    assert (refused.value.field, refused.value.offset) == ("deflate", 9)


@given(st.binary(max_size=200), st.integers(0, 20), st.integers(1, 100))
def test_arbitrary_bytes_inflate_or_are_refused(tail: bytes, keep: int, limit: int) -> None:
    packed = zlib.compress(b"a tube, a tube, a tube")[:keep] + tail
    with contextlib.suppress(WireError):
        assert len(inflate(packed, limit)) <= limit
