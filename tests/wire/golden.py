"""Golden bytes: a frame, its exact bytes, and the three ways every decoder must be able to read them.

The bytes are in :mod:`headrace.wire.vectors`. A protocol's test module lists the frames they stand for as
``GOLDEN: list[Golden]``. The same names and bytes stand, annotated, in ``docs/protocols/``;
``tests/docs/test_protocol_pages.py`` holds all three together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.wire import vectors
from headrace.wire.receive_buffer import Decoder


@dataclass(frozen=True)
class Golden:
    """``name`` is the title of the bytes in the documentation, and in the file of ``protocol``."""

    protocol: str
    name: str
    frame: Any

    @property
    def wire(self) -> bytes:
        return vectors.golden(self.protocol)[self.name]


def read(decoder: Decoder[Any], chunks: Iterable[bytes]) -> list[Any]:
    """Everything a decoder yields for these chunks."""
    return [frame for chunk in chunks for frame in decoder.feed(chunk)]


def read_whole(decoder: Decoder[Any], wire: bytes) -> list[Any]:
    return read(decoder, [wire])


def read_bytewise(decoder: Decoder[Any], wire: bytes) -> list[Any]:
    return read(decoder, (wire[i : i + 1] for i in range(len(wire))))


def check_golden(golden: Golden, make: Callable[[], Decoder[Any]], following: bytes) -> None:
    """Read a vector whole, byte by byte, and with another frame's first bytes behind it."""
    assert read_whole(make(), golden.wire) == [golden.frame]
    assert read_bytewise(make(), golden.wire) == [golden.frame]
    decoder = make()
    assert read_whole(decoder, golden.wire + following)[0] == golden.frame


def cut(wire: bytes, places: Sequence[int]) -> Iterator[bytes]:
    """The bytes in chunks, cut at the given places (any order, any repeats)."""
    edges = sorted({0, len(wire), *(p % (len(wire) + 1) for p in places)})
    for begin, end in itertools.pairwise(edges):
        yield wire[begin:end]
