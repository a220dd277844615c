"""A message that travels alone is taken in one step, just as the decoder takes it in many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import WireError
from headrace.wire.tube.frames import LONE_BYTES, Message, lone_front, stream_pieces
from headrace.wire.tube.reassembly import CRUMB, MAX_CRUMBS, StreamDecoder, TubeLimits

OPENING = b"\x02"
LIMITS = TubeLimits(fragment_size=200, max_message=300, max_inflated=300)


def opened(limits: TubeLimits = LIMITS) -> StreamDecoder:
    decoder = StreamDecoder(limits)
    list(decoder.feed(OPENING))
    return decoder


@given(
    st.binary(max_size=5).map(lambda tail: b"\x01" + tail)
    | st.binary(max_size=300).map(lambda m: lone_front(len(m)) + m)
)
def test_whatever_is_taken_at_once_is_what_the_decoder_takes(data: bytes) -> None:
    at_once, step_by_step = opened(), opened()
    message = at_once.take_lone(memoryview(data))
    if message is None:
        assert at_once.unfinished == 0, "nothing of it is taken"
        return
    assert list(step_by_step.feed(data)) == [Message(bytearray(message))]
    assert vars(at_once).keys() == vars(step_by_step).keys()
    for name in ("_received", "_boundary", "_crumbs", "unfinished", "held"):
        assert getattr(at_once, name) == getattr(step_by_step, name), name


@pytest.mark.parametrize("length", [0, 1, 63, 64, 4095, 8000, LONE_BYTES])
def test_its_front_is_that_of_a_stream(length: int) -> None:
    message = bytes(length)
    assert lone_front(length) + message == b"".join(stream_pieces(message, 1 << 18))


@pytest.mark.parametrize(
    "before",
    [b"\x01", b"\x01\x06a", b"\x02\x02a", b"\x08"],
    ids=["a header", "half a fragment", "one of two fragments", "a header cut in two"],
)
def test_nothing_is_taken_at_once_in_the_middle_of_something_else(before: bytes) -> None:
    decoder = opened()
    list(decoder.feed(before))
    assert decoder.take_lone(b"\x01\x02a") is None


def test_nothing_is_taken_at_once_before_the_tube_is_open_or_once_it_is_refused() -> None:
    assert StreamDecoder(LIMITS).take_lone(b"\x01\x02a") is None
    decoder = opened()
    with pytest.raises(WireError):
        list(decoder.feed(b"\x01\x01"))
    assert decoder.take_lone(b"\x01\x02a") is None


def test_limits_are_the_decoders() -> None:
    for limits in (TubeLimits(fragment_size=10), TubeLimits(max_message=10)):
        decoder = opened(limits)
        assert decoder.take_lone(lone_front(10) + bytes(10)) == bytes(10)
        assert decoder.take_lone(lone_front(11) + bytes(11)) is None


def test_dust_is_counted() -> None:
    decoder = opened()
    list(decoder.feed(b"\x04" + b"\x02a" * 4))
    for _ in range(MAX_CRUMBS):
        assert decoder.take_lone(b"\x01\x02a") == b"a", "each message may have one short fragment"
    crumbs = decoder._crumbs
    assert decoder.take_lone(lone_front(CRUMB) + bytes(CRUMB)) is not None
    assert decoder._crumbs == crumbs + 2
