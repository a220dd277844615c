"""MessagePack in pieces: a large section of a snapshot is made step by step, so that no step takes long.

A section is one MessagePack value. Whoever makes it in pieces writes the headers of its arrays and byte strings with
the functions here, and the content between them as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Section: TypeAlias = bytes | Iterable[bytes]
"""A section of a snapshot, whole or in pieces. Making the pieces is work for a thread."""

ROWS: Final = 1000
"""Rows that are encoded in one go: a millisecond's work or less."""

PIECE_BYTES: Final = 64 << 10
"""Small pieces are joined up to this size; longer ones are passed on as they are, without a copy."""


def map_header(count: int) -> bytes:
    """Return the bytes before a map's ``count`` pairs."""
    if count < 16:
        return bytes((0x80 | count,))
    return b"\xde" + count.to_bytes(2, "big") if count <= 0xFFFF else b"\xdf" + count.to_bytes(4, "big")


def array_header(count: int) -> bytes:
    """Return the bytes before an array's ``count`` members.

    >>> array_header(2) + msgspec.msgpack.encode(1) + msgspec.msgpack.encode(2) == msgspec.msgpack.encode([1, 2])
    True
    """
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count <= 0xFFFF else b"\xdd" + count.to_bytes(4, "big")


def binary_header(size: int) -> bytes:
    """Return the bytes before a byte string of ``size`` bytes."""
    if size <= 0xFF:
        return bytes((0xC4, size))
    return b"\xc5" + size.to_bytes(2, "big") if size <= 0xFFFF else b"\xc6" + size.to_bytes(4, "big")


def rows(values: Sequence[T], made: Callable[[Sequence[T]], Sequence[object]] = list) -> Iterator[bytes]:
    """Encode an array, some rows at a time; ``made`` turns some values into their rows.

    >>> b"".join(rows([1, 2, 3])) == msgspec.msgpack.encode([1, 2, 3])
    True
    """
    yield array_header(len(values))
    for begin in range(0, len(values), ROWS):
        some = made(values[begin : begin + ROWS])
        yield msgspec.msgpack.encode(some)[len(array_header(len(some))) :]


def map_rows(names: Sequence[str], values: Sequence[object]) -> Iterator[bytes]:
    """Encode a map, some pairs at a time."""
    yield map_header(len(names))
    for begin in range(0, len(names), ROWS):
        some = dict(zip(names[begin : begin + ROWS], values[begin : begin + ROWS], strict=True))
        yield msgspec.msgpack.encode(some)[len(map_header(len(some))) :]


def byte_strings(values: Iterable[bytes], count: int) -> Iterator[bytes]:
    """Encode an array of ``count`` byte strings; the long ones are not copied."""
    small = bytearray(array_header(count))
    for value in values:
        small += binary_header(len(value))
        if len(value) < PIECE_BYTES:
            small += value
            if len(small) < PIECE_BYTES:
                continue
            yield bytes(small)
        else:
            yield bytes(small)
            yield value
        small.clear()
    yield bytes(small)


def in_pieces(section: Section) -> Iterable[bytes]:
    """Return a section's pieces."""
    return (section,) if isinstance(section, bytes) else section
