"""Writing to the end of a tail, all or nothing.

A write that failed may have left bytes behind. They are cut off at once or, where the disk refuses even that, before
anything else is written or a new tail begun: no frame may ever follow what is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from headrace.log.files import translated
from headrace.log.frame import Piece
from headrace.log.tail import TailFile

_MAX_PIECES: Final = 1000
"""Buffers one system call takes (IOV_MAX is 1024 on Linux)."""

_MAX_BYTES: Final = 1 << 19
"""Bytes one system call is given. For more at once Linux takes memory in blocks so large that a virtual machine has
often given them back to its host, and writing to them takes ten times as long as writing to memory that is in use."""


class Writing:
    """The one who writes to a log's open tail."""

    def __init__(self) -> None:
        self._leftover = False
        """A failed write left bytes behind that could not be cut off yet."""

    def write(self, file: TailFile, pieces: list[Piece]) -> None:
        """Write pieces side by side behind the file's whole frames."""
        offset = file.size
        try:
            self.tidy(file)
            for some in _portions(pieces):
                while some:
                    written = os.pwritev(file.fd, some, offset)
                    offset += written
                    some = _behind(some, written)
        except OSError as error:
            self._leftover = True
            with contextlib.suppress(OSError):
                self.tidy(file)
            raise translated(error, file.path) from error

    def tidy(self, file: TailFile) -> None:
        """Cut off what a failed write left behind, if anything."""
        if self._leftover:
            os.ftruncate(file.fd, file.size)
            self._leftover = False

    def cut_back(self) -> None:
        """The tail was cut back, and whatever was left behind with it."""
        self._leftover = False


def _portions(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """The same bytes, in as much as one system call is given."""
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


def _behind(pieces: list[Piece], written: int) -> list[Piece]:
    """What is still to be written."""
    for place, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[place + 1 :]]
        written -= len(piece)
    return []
