"""The newest part of the sequence as bytes ready to send, shared by all stream subscribers of a door.

A batch is encoded once, whoever reads it and however many do. A subscriber that keeps up takes the newest chunk; one
that is a little behind takes older ones; one that is further behind is fed from the log. All hold the same bytes
object, so memory does not grow with subscribers.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple


class Chunk(NamedTuple):
    """Encoded messages ``first`` to ``last``."""

    first: int
    last: int
    data: bytes | memoryview


class Recent:
    """The last chunks, bounded in bytes, without a hole between them."""

    __slots__ = ("_chunks", "_firsts", "_max_bytes", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[Chunk] = []
        self._firsts: list[int] = []
        self._size = 0

    def add(self, chunk: Chunk) -> None:
        """Add what follows the newest chunk, and let the oldest go."""
        if self._chunks and self._chunks[-1].last + 1 != chunk.first:
            self.clear()
        self._chunks.append(chunk)
        self._firsts.append(chunk.first)
        self._size += _cost(chunk)
        if self._size > self._max_bytes:
            self._drop()

    def find(self, seq: int) -> Chunk | None:
        """The chunk that holds ``seq``, if it is still here."""
        if not self._chunks or seq < self._firsts[0]:
            return None
        newest = self._chunks[-1]
        if seq >= newest.first:
            return newest if seq <= newest.last else None
        return self._chunks[bisect_right(self._firsts, seq) - 1]

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self._firsts.clear()
        self._size = 0

    def _drop(self) -> None:
        # An eighth at a time, so that lists are not shifted with every chunk.
        gone = 0
        while gone < len(self._chunks) - 1 and self._size > self._max_bytes * 7 // 8:
            self._size -= _cost(self._chunks[gone])
            gone += 1
        del self._chunks[:gone], self._firsts[:gone]


def _cost(chunk: Chunk) -> int:
    """What a chunk takes: its bytes, and about as much again as a small one for the objects around them."""
    return len(chunk.data) + 256
