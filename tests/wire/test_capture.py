"""Captures: what was written is read, in any pieces; what is no capture is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LimitError, MalformedError
from headrace.wire.capture import MAX_CHUNK, MAX_LINE, MAX_TIME, Capture, CaptureDecoder, Chunk, serialize

CHUNKS = st.builds(Chunk, st.booleans(), st.integers(0, MAX_TIME), st.binary(max_size=50))


@given(st.lists(CHUNKS, max_size=5), st.integers(1, 40))
def test_any_pieces(chunks: list[Chunk], step: int) -> None:
    items = [Capture("spp", "127.0.0.1:40312"), *chunks]
    wire = b"".join(map(serialize, items))
    decoder = CaptureDecoder()
    assert [item for at in range(0, len(wire), step) for item in decoder.feed(wire[at : at + step])] == items
    assert decoder.unfinished == 0


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (b"x" * MAX_LINE, LimitError),
        (b"not JSON\n", MalformedError),
        (b'{"door":"spp"}\n', MalformedError),
        (b'{"door":"spp","peer":"","version":2}\n', MalformedError),
        (serialize(Capture("spp", "")) + b"\x02" + bytes(12), MalformedError),
        (serialize(Capture("spp", "")) + serialize(Chunk(False, MAX_TIME + 1, b"")), LimitError),
        (serialize(Capture("spp", "")) + bytes(9) + (MAX_CHUNK + 1).to_bytes(4), LimitError),
    ],
)
def test_refused(wire: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        list(CaptureDecoder().feed(wire))
