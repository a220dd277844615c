"""Arbitrary bytes at every binary door of the attribute family.

The input's first byte chooses the door and how the rest is chunked. Pushes that are read go through a joiner,
and what a joiner makes whole is split and joined again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import LimitError, WireError
from headrace.wire.attribute import publish
from headrace.wire.attribute.items import HEADER, MAX_BODY
from headrace.wire.attribute.messages import (
    ConnectorDecoder,
    DispatcherDecoder,
    DispatcherPush,
    MatcherPush,
    Push,
    RouterDecoder,
    StatusDecoder,
    serialize,
)
from headrace.wire.attribute.publish import Publish, PublisherDecoder, Publishes
from headrace.wire.attribute.push_parts import PushJoiner, split
from headrace.wire.receive_buffer import Decoder

DOORS: tuple[Callable[[], Decoder[Any]], ...] = (
    PublisherDecoder,
    DispatcherDecoder,
    RouterDecoder,
    ConnectorDecoder,
    StatusDecoder,
)
HELD = 500


def target(data: bytes) -> None:
    choice, wire = data[0] if data else 0, data[1:]
    door = DOORS[choice % len(DOORS)]
    step = choice // len(DOORS) + 1
    frames, refusal = read(door(), [wire])
    assert read(door(), [wire[i : i + step] for i in range(0, len(wire), step)]) == (frames, refusal), (
        "chunking"
    )
    for frame in frames:
        try:
            again = publish.serialize(frame) if isinstance(frame, Publish) else serialize(frame)
        except LimitError:
            # Our JSON of the same attributes may be longer: 1 is written 1.0.
            assert isinstance(frame, Publish)
            continue
        assert len(again) <= HEADER.size + MAX_BODY
        assert read(door(), [again]) == ([frame], None), "what is read can be written"
    join([frame for frame in frames if isinstance(frame, MatcherPush | DispatcherPush | Push)])


def read(decoder: Decoder[Any], chunks: list[bytes]) -> tuple[list[Any], tuple[object, ...] | None]:
    frames: list[Any] = []
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                frames.extend(frame if isinstance(frame, Publishes) else [frame])
    except WireError as error:
        return frames, (type(error), error.protocol, error.field, error.value, error.limit, error.offset)
    assert decoder.unfinished < HEADER.size + MAX_BODY
    return frames, None


def join(pushes: list[Any]) -> None:
    joiner = PushJoiner(max_bytes=HELD, max_pushes=3, max_seconds=5)
    for now, push in enumerate(pushes):
        try:
            whole = joiner.join(push, now)
        except WireError:
            break
        assert joiner.held_bytes <= HELD
        assert joiner.held_pushes <= 3
        if whole is not None:
            split_again(whole)
    joiner.expire(1e9)
    assert joiner.held_bytes == joiner.held_pushes == 0


def split_again(whole: Any) -> None:
    joiner = PushJoiner()
    *parts, last = split(whole)
    for part in parts:
        serialize(part)
        assert joiner.join(part, 0) is None
    serialize(last)
    assert joiner.join(last, 0) == whole
