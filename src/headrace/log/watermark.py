"""The watermark: the last operation that is known to be on the disk, so that a power failure needs no operator.

A power failure may lose any page that was not synced, and keep later ones. What such a failure leaves looks like
damage: bad bytes before good frames. The file ``synced`` tells the two apart. Bad bytes at or before the watermark were
promised to somebody, and opening the log fails. Beyond it nothing was promised: everything from the first bad byte on
is a torn end, which is cut off and counted.

The file is written after each sync and not synced itself: it may lag, but never run ahead. It has two slots, written
in turn: a torn write of one leaves the other. Under ``fsync=never`` there is no watermark, and without one everything
in the log counts as promised.

A node of a cluster has a second one, ``committed``: the last operation that it knows to be committed. It is written a
few times a second, so that a restarted node notices if the cluster has gone on without any of these operations.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from headrace.log.checksum import crc32c
from headrace.log.files import Descriptor
from headrace.platforms import sync_data

NAME: Final = "synced"
COMMITTED: Final = "committed"

logger = logging.getLogger("headrace")

_FORM: Final = struct.Struct("<8s16sQQI")
"""Magic, the log's uuid, the operation, the note's own number, and the checksum of all these."""
_MAGIC: Final = b"HRSYNC\x02\n"


class Watermark:
    """A watermark of a log that is open for writing."""

    def __init__(self, directory: Path, name: str = NAME) -> None:
        newest = _newest(directory, name)
        self._descriptor = Descriptor(directory / name, os.O_RDWR | os.O_CREAT)
        self._next = 1 if newest is None else newest.number + 1

    def write(self, uuid: UUID, op: int, *, sync: bool = False) -> None:
        """Note that every operation up to ``op`` is on the disk, or committed."""
        body = _FORM.pack(_MAGIC, uuid.bytes, op, self._next, 0)[:-4]
        rest = body + crc32c(body).to_bytes(4, "little")
        offset = self._next % 2 * len(rest)
        while rest:
            written = os.pwrite(self._descriptor.fd, rest, offset)
            rest, offset = rest[written:], offset + written
        self._next += 1
        if sync:
            sync_data(self._descriptor.fd)


class _Note(NamedTuple):
    number: int
    uuid: UUID
    op: int


def begin(directory: Path) -> Watermark | None:
    """Open a log's watermark for writing; if that fails, the log goes on without one."""
    try:
        return Watermark(directory)
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        logger.warning("%s: %s; a power failure may need a repair", directory / NAME, why)
        # A watermark that never moves again would still promise operations that are cut back later.
        forget(directory)
        return None


def read(directory: Path, name: str = NAME) -> tuple[UUID, int] | None:
    """The log and the operation that a watermark names; ``None`` if there is no good one."""
    newest = _newest(directory, name)
    return None if newest is None else (newest.uuid, newest.op)


def forget(directory: Path) -> None:
    """Remove the watermark: which operations are on the disk is not known."""
    with contextlib.suppress(OSError):
        (directory / NAME).unlink(missing_ok=True)


def _newest(directory: Path, name: str) -> _Note | None:
    """Return the newest of the notes that are whole."""
    try:
        data = (directory / name).read_bytes()
    except OSError:
        return None
    notes = []
    for place in (data[: _FORM.size], data[_FORM.size :]):
        if len(place) == _FORM.size and crc32c(place[:-4]) == int.from_bytes(place[-4:], "little"):
            magic, uuid, op, number, _ = _FORM.unpack(place)
            if magic == _MAGIC:
                notes.append(_Note(number, UUID(bytes=uuid), op))
    return max(notes, default=None)
