"""The base of every stream decoder: received bytes not yet consumed, and how frames come out of them.

Strategy: one growing ``bytearray`` and a cursor. Consumed bytes are dropped in one move when more arrive, so taking a
frame never shifts the rest. A decoder subclasses :class:`Decoder` and implements ``_next``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from headrace.errors import WireError

Buffer = bytes | bytearray | memoryview

F = TypeVar("F")


class ReceiveBuffer:
    """Bytes received and not yet consumed; ``position`` counts the bytes consumed since the start."""

    __slots__ = ("_data", "_start", "position")

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self.position = 0

    def __len__(self) -> int:
        return len(self._data) - self._start

    def receive(self, data: Buffer) -> None:
        """Add bytes from the peer."""
        if self._start:
            del self._data[: self._start]
            self._start = 0
        self._data += data

    def peek(self, count: int, skip: int = 0) -> bytes:
        """Return up to ``count`` bytes after the next ``skip``, without consuming them."""
        begin = self._start + skip
        return bytes(self._data[begin : begin + count])

    def find(self, pattern: bytes, within: int) -> int:
        """Return where ``pattern`` begins among the next ``within`` bytes, or -1."""
        found = self._data.find(pattern, self._start, self._start + within)
        return found - self._start if found >= 0 else -1

    def take(self, count: int) -> bytes:
        """Consume and return ``count`` bytes, which must be here."""
        begin = self._start
        taken = bytes(memoryview(self._data)[begin : begin + count])
        self.skip(count)
        return taken

    def skip(self, count: int) -> None:
        """Consume ``count`` bytes, which must be here."""
        self._start += count
        self.position += count


class Decoder(ABC, Generic[F]):
    """Frames out of bytes that arrive in any chunks.

    :meth:`feed` takes the bytes at once and yields what they complete. The first bytes that break the protocol raise
    :class:`~headrace.errors.WireError` after all before them has been yielded, and the decoder then refuses everything
    with the same error: a stream out of step cannot be trusted.
    """

    def __init__(self) -> None:
        self.inbox = ReceiveBuffer()
        self._refused: WireError | None = None

    def feed(self, data: Buffer) -> Iterator[F]:
        """Take bytes and yield the frames they complete."""
        if self._refused is None:
            self.inbox.receive(data)
        return self._frames()

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete frame; not 0 at a stream's end means that it was cut."""
        return len(self.inbox)

    @property
    def frame_at(self) -> int:
        """Bytes of the stream before the next frame."""
        return self.inbox.position

    def _frames(self) -> Iterator[F]:
        if self._refused is not None:
            raise self._refused
        try:
            while (frame := self._next()) is not None:
                yield frame
        except WireError as error:
            self._refused = error
            raise

    @abstractmethod
    def _next(self) -> F | None:
        """Consume one whole frame and return it; consume nothing and return ``None`` if there is none yet."""
