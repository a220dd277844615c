"""Changes at the end of the log: writing to the open tail, all or nothing, and cutting back.

A growing tail reserves disk space ahead of its end, as much again as it has: allocating each page as it is written
takes a third of the time of an append. The file's size does not include the reserve, and a tail that is no longer
appended to gives it back. On a disk that is filling up nothing is reserved: sealing and snapshots need the space, and
messages are refused while there is too little of it.

A failed write may leave bytes after the last whole frame. They are cut off at once or, if the disk refuses even that,
before anything else is written or a new tail begun: no frame may follow garbage.

Only a node of a cluster cuts its log back, and only by what was never committed: a primary numbered it, no
majority had it, and another took over. A crash meanwhile leaves a log that ends at the old end, at the new one, or at
the end of a file in between; never one with a hole, and never a shorter one. After a crash the node cuts back again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.errors import UsageError
from headrace.log.files import translated
from headrace.log.frame import Piece
from headrace.log.recovery import Segment
from headrace.log.tail import TailFile
from headrace.platforms import reserve_ahead, sync_path

_MAX_PIECES: Final = 1000
"""Buffers per system call (IOV_MAX is 1024 on Linux)."""

_MAX_BYTES: Final = 1 << 19
"""Bytes per system call. For more at once Linux allocates blocks so large that a virtual machine has often given them
back to its host, and writing to them takes ten times as long as to memory in use."""


_RESERVED_FROM: Final = 1 << 20
"""Size of a tail, in bytes, from which on space is reserved ahead."""
_MOST_RESERVED: Final = 16 << 20
_SPARE: Final = 8
"""Space is reserved only on a disk with at least this many times as much free."""


class TailWriter:
    """Writes to a log's open tail."""

    def __init__(self) -> None:
        self._leftover = False
        """Whether a failed write left bytes that could not be cut off yet."""
        self._file: TailFile | None = None
        """The tail written to last, and the size at which it needs more space reserved."""
        self._reserve_at = _RESERVED_FROM

    def write(self, file: TailFile, pieces: list[Piece]) -> None:
        """Write pieces side by side after the file's whole frames."""
        offset = file.size
        if file is not self._file:
            self._file, self._reserve_at = file, _RESERVED_FROM
        if offset >= self._reserve_at:
            self._reserve(file)
        try:
            if self._leftover:
                self.tidy(file)
            if len(pieces) == 1 and len(pieces[0]) <= _MAX_BYTES:
                written = os.pwritev(file.fd, pieces, offset)
                if written == len(pieces[0]):
                    return
                offset += written
                pieces = _unwritten(pieces, written)
            for portion in _portions(pieces):
                while portion:
                    written = os.pwritev(file.fd, portion, offset)
                    offset += written
                    portion = _unwritten(portion, written)
        except (OSError, MemoryError) as error:
            self._leftover = True
            with contextlib.suppress(OSError):
                self.tidy(file)
            if isinstance(error, OSError):
                raise translated(error, file.path) from error
            raise

    def tidy(self, file: TailFile) -> None:
        """Cut off the bytes that a failed write left, if any."""
        if self._leftover:
            os.ftruncate(file.fd, file.size)
            self._leftover = False

    def release(self, file: TailFile) -> None:
        """Give back the space reserved for a tail."""
        if file is self._file and self._reserve_at > _RESERVED_FROM:
            self._file = None
            # If this fails, the space is freed with the file.
            with contextlib.suppress(OSError):
                os.ftruncate(file.fd, file.size)

    def _reserve(self, file: TailFile) -> None:
        size = min(file.size, _MOST_RESERVED)
        # If this fails, for example by a quota, the write finds out whether there is room for the messages.
        with contextlib.suppress(OSError):
            disk = os.fstatvfs(file.fd)
            if disk.f_bavail * disk.f_frsize >= _SPARE * size:
                reserve_ahead(file.fd, file.size, size)
        self._reserve_at = file.size + size

    def note_cut_back(self) -> None:
        """Note that the tail was cut back, and with it anything that a failed write left."""
        self._leftover = False


def cut_back(directory: Path, segments: Sequence[Segment], last: int) -> Iterator[tuple[Segment, ...]]:
    """Remove every operation after ``last`` from the disk; after each step, yield the segments that remain.

    If a step fails, the segments yielded last are those on the disk, and the last of them can be appended to.
    """
    at = next(at for at, segment in enumerate(segments) if segment.last_op > last)
    ending = segments[at]
    if not isinstance(ending, TailFile):
        raise UsageError(f"operation {last + 1} is sealed and cannot be cut off")
    for count in range(len(segments) - 1, at, -1):
        # One at a time, the newest first: a power failure may undo an earlier removal and keep a later one.
        segments[count].path.unlink(missing_ok=True)
        yield tuple(segments[:count])
        sync_path(directory)
    shortened = ending.cut_back(last)
    yield (*segments[:at], shortened)
    if shortened is not ending:
        sync_path(directory)


def _portions(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Cut pieces into portions for one system call each."""
    portion: list[Piece] = []
    room = _MAX_BYTES
    for piece in pieces:
        rest = piece
        while len(rest) > room:
            view = memoryview(rest)
            yield [*portion, view[:room]]
            portion, rest, room = [], view[room:], _MAX_BYTES
        portion.append(rest)
        room -= len(rest)
        if len(portion) == _MAX_PIECES:
            yield portion
            portion, room = [], _MAX_BYTES
    if portion:
        yield portion


def _unwritten(pieces: list[Piece], written: int) -> list[Piece]:
    for place, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[place + 1 :]]
        written -= len(piece)
    return []
