"""What a decoder makes of a stream: all it yields, and the facts of the error that ends it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.errors import WireError
from headrace.wire.receive_buffer import Decoder

Outcome = tuple[list[Any], tuple[Any, ...] | None]


def outcome(decoder: Decoder[Any], chunks: Iterable[bytes]) -> Outcome:
    """Frames and refusal; nothing but a WireError may come out, and the decoder must stay refusing."""
    frames: list[Any] = []
    refusal: WireError | None = None
    try:
        for chunk in chunks:
            frames.extend(decoder.feed(chunk))
    except WireError as error:
        refusal = error
    if refusal is None:
        return frames, None
    with pytest.raises(WireError) as again:
        list(decoder.feed(b"anything"))
    assert again.value is refusal
    facts = (refusal.protocol, refusal.field, refusal.value, refusal.limit, refusal.offset)
    return frames, (type(refusal), *facts)


def outcome_and_rest(decoder: Decoder[Any], chunks: Iterable[bytes]) -> tuple[list[Any], str | None, int]:
    """The frames, the error if any, and how much of an unfinished frame was left."""
    frames: list[Any] = []
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                frames.append(frame)  # noqa: PERF402  those before an error count
    except WireError as error:
        return frames, f"{type(error).__name__} {error}", 0
    return frames, None, decoder.unfinished


def traced_peak(decoder: Decoder[Any], chunks: Iterable[bytes]) -> int:
    """The most memory that was taken while a decoder read these chunks, and nobody kept the frames."""
    tracemalloc.start()
    try:
        for chunk in chunks:
            for _ in decoder.feed(chunk):
                pass
    except WireError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak
