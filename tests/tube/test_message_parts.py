from __future__ import annotations

import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import read

from headrace.tube.message_parts import gather, join, pieces, steady
from headrace.wire.tube.connection import Transport
from headrace.wire.tube.frames import FragmentSize, Message, serialize
from headrace.wire.tube.reassembly import Reassembly, StreamDecoder, TubeLimits, WebSocketDecoder

# Long enough for parts that are not copied, short enough to be drawn often.
parts_drawn = st.lists(
    st.one_of(st.binary(max_size=50), st.integers(0, 70_000).map(lambda n: b"%d " % n * (n // 6)))
)


@given(parts_drawn, st.one_of(st.integers(1, 200), st.integers(10_000, 100_000)), st.sampled_from(Transport))
def test_parts_travel_as_their_whole(parts: list[bytes], fragment_size: int, transport: Transport) -> None:
    limits = TubeLimits(fragment_size=fragment_size, max_message=1 << 30)
    decoder: Reassembly
    decoder = StreamDecoder(limits) if transport is Transport.TCP else WebSocketDecoder(limits)
    assert list(decoder.feed(serialize(FragmentSize(1)))) == [FragmentSize(1)]
    sent = pieces(transport, gather(parts), fragment_size)
    assert read(decoder, map(bytes, sent)) == [Message(b"".join(parts))]


def test_long_parts_are_not_copied() -> None:
    body = bytes(100_000)
    head, whole = gather([b"a", b"b", body, b"c"])[:2]
    assert head == b"ab"
    assert whole.obj is body
    views = [p for p in pieces(Transport.TCP, gather([b"head", body]), 1 << 16) if isinstance(p, memoryview)]
    assert sum(len(view) for view in views if view.obj is body) == len(body)
    assert join([steady(body)]) is not body
    assert memoryview(join([steady(body)])).obj is body


def test_a_fragment_across_a_seam() -> None:
    parts = [memoryview(b"a" * 20_000), memoryview(b"b" * 20_000)]
    websocket = [bytes(piece) for piece in pieces(Transport.WEBSOCKET, parts, 30_000)]
    assert websocket == [b"\x02", b"a" * 20_000 + b"b" * 10_000, b"b" * 10_000]


@pytest.mark.parametrize(
    "memory",
    [
        bytearray(b"abcd"),
        memoryview(bytearray(b"abcd")),
        memoryview(b"a.b.c.d.")[::2],
        array.array("B", b"abcd"),
    ],
)
def test_memory_that_may_change_is_copied(memory: bytearray) -> None:
    view = steady(memory)
    assert view == b"abcd"
    assert view.readonly
    assert isinstance(view.obj, bytes)


def test_other_memory_is_bytes_too() -> None:
    words = array.array("I", [1, 2])
    view = steady(memoryview(words).toreadonly())
    assert len(view) == 8
    assert view.obj is words
    assert steady(memoryview(array.array("I")).toreadonly()) == b""
    with pytest.raises(TypeError):
        steady("text")  # type: ignore[arg-type]
