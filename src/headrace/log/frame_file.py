"""A file of frames: its header, and the good and bad frames in it.

The open tail, and the entries of a sealed segment, are such files: a header, then frames
(:mod:`~headrace.log.frame`) side by side. The functions here read frames from a descriptor and judge them by their
bytes alone; whether frames follow one another is for their caller to say, except :func:`misplaced`, which puts it in
words.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from headrace.errors import DamagedError
from headrace.log import frame
from headrace.log.checksum import crc32c
from headrace.log.files import check_version

READ_BYTES: Final = 1 << 20
"""Bytes of a file read at a time."""

HEADER_BYTES: Final = 56

_FILE: Final = struct.Struct("<8s16sQQqII")
_FILE_MAGIC: Final = b"HRTAIL\x02\n"


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a file of frames, whose first operation is ``op`` and whose first message will be ``first``.

    ``time`` is the time of the operation before: nothing earlier may follow, even if that one is trimmed.
    """

    uuid: UUID
    op: int
    first: int
    time: int
    salt: int

    def serialize(self) -> bytes:
        """Return the header's bytes, with its checksum."""
        head = _FILE.pack(_FILE_MAGIC, self.uuid.bytes, self.op, self.first, self.time, self.salt, 0)[:-4]
        return head + crc32c(head).to_bytes(4, "little")

    @classmethod
    def parse(cls, data: bytes, path: Path) -> FileHeader:
        """Parse the header of a file; raise if it is damaged."""
        check_version(path, data, b"HRTAIL", 2)
        if len(data) < _FILE.size:
            raise DamagedError(str(path), 0, 1, None, "the file header is cut short")
        magic, uuid, op, first, time, salt, crc = _FILE.unpack_from(data)
        if magic != _FILE_MAGIC or crc != crc32c(data[: _FILE.size - 4]):
            raise DamagedError(str(path), 0, 1, None, "the file header is not Headrace's")
        return cls(UUID(bytes=uuid), op, first, time, salt)


class FrameRows(msgspec.Struct, frozen=True):
    """The rows of a frame: how many, which kind, and where they stand."""

    op: int
    first: int
    rows: int
    entries: bool

    @classmethod
    def of(cls, place: frame.FrameInfo) -> FrameRows:
        """Return the rows of a frame in a file."""
        return cls(place.op, place.first, place.rows, place.entries)


def misplaced(rows: FrameRows, following: int) -> str:
    """Describe a frame that stands where another belongs."""
    if rows.entries or rows.first == following:
        return f"entries of the log are missing or doubled after message {following - 1}"
    return f"message {rows.first} stands where {following} belongs"


def read_label(path: Path, fd: int, salt: int, offset: int, first: int) -> frame.Label:
    """Read the label of the frame at ``offset``; raise if that is damaged. ``first`` is the file's first message."""
    try:
        window, _ = _frame_at(fd, salt, offset)
        found = frame.parts(window, 0)
        if found.info.label:
            raise frame.BadFrame("a label is not where it belongs")
    except frame.BadFrame as bad:
        raise DamagedError(
            str(path), offset, first, None, f"the label of later frames is lost: {bad}"
        ) from None
    return frame.own_label(window, found.label)


def walk(fd: int, salt: int, offset: int) -> Iterator[tuple[bytes, frame.FrameInfo]]:
    """Yield the consecutive good frames of a file from ``offset`` on, each with a window of bytes that contains it.

    Stop at the end of the file, or where :func:`fault` tells what is wrong.
    """
    window = b""
    at = 0
    while True:
        for place in frame.scan(window, at, salt):
            yield window, place
            at = place.at + place.length
        lacking = frame.missing(window, at, salt)
        if not lacking:
            return
        offset += at
        wanted = max(READ_BYTES, len(window) - at + lacking)
        before = len(window) - at
        window, at = os.pread(fd, wanted, offset), 0
        if len(window) <= before:
            return


def fault(fd: int, salt: int, offset: int) -> str:
    """The reason why there is no good frame at ``offset``."""
    try:
        _frame_at(fd, salt, offset)
    except frame.BadFrame as bad:
        return str(bad)
    return "a good frame stands out of place"


def find_frame(fd: int, salt: int, offset: int) -> frame.FrameInfo | None:
    """Find the first good frame at or after ``offset``; its ``at`` is counted from the file's beginning."""
    mark = salt.to_bytes(4, "little")
    while window := os.pread(fd, READ_BYTES + len(mark), offset):
        at = window.find(mark)
        while at >= 0:
            if (offset + at) % 4 == 0:
                try:
                    return _frame_at(fd, salt, offset + at)[1]
                except frame.BadFrame:
                    pass
            at = window.find(mark, at + 1)
        offset += READ_BYTES
    return None


def _frame_at(fd: int, salt: int, offset: int) -> tuple[bytes, frame.FrameInfo]:
    window = os.pread(fd, frame.HEADER.size, offset)
    window = os.pread(fd, len(window) + frame.missing(window, 0, salt), offset)
    frame.check(window, 0, salt)
    return window, frame.info(window, 0)._replace(at=offset)
