from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.golden import cut, read

from headrace.errors import LimitError, MalformedError, WireError
from headrace.wire.tube.frames import (
    DEFLATE,
    RAW,
    Discarded,
    FragmentSize,
    Frame,
    Header,
    Message,
    NotSupported,
    Ping,
    Pong,
    serialize,
    stream_pieces,
    websocket_pieces,
)
from headrace.wire.tube.reassembly import (
    DEFAULT_LIMITS,
    MAX_MESSAGE,
    TRANSITIONS,
    Arrival,
    Reassembly,
    ReceivingState,
    StreamDecoder,
    TubeLimits,
    WebSocketDecoder,
)
from headrace.wire.tube.varint import serialize_varint

SMALL = TubeLimits(fragment_size=64, max_message=256, max_inflated=512)
OPENING = serialize(FragmentSize(1000))

Refusal = tuple[type[WireError], str, object, object, int | None]


def opened(decoder: Reassembly) -> Reassembly:
    assert list(decoder.feed(OPENING)) == [FragmentSize(1000)]
    return decoder


def stream(limits: TubeLimits = DEFAULT_LIMITS) -> Reassembly:
    return opened(StreamDecoder(limits))


def websocket(limits: TubeLimits = DEFAULT_LIMITS) -> Reassembly:
    return opened(WebSocketDecoder(limits))


def outcome(decoder: Reassembly, chunks: Iterable[bytes]) -> tuple[list[Frame], Refusal | None]:
    """All frames, and the facts of the refusal that ended them, if one did."""
    frames: list[Frame] = []
    try:
        for chunk in chunks:
            frames.extend(decoder.feed(chunk))
    except WireError as error:
        return frames, (type(error), error.field, error.value, error.limit, error.offset)
    return frames, None


def refusal(decoder: Reassembly, *chunks: bytes) -> WireError:
    with pytest.raises(WireError) as refused:
        read(decoder, chunks)
    assert refused.value.protocol == "tube"
    return refused.value


# What arrives: frames with the fragments they travel in


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[Frame, bytes, list[bytes]]:
    """A frame, its header, and its fragments in any sizes a sender might choose."""
    kind = draw(st.sampled_from(["raw", "raw", "deflate", "unsupported", "control"]))
    if kind == "control":
        frame = draw(st.sampled_from([Ping(), Pong(), *map(NotSupported, range(1, 8))]))
        return frame, bytes([serialize(frame)[0] | draw(st.integers(0, 7))]), []
    if kind == "deflate":
        message = draw(st.binary(max_size=100))
        packed = zlib.compress(message)
        fragments = list(cut(packed, draw(st.lists(st.integers(0, 200), min_size=3, max_size=12))))
        frame, compression = Message(message, DEFLATE), DEFLATE
    else:
        fragments = draw(st.lists(st.binary(max_size=20), max_size=12))
        content = b"".join(fragments)
        compression = draw(st.integers(2, 7)) if kind == "unsupported" else RAW
        frame = Message(content) if kind == "raw" else Discarded(compression, len(content))
    header = serialize(Header(compression, len(fragments)))
    if 1 <= len(fragments) <= 7 and draw(st.booleans()):
        header = bytes([compression << 3]) + serialize_varint(len(fragments))
    return frame, header, fragments


Arrivals = list[tuple[Frame, bytes, list[bytes]]]


def as_stream(arrived: Arrivals) -> bytes:
    out = bytearray()
    for _, header, fragments in arrived:
        out += header
        for fragment in fragments:
            out += serialize_varint(len(fragment)) + fragment
    return bytes(out)


def as_websocket(arrived: Arrivals, joined: Sequence[bool]) -> Iterator[bytes]:
    """Headers on their own, or (where asked and possible) in front of the first fragment."""
    for index, (_, header, fragments) in enumerate(arrived):
        if fragments and fragments[0] and joined[index % len(joined)]:
            yield header + fragments[0]
            yield from fragments[1:]
        else:
            yield header
            yield from fragments


@given(st.lists(arrivals(), max_size=6), st.lists(st.integers(0, 2000), max_size=40))
def test_any_chunking_of_a_stream_gives_its_frames(arrived: Arrivals, places: list[int]) -> None:
    wire = as_stream(arrived)
    expected = [frame for frame, _, _ in arrived]
    whole, chunked, bytewise = stream(), stream(), stream()
    assert read(whole, [wire]) == expected
    assert read(chunked, cut(wire, places)) == expected
    assert read(bytewise, (wire[i : i + 1] for i in range(len(wire)))) == expected
    assert whole.unfinished == chunked.unfinished == bytewise.unfinished == 0


@given(st.lists(arrivals(), max_size=6), st.lists(st.booleans(), min_size=1, max_size=6))
def test_websocket_messages_give_the_same_frames(arrived: Arrivals, joined: list[bool]) -> None:
    decoder = websocket()
    assert read(decoder, as_websocket(arrived, joined)) == [frame for frame, _, _ in arrived]
    assert decoder.unfinished == 0


@given(st.lists(arrivals(), max_size=3), st.binary(max_size=60), st.lists(st.integers(0, 2000), max_size=20))
def test_any_chunking_refuses_the_same_bytes_at_the_same_place(
    arrived: Arrivals, tail: bytes, places: list[int]
) -> None:
    wire = as_stream(arrived) + tail
    expected = outcome(stream(SMALL), [wire])
    assert outcome(stream(SMALL), cut(wire, places)) == expected
    assert outcome(stream(SMALL), (wire[i : i + 1] for i in range(len(wire)))) == expected


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=10))
def test_arbitrary_bytes_before_opening(wire: bytes, places: list[int]) -> None:
    assert outcome(StreamDecoder(SMALL), cut(wire, places)) == outcome(StreamDecoder(SMALL), [wire])


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_arbitrary_websocket_messages(payloads: list[bytes]) -> None:
    frames, _ = outcome(WebSocketDecoder(SMALL), payloads)
    for frame in frames:
        if isinstance(frame, Message):
            assert len(frame.data) <= SMALL.max_inflated


@given(st.binary(max_size=3000), st.integers(1, 4000), st.booleans())
def test_what_we_send_is_what_arrives(message: bytes, size: int, over_websocket: bool) -> None:
    pieces = (websocket_pieces if over_websocket else stream_pieces)(message, size)
    decoder = (websocket if over_websocket else stream)(TubeLimits(fragment_size=size))
    assert read(decoder, map(bytes, pieces)) == [Message(message)]


# Opening


@pytest.mark.parametrize("make", [StreamDecoder, WebSocketDecoder])
@pytest.mark.parametrize("size", [0, -1, -(1 << 31)])
def test_fragment_sizes_below_one_are_refused(make: type[Reassembly], size: int) -> None:
    error = refusal(make(DEFAULT_LIMITS), serialize_varint(size))
    assert isinstance(error, MalformedError)
    assert (error.field, error.value, error.limit, error.offset) == ("fragment size", size, "1 or more", 0)


@pytest.mark.parametrize("make", [StreamDecoder, WebSocketDecoder])
@pytest.mark.parametrize("size", [1, 100, (1 << 31) - 1])
def test_fragment_sizes(make: type[Reassembly], size: int) -> None:
    assert read(make(DEFAULT_LIMITS), [serialize_varint(size)]) == [FragmentSize(size)]


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"fragment_size": 0}, "fragment size"),
        ({"fragment_size": 1 << 31}, "fragment size"),
        ({"max_message": 0}, "max_message"),
        ({"max_inflated": 0}, "max_inflated"),
    ],
)
def test_impossible_limits(limits: dict[str, int], field: str) -> None:
    with pytest.raises(LimitError) as refused:
        TubeLimits(**limits)
    assert refused.value.field == field


# TubeLimits


def test_a_fragment_of_the_size_we_asked_for_and_one_longer() -> None:
    fits, over = bytes(64), bytes(65)
    assert read(stream(SMALL), stream_pieces(fits, 64)) == [Message(fits)]
    assert read(websocket(SMALL), websocket_pieces(fits, 64)) == [Message(fits)]
    for decoder, pieces in ((stream(SMALL), stream_pieces), (websocket(SMALL), websocket_pieces)):
        error = refusal(decoder, *map(bytes, pieces(over, 65)))
        assert isinstance(error, LimitError)
        assert (error.field, error.value, error.limit) == ("fragment length", 65, 64)


def test_header_bytes_do_not_count_toward_the_fragment_size() -> None:
    fragment = bytes(64)
    assert read(websocket(SMALL), [b"\x00\x02" + fragment]) == [Message(fragment)]
    assert refusal(websocket(SMALL), b"\x01" + bytes(65)).field == "fragment length"


def test_a_fragment_too_long_is_refused_before_its_bytes() -> None:
    wire = b"\x01" + serialize_varint((1 << 31) - 1)
    error = refusal(stream(), wire)
    assert (error.field, error.value) == ("fragment length", (1 << 31) - 1)
    assert error.offset == len(OPENING) + 1


def test_negative_fragment_length_is_refused() -> None:
    error = refusal(stream(), b"\x01\x01")
    assert isinstance(error, MalformedError)
    assert (error.field, error.value) == ("fragment length", -1)


@pytest.mark.parametrize("make", [stream, websocket])
@pytest.mark.parametrize("code", range(8))
def test_a_huge_count_is_refused_at_the_header(make: type[Reassembly], code: int) -> None:
    wire = serialize(Header(code, (1 << 31) - 1))
    error = refusal(make(), wire)
    assert isinstance(error, LimitError)
    assert (error.field, error.value, error.limit) == ("fragment count", (1 << 31) - 1, MAX_MESSAGE)


def test_a_message_of_exactly_the_limit_in_any_fragments() -> None:
    message = bytes(SMALL.max_message)
    for size in (1, 2, 63, 64):
        assert read(stream(SMALL), stream_pieces(message, size)) == [Message(message)]
        assert read(websocket(SMALL), websocket_pieces(message, size)) == [Message(message)]


@pytest.mark.parametrize("compression", range(8))
def test_a_message_over_the_limit_is_refused_as_soon_as_it_is_certain(compression: int) -> None:
    """Five fragments of 64 pass 256: with one byte each for those to come, at the fourth."""
    wire = b"".join(stream_pieces(bytes(5 * 64), 64, compression))
    error = refusal(stream(SMALL), wire[: len(serialize(Header(0, 5))) + 3 * 66 + 2])
    assert isinstance(error, LimitError)
    assert (error.field, error.value, error.limit) == ("message length", 257, 256)


def test_empty_fragments_count_as_one_byte() -> None:
    most = SMALL.max_message
    assert read(stream(SMALL), [serialize(Header(0, most)) + bytes(most)]) == [Message(b"")]
    assert refusal(stream(SMALL), serialize(Header(0, most + 1))).field == "fragment count"


def test_a_64_kib_message_in_one_byte_fragments() -> None:
    message = os.urandom(1 << 16)
    limits = TubeLimits(fragment_size=1)
    assert read(stream(limits), stream_pieces(message, 1)) == [Message(message)]
    assert read(websocket(limits), websocket_pieces(message, 1)) == [Message(message)]


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 16, 1 << 23])
def test_the_longest_message_in_several_reads(chunk: int) -> None:
    message = os.urandom(MAX_MESSAGE)
    wire = b"".join(stream_pieces(message, 1 << 18))
    frames = read(stream(), (wire[i : i + chunk] for i in range(0, len(wire), chunk)))
    assert frames == [Message(message)]


def test_inflation_is_bounded() -> None:
    bomb = zlib.compress(bytes(SMALL.max_inflated + 1))
    error = refusal(stream(SMALL), b"".join(stream_pieces(bomb, 64, DEFLATE)))
    assert isinstance(error, LimitError)
    assert (error.field, error.limit, error.offset) == ("inflated length", 512, len(OPENING))


def test_a_compressed_message_of_no_bytes_is_no_zlib_stream() -> None:
    for wire in (b"\x08\x00", b"\x09\x00"):
        assert read(stream(), [wire]) == [Discarded(DEFLATE, 0)]


def peak_of(decoder: Reassembly, chunks: Sequence[bytes]) -> int:
    tracemalloc.start()
    try:
        for chunk in chunks:
            try:
                for frame in decoder.feed(chunk):
                    del frame
            except WireError:
                break
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BOUND = 1 << 16
WITHIN = TubeLimits(fragment_size=BOUND, max_message=BOUND, max_inflated=BOUND)
NOISE = os.urandom(1 << 18)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=12), st.integers(0, 7), st.integers(0, 8) | st.integers(0, (1 << 31) - 1))
def test_no_bytes_take_memory_past_the_limits(start: bytes, code: int, count: int) -> None:
    wire = start + serialize(Header(code, count)) + serialize_varint(BOUND) + NOISE
    chunks = [wire[i : i + 4096] for i in range(0, len(wire), 4096)]
    # The message as it travelled, and what it inflates to, twice while its pieces are joined.
    assert peak_of(stream(WITHIN), chunks) < 4 * BOUND
    assert peak_of(websocket(WITHIN), chunks) < 4 * BOUND


def test_a_read_full_of_bombs_inflates_one_at_a_time() -> None:
    bomb = b"".join(stream_pieces(zlib.compress(bytes(BOUND)), BOUND, DEFLATE))
    assert peak_of(stream(WITHIN), [bomb * 100]) < 4 * BOUND


def test_discarded_messages_take_no_memory() -> None:
    wire = b"".join(stream_pieces(bytes(BOUND), 1 << 10, compression=5))
    chunks = [wire[i : i + 512] for i in range(0, len(wire), 512)]
    assert peak_of(stream(WITHIN), chunks) < 1 << 13


# WebSocket


WEBSOCKET = [
    ("header on its own", ["02", "68 65 6c", "6c 6f"], Message(b"hello")),
    ("header before the first fragment", ["02 68 65 6c", "6c 6f"], Message(b"hello")),
    ("counted header on its own", ["00 04", "68 65 6c", "6c 6f"], Message(b"hello")),
    ("counted header before the first fragment", ["00 04 68 65 6c", "6c 6f"], Message(b"hello")),
    ("empty message", ["01", ""], Message(b"")),
    ("message of no fragments", ["00 00"], Message(b"")),
    ("empty first fragment", ["02", "", "68"], Message(b"h")),
    ("fragment that looks like a ping", ["01", "80"], Message(b"\x80")),
    ("unsupported compression", ["1a 01", "02"], Discarded(3, 2)),
    ("ping", ["80"], Ping()),
    ("pong", ["88"], Pong()),
]


@pytest.mark.parametrize(("payloads", "frame"), [w[1:] for w in WEBSOCKET], ids=[w[0] for w in WEBSOCKET])
def test_websocket_golden(payloads: list[str], frame: Frame) -> None:
    decoder = websocket()
    wire = [bytes.fromhex(payload) for payload in payloads]
    assert read(decoder, wire[:-1]) == []
    assert decoder.unfinished == sum(map(len, wire[:-1]))
    assert read(decoder, [*wire[-1:], b"\x80"]) == [frame, Ping()]


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ("", "header"),
        ("00", "header"),
        ("00 80", "header"),
        ("80 80", "after control code or empty message"),
        ("48 00", "after control code or empty message"),
        ("00 00 68", "after control code or empty message"),
        ("40", "message code"),
        ("90", "message code"),
        ("00 01", "fragment count"),
    ],
)
def test_websocket_messages_that_are_refused(payload: str, field: str) -> None:
    error = refusal(websocket(), bytes.fromhex(payload))
    assert isinstance(error, MalformedError)
    assert error.field == field


@pytest.mark.parametrize(
    ("payload", "field"),
    [("", "fragment size"), ("80", "fragment size"), ("02 01", "after fragment size")],
)
def test_websocket_openings_that_are_refused(payload: str, field: str) -> None:
    assert refusal(WebSocketDecoder(), bytes.fromhex(payload)).field == field


# The machine


def test_the_table_has_a_move_for_all_and_only_what_may_come() -> None:
    moves = {state: {arrival for s, arrival in TRANSITIONS if s is state} for state in ReceivingState}
    fragments = {Arrival.FRAGMENT, Arrival.LAST_FRAGMENT}
    assert moves[ReceivingState.OPENING] == {Arrival.FRAGMENT_SIZE}
    assert moves[ReceivingState.IDLE] == set(Arrival) - fragments - {Arrival.FRAGMENT_SIZE}
    assert moves[ReceivingState.IN_MESSAGE] == moves[ReceivingState.DISCARDING] == fragments
    for state in (ReceivingState.IN_MESSAGE, ReceivingState.DISCARDING):
        assert TRANSITIONS[state, Arrival.FRAGMENT] is state


@pytest.mark.parametrize(
    ("wire", "state"),
    [
        ("", ReceivingState.IDLE),
        ("80", ReceivingState.IDLE),
        ("00 00", ReceivingState.IDLE),
        ("00", ReceivingState.IDLE),
        ("02", ReceivingState.IN_MESSAGE),
        ("02 02 61", ReceivingState.IN_MESSAGE),
        ("02 02 61 02", ReceivingState.IN_MESSAGE),
        ("02 02 61 02 62", ReceivingState.IDLE),
        ("12", ReceivingState.DISCARDING),
        ("12 02 61", ReceivingState.DISCARDING),
        ("12 02 61 00", ReceivingState.IDLE),
    ],
)
def test_states(wire: str, state: ReceivingState) -> None:
    decoder = stream()
    read(decoder, [bytes.fromhex(wire)])
    assert decoder.machine.state is state


def test_once_a_message_has_started_only_its_fragments_follow() -> None:
    """What would be a Ping between messages is a length here: the number that 80 01 stands for."""
    decoder = stream()
    assert read(decoder, [b"\x01\x80\x01" + bytes(64)]) == [Message(bytes(64))]


# Feeding


@pytest.mark.parametrize("make", [stream, websocket])
def test_a_refused_decoder_stays_refused(make: type[Reassembly]) -> None:
    decoder = make()
    first = refusal(decoder, b"\x90")
    assert refusal(decoder, b"\x80") is first


def test_what_came_before_a_refusal_is_yielded() -> None:
    frames, refused = outcome(stream(), [b"\x80\x01\x02a\x90\x80"])
    assert frames == [Ping(), Message(b"a")]
    assert refused is not None
    assert refused[0] is MalformedError


@pytest.mark.parametrize("make", [stream, websocket])
def test_an_iterator_left_early_loses_nothing(make: type[Reassembly]) -> None:
    decoder = make()
    pieces = [b"\x80", b"\x88", b"\x01", b"\x02a" if make is stream else b"a"]
    for piece in pieces:
        decoder.feed(piece)
    assert list(decoder.feed(b"\x80")) == [Ping(), Pong(), Message(b"a"), Ping()]
    assert decoder.unfinished == 0


def test_a_read_buffer_may_be_reused_once_the_iterator_is_exhausted() -> None:
    decoder = stream()
    wire = b"".join(stream_pieces(b"hello tube", 3)) + b"\x00"
    buffer = bytearray(5)
    frames: list[Frame] = []
    for begin in range(0, len(wire), 5):
        part = wire[begin : begin + 5]
        buffer[: len(part)] = part
        frames.extend(decoder.feed(memoryview(buffer)[: len(part)]))
        buffer[:] = b"\xff" * 5
    assert frames == [Message(b"hello tube")]
    assert decoder.unfinished == 1


def test_unfinished_counts_what_came_since_the_last_whole_frame() -> None:
    decoder = stream()
    for wire, waiting in ((b"\x80", 0), (b"\x00", 1), (b"\x04", 2), (b"\x02a", 4), (b"\x04b", 6), (b"c", 0)):
        read(decoder, [wire])
        assert decoder.unfinished == waiting


def test_a_message_belongs_to_its_receiver() -> None:
    decoder = stream()
    (message,) = decoder.feed(b"\x01\x02a")
    assert isinstance(message, Message)
    assert isinstance(message.data, bytearray)
    message.data.extend(b"changed")
    assert list(decoder.feed(b"\x01\x02b")) == [Message(b"b")]
