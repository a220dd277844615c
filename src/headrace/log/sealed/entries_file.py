"""The entries of a sealed segment: frames as they were in the tail, in a file beside the Arrow file.

``N.arrow`` holds messages only, for any Arrow reader. ``N.entries`` has the header of the tail they were in, and the
frames of its log entries, with labels of their own. Readers of messages never open it; nodes and copies of a log, and a
hub that restores its state, read both (:meth:`headrace.log.sealed.segment.SealedSegment.read_ops`).
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.errors import DamagedError
from headrace.log import frame
from headrace.log.files import Descriptor, making
from headrace.log.frame_file import HEADER_BYTES, FileHeader, fault, walk
from headrace.message import Batch


class EntriesFile:
    """The entries of one sealed segment, read by any thread."""

    def __init__(self, path: Path) -> None:
        """Read every frame's place, and check each; raise if the file is damaged."""
        self.path = path
        # Not kept open: a descriptor for each segment could exhaust them.
        descriptor = Descriptor(path, os.O_RDONLY)
        fd = descriptor.fd
        self.header = FileHeader.parse(os.pread(fd, HEADER_BYTES, 0), path)
        places = []
        self.last_time = self.header.time
        """The time of the last entry."""
        for window, place in walk(fd, self.header.salt, HEADER_BYTES):
            places.append(place)
            self.last_time = frame.last_time(window, place.at)
        self.size = HEADER_BYTES + sum(place.length for place in places)
        if self.size != os.fstat(fd).st_size:
            after = places[-1].first if places else self.header.first - 1
            raise DamagedError(str(path), self.size, after + 1, after, fault(fd, self.header.salt, self.size))
        self._lengths = [place.length for place in places]
        self._offsets = [HEADER_BYTES, *(HEADER_BYTES + np.cumsum(self._lengths)).tolist()]
        self._ops = [place.op for place in places]
        self._afters = [place.first for place in places]
        self._rows = [place.rows for place in places]
        self._before: list[int] = [0, *np.cumsum(self._rows).tolist()]
        """How many entries come before each frame, and how many there are."""
        for index, place in enumerate(places):
            messages = place.first - self.header.first + 1
            expected = self.header.op + messages + self._before[index]
            if place.op != expected or messages < 0 or not place.entries or place.label:
                reason = f"entries of the log are missing or doubled after message {place.first}"
                raise DamagedError(str(path), self._offsets[index], place.first + 1, place.first, reason)

    @property
    def count(self) -> int:
        """Number of entries."""
        return self._before[-1]

    @property
    def last_after(self) -> int:
        """The message that the last entry stands after; the one before the segment if there is none."""
        return self._afters[-1] if self._afters else self.header.first - 1

    def upto(self, op: int) -> int:
        """Count the entries up to an operation."""
        index = bisect_right(self._ops, op) - 1
        return 0 if index < 0 else self._before[index] + min(op - self._ops[index] + 1, self._rows[index])

    def before(self, seq: int) -> int:
        """Count the entries that stand before a message."""
        return self._before[bisect_left(self._afters, seq)]

    def next_op(self, op: int) -> int | None:
        """The first entry at or after an operation."""
        index = bisect_right(self._ops, op) - 1
        if index >= 0 and op < self._ops[index] + self._rows[index]:
            return op
        return self._ops[index + 1] if index + 1 < len(self._ops) else None

    def read(self, op: int, last: int) -> Batch:
        """Read entries from ``op``, which must be an entry, up to ``last`` or the end of their frame."""
        index = bisect_right(self._ops, op) - 1
        offset = self._offsets[index]
        descriptor = Descriptor(self.path, os.O_RDONLY)
        window = os.pread(descriptor.fd, self._lengths[index], offset)
        try:
            frame.check(window, 0, self.header.salt)
        except frame.BadFrame as bad:
            after = self._afters[index]
            raise DamagedError(str(self.path), offset, after + 1, after, str(bad)) from None
        begin = op - self._ops[index]
        return frame.decode(window, 0, _no_label).slice(
            begin, min(self._rows[index], last - self._ops[index] + 1)
        )


class EntriesWriter:
    """Writes the entries of a segment that is being sealed; no file is made if there are none."""

    def __init__(self, path: Path, header: FileHeader, unfinished: Path) -> None:
        self.size = 0
        """Bytes of the file; 0 without one."""
        self._path = path
        self._unfinished = unfinished
        self._header = header
        self._pieces: list[frame.Piece] = []
        self._begun = False

    @classmethod
    @contextlib.contextmanager
    def beside(cls, segment: Path, header: FileHeader) -> Iterator[EntriesWriter]:
        """Write the entries file of a segment; without :meth:`finish` nothing of it stays."""
        path = segment.with_suffix(".entries")
        with making(path) as unfinished:
            yield cls(path, header, unfinished)

    def add(self, batch: Batch) -> None:
        """Add a batch of entries."""
        if not self.size:
            self._pieces.append(self._header.serialize())
            self.size = HEADER_BYTES
        pieces, length = frame.encode(batch, self._header.salt, time=frame.time_span(batch)[0])
        self._pieces += pieces
        self.size += length
        if len(self._pieces) >= 1024:
            self._write()

    def finish(self, *, sync: bool) -> None:
        """Put the file in its place, if there is anything in it."""
        if not self.size:
            return
        self._write()
        if sync:
            descriptor = Descriptor(self._unfinished, os.O_RDONLY)
            os.fsync(descriptor.fd)
        self._unfinished.rename(self._path)

    def _write(self) -> None:
        # A crash may have left a file there: it is overwritten, not appended to.
        with self._unfinished.open("ab" if self._begun else "wb") as file:
            file.writelines(self._pieces)
        self._begun = True
        self._pieces.clear()


def _no_label(_at: int) -> frame.Label:
    raise frame.BadFrame("a label is not where it belongs")
