"""One writer per log: an advisory lock that the operating system drops when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from headrace.errors import LockedError


class WriterLock:
    """Held from construction to :meth:`release`; a second holder gets :class:`~headrace.errors.LockedError`.

    The lock file says who holds it, so that tools can name the process, or talk to it, instead of waiting.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            pid = holder(path).get("pid", "?")
            raise LockedError(str(path.parent), f"process {pid}") from None
        self.tell()

    def tell(self, **facts: object) -> None:
        """Leave facts about the holder for others to read, beside its process id."""
        # A full disk has no room for them, but the lock is held all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode({"pid": os.getpid(), **facts}) + b"\n", 0)

    def release(self) -> None:
        """Let others write."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder(path: Path) -> dict[str, object]:
    """What the holder of a lock file has told; empty when there is none or it has not spoken yet."""
    try:
        told = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError):
        return {}
    return told


def is_at_work(path: Path) -> bool:
    """Whether the process that has told it holds a lock file is there: it may be writing. Takes no lock itself."""
    pid = holder(path).get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
