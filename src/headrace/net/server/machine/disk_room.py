"""Keeps room on the disk for the hub's own needs, and refuses publishers before the disk is full.

A log that fills its disk can only be trimmed after a snapshot, and a snapshot needs room. A file of zeros, the
**reserve**, keeps that room. When a snapshot finds the disk full, the reserve is deleted; it is made again once there
is room. While less than its size is free in addition, messages are refused. Entries of the log are still taken, since
they move the cursors and holds that keep messages from being trimmed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from headrace.errors import FullError, StorageError
from headrace.hub.sequence import Hub
from headrace.platforms import reserve_bytes

NAME: Final = "reserve"
_SHARE: Final = 32
_LEAST: Final = 1 << 20
_MOST: Final = 16 << 20
_USUAL: Final = 4 << 20


class DiskRoom:
    """The room on the disk of one hub's log."""

    def __init__(self, hub: Hub, retain_bytes: int | None) -> None:
        self._hub = hub
        self._path: Path = hub.log.directory / NAME
        self.reserved = _USUAL if retain_bytes is None else min(max(retain_bytes // _SHARE, _LEAST), _MOST)
        """Bytes of the reserve, and of the space that must be free in addition."""
        self.free = self.size = 0
        """Free bytes of the disk and its size, when last checked."""

    def look(self) -> None:
        """Refuse messages while there is too little room, and accept them again after that; call this in a thread."""
        free = self._free()
        if self._hub.shortage is not None:
            if free > 2 * self.reserved + self._lacking():
                self._hub.shortage = None
        elif free < self.reserved:
            self._hub.shortage = FullError(
                str(self._hub.log.directory),
                f"only {free >> 20} MiB are free: messages are refused until there is room",
            )
        if self._hub.shortage is None and self._lacking() and free > 4 * self.reserved:
            with contextlib.suppress(StorageError, OSError):
                self._reserve()

    def give_up(self) -> bool:
        """Delete the reserve; return ``False`` if there is none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _reserve(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            reserve_bytes(descriptor, self.reserved)
        except OSError:
            self.give_up()
        finally:
            os.close(descriptor)

    def _lacking(self) -> int:
        try:
            return max(0, self.reserved - self._path.stat().st_size)
        except OSError:
            return self.reserved

    def _free(self) -> int:
        found = os.statvfs(self._path.parent)
        # Space that only root may use does not count.
        self.free = found.f_bavail * found.f_frsize
        self.size = (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize
        return self.free
