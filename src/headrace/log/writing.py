"""Writing to the end of a tail, all or nothing.

A write that failed may have left bytes behind. They are cut off at once or, where the disk refuses even that, before
anything else is written or a new tail begun: no frame may ever follow what is none.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from headrace.log.files import translated
from headrace.log.frame import Piece
from headrace.log.tail import TailFile

_MAX_PIECES: Final = 1000
"""Buffers one system call takes (IOV_MAX is 1024 on Linux)."""


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
            while pieces:
                written = os.pwritev(file.fd, pieces[:_MAX_PIECES], offset)
                offset += written
                pieces = _behind(pieces, written)
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


def _behind(pieces: list[Piece], written: int) -> list[Piece]:
    """What is still to be written."""
    for place, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[place + 1 :]]
        written -= len(piece)
    return []
