"""A reader's cursor over the log, and the cache of recently encoded chunks.

There is no "live" and no "catching up", only a cursor. The chunk at the cursor is taken from the cache, or read from
the log off the event loop if the cache no longer has it; then the cursor moves past it. So a reader that falls behind
and catches up has no seam at which a message could be missed or repeated, and costs one chunk of memory.

Every reader of the sequence has a :class:`Cursor`: fyrehose subscribers (TCP and UDP), link follows, SDK clients and
the matcher. A cursor reads nothing itself: :meth:`Cursor.step` says what to take or to read next, and a driver does it.
Encodings differ by protocol, so each door has an :class:`EncodedCache` with its own encoder. A batch is encoded once
for all readers, which share the bytes.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from headrace.errors import HeadraceError, TrimmedError
from headrace.hub.sequence_ranges import Range
from headrace.message import MAX_SEQUENCE, Batch

CHUNK_BYTES: Final = 1 << 20
"""Payload bytes that are encoded as one chunk, since a commit may have far more than should wait for one reader."""

NOWHERE: Final = MAX_SEQUENCE + 2
"""The position of a cursor that does not want the sequence; no log reaches it."""

_CHUNK_OVERHEAD: Final = 256
"""Memory of a chunk in addition to its bytes, for the objects around them."""


class LogBounds(Protocol):
    """The bounds of the log: it holds messages ``first`` to ``head``."""

    @property
    def first(self) -> int:
        """The oldest sequence number kept; ``head + 1`` if none is."""

    @property
    def head(self) -> int:
        """The newest committed sequence number; 0 before the first."""


class Chunk(Protocol):
    """Messages ``first`` to ``last`` in the form that a reader takes."""

    @property
    def first(self) -> int:
        """The first sequence number."""

    @property
    def last(self) -> int:
        """The last sequence number."""


class CachedChunk(Chunk, Protocol):
    """A chunk that knows its size in bytes."""

    @property
    def size(self) -> int:
        """Bytes of memory that it keeps."""


class EncodedChunk(msgspec.Struct, frozen=True):
    """Messages ``first`` to ``last`` as bytes that are ready to send."""

    first: int
    last: int
    data: bytes | memoryview

    @property
    def size(self) -> int:
        """Bytes of memory that it keeps."""
        return len(self.data)


C = TypeVar("C", bound=Chunk)
K = TypeVar("K", bound=CachedChunk)


class EncodedCache(Generic[K]):
    """The newest chunks, bounded in bytes and number, without a hole between them.

    ``encode`` turns batches into a chunk, or returns ``None`` for what is better read from the log.
    """

    __slots__ = ("_bytes", "_chunks", "_encode", "_max_bytes", "_max_chunks", "readers")

    def __init__(
        self, encode: Callable[[Sequence[Batch]], K | None], *, max_bytes: int, max_chunks: int = sys.maxsize
    ) -> None:
        self.readers = 0
        """Number of readers that want the newest messages; if it is 0, nothing need be encoded."""
        self._encode = encode
        self._max_bytes = max_bytes
        self._max_chunks = max_chunks
        self._chunks: list[K] = []
        self._bytes = 0

    def encode(self, batches: Sequence[Batch]) -> list[K]:
        """Encode newly committed batches, about :data:`CHUNK_BYTES` at a time; return the chunks."""
        made: list[K] = []
        begin = size = 0
        for end, batch in enumerate(batches, 1):
            size += batch.run.size
            if size >= CHUNK_BYTES or end == len(batches):
                chunk = self._encode(batches[begin:end])
                if chunk is None:
                    self.clear()
                else:
                    self.add(chunk)
                    made.append(chunk)
                begin, size = end, 0
        return made

    def add(self, chunk: K) -> None:
        """Add the chunk that follows the newest, and drop the oldest beyond the bounds."""
        if self._chunks and self._chunks[-1].last + 1 != chunk.first:
            self.clear()
        self._chunks.append(chunk)
        self._bytes += chunk.size + _CHUNK_OVERHEAD
        if self._bytes > self._max_bytes or len(self._chunks) > self._max_chunks:
            self._drop()

    def find(self, seq: int) -> K | None:
        """Return the chunk that holds ``seq``, if it is still here."""
        chunks = self._chunks
        if not chunks or seq < chunks[0].first:
            return None
        newest = chunks[-1]
        if seq >= newest.first:
            return newest if seq <= newest.last else None
        return chunks[bisect_right(chunks, seq, key=_first) - 1]

    def discard(self, upto: int) -> None:
        """Drop the chunks that end at or before ``upto``, since every reader is past them."""
        count = bisect_right(self._chunks, upto, key=_last)
        self._bytes -= sum(chunk.size + _CHUNK_OVERHEAD for chunk in self._chunks[:count])
        del self._chunks[:count]

    def clear(self) -> None:
        """Drop everything."""
        self._chunks.clear()
        self._bytes = 0

    def _drop(self) -> None:
        # Drop an eighth at a time, so that the list is not shifted with every chunk.
        gone, count = 0, len(self._chunks)
        while gone < count - 1 and (
            self._bytes > self._max_bytes * 7 // 8 or count - gone > self._max_chunks
        ):
            self._bytes -= self._chunks[gone].size + _CHUNK_OVERHEAD
            gone += 1
        del self._chunks[:gone]


_first = attrgetter("first")
_last = attrgetter("last")


@dataclass(slots=True)
class RequestedRange:
    """Messages that a reader requested and does not have yet."""

    first: int
    last: int


class Step(NamedTuple, Generic[C]):
    """What to do next: give ``chunk`` to the reader, and begin to ``read`` a range; wait if both are ``None``."""

    chunk: C | None
    read: Range | None


class Lost(NamedTuple):
    """Messages that cannot be read, and whether the cursor ends because of that."""

    first: int
    last: int
    ended: bool


def cut_off_reason(error: HeadraceError) -> str:
    """Return the counter label for a reader that is cut off because of this error."""
    return "lagging" if isinstance(error, TrimmedError) else "damaged"


class _Reading(NamedTuple):
    first: int
    last: int
    wanted: RequestedRange | None


_WAIT: Final[Step[Any]] = Step(None, None)


class Cursor(Generic[C]):
    """One reader's place in the log.

    ``find`` looks a sequence number up in the cache. With ``read_ahead`` the next chunk is read while the reader takes
    the previous one. The cursor ends at ``last``; without ``last``, it waits at the head for the next commit. Messages
    that cannot be read end the cursor, unless it ``passes_over`` them.
    """

    __slots__ = (
        "_find", "_passes_over", "_read_ahead", "_reading", "_ready", "_ready_for", "closed", "last", "next", "ranges"
    )  # fmt: skip

    def __init__(
        self,
        first: int = NOWHERE,
        find: Callable[[int], C | None] = lambda _seq: None,
        *,
        last: int | None = None,
        read_ahead: bool = False,
        passes_over: bool = False,
    ) -> None:
        self.next = first
        """The next message; :data:`NOWHERE` while the sequence is not wanted."""
        self.last = last
        self.ranges: list[RequestedRange] = []
        """Ranges to serve before the sequence continues, in the order in which they were requested."""
        self.closed = False
        self._find = find
        self._read_ahead = read_ahead
        self._passes_over = passes_over
        self._reading: _Reading | None = None
        self._ready: C | None = None
        self._ready_for: RequestedRange | None = None

    @property
    def reading(self) -> bool:
        """Whether a read is under way; there is never more than one."""
        return self._reading is not None

    def behind(self, head: int) -> int:
        """Return how many committed messages the reader does not have yet."""
        return max(0, head + 1 - self.next)

    @property
    def follows(self) -> bool:
        """Whether the sequence is wanted."""
        return self.next != NOWHERE

    def step(self, head: int) -> Step[C]:
        """Decide what to do next, given that everything up to ``head`` is committed.

        A chunk stays ready, and is returned again, until :meth:`advance` moves past it.
        """
        chunk = self._ready
        if chunk is not None:
            if self._ready_for is not None or chunk.first == self.next:
                return Step(chunk, self._following(chunk, head) if self._read_ahead else None)
            self._ready = (
                None  # The chunk is no longer wanted: the subscription lapsed or was restarted meanwhile.
            )
        if self._reading is not None or self.closed:
            return _WAIT
        while self.ranges:
            wanted = self.ranges[0]
            if wanted.first <= wanted.last:
                return Step(None, self._read(wanted.first, wanted.last, wanted))
            del self.ranges[0]
        following = self.next
        end = head if self.last is None else min(self.last, head)
        if following > end:
            return _WAIT
        chunk = self._find(following)
        if chunk is None:
            return Step(None, self._read(following, end))
        if chunk.first < following:
            # The cursor is in the middle of a chunk: read the rest from the log, then continue chunk by chunk.
            return Step(None, self._read(following, chunk.last))
        self._ready, self._ready_for = chunk, None
        return Step(chunk, None)

    def expects(self, first: int) -> bool:
        """Return whether message ``first`` is the next that the reader waits for at the head.

        Then it can take the chunk that begins there as soon as it is encoded, and continue after it.
        """
        return self.next == first and self._ready is None and self._reading is None and not self.ranges

    def advance(self) -> None:
        """Move past the chunk that is ready, since the reader has taken it."""
        chunk, self._ready = self._ready, None
        if chunk is not None:
            if self._ready_for is None:
                self.next = chunk.last + 1
            else:
                self._ready_for.first = chunk.last + 1

    def pop(self) -> C | None:
        """Return the chunk that is ready, if it is still wanted, and forget it; what is left of it is read again."""
        chunk, self._ready = self._ready, None
        return chunk if chunk is not None and chunk.first == self.next else None

    def was_read(self, chunk: C) -> None:
        """Take the chunk that :meth:`step` asked to read."""
        if self._reading is not None and not self.closed:
            self._ready, self._ready_for = chunk, self._reading.wanted
        self._reading = None

    def read_failed(self, error: HeadraceError) -> Lost | None:
        """Handle a failed read: skip what retention removed from a requested range; otherwise end.

        A cursor that ``passes_over`` unreadable messages continues after them in any case.
        """
        if self._reading is None:
            raise AssertionError("no read is under way")
        (first, last, wanted), self._reading = self._reading, None
        if wanted is not None and isinstance(error, TrimmedError):
            wanted.first = min(last, error.oldest - 1) + 1
            return Lost(first, wanted.first - 1, ended=False)
        if wanted is None and self.next != first:
            return None  # No longer wanted.
        if self._passes_over:
            gone = error.oldest - 1 if isinstance(error, TrimmedError) else last
            self.next = gone + 1
            return Lost(first, gone, ended=False)
        self.close()
        return Lost(first, last, ended=True)

    def read_again(self) -> None:
        """Forget the read that is under way, so that the next :meth:`step` asks for it again."""
        self._reading = None

    def skip_to(self, first: int) -> Range:
        """Continue at ``first``; return the skipped messages."""
        skipped = self.next, first - 1
        self.next = first
        return skipped

    def take(self, head: int, most: int) -> Range:
        """Move past at most ``most`` committed messages and return them; there must be one."""
        taken = self.next, min(head, self.next + most - 1)
        self.next = taken[1] + 1
        return taken

    def close(self) -> None:
        """Stop: the reader wants nothing more."""
        self.closed = True
        self.next, self._ready = NOWHERE, None
        self.ranges.clear()

    def _following(self, chunk: C, head: int) -> Range | None:
        """Decide what to read while the reader takes a chunk that came from the log."""
        following, wanted = chunk.last + 1, self._ready_for
        if self._reading is not None:
            return None
        if wanted is not None:
            return self._read(following, wanted.last, wanted) if following <= wanted.last else None
        if self.ranges or following > head or self._find(following) is not None:
            return None
        return self._read(following, head)

    def _read(self, first: int, last: int, wanted: RequestedRange | None = None) -> Range:
        self._reading = _Reading(first, last, wanted)
        return first, last
