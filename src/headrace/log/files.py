"""Files as the log needs them: descriptors that live as long as their readers, whole files, and one writer per log."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import FullError, LockedError, StorageError
from headrace.platforms import lock_file

MAKING: Final = ".making"
"""The suffix of a file's name while it is being written."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG})


class FailedSync(OSError):  # noqa: N818 -- an OSError like any other, for whoever only translates it
    """A sync of messages failed. The system forgets what it could not write, so a later sync would prove nothing."""


class Descriptor:
    """An open file, closed with the last reference to it.

    A segment may be sealed or trimmed away while a reader in another thread is half-way through it. The reader's
    reference keeps the descriptor, and so the removed file's content.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = os.open(path, flags)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


def write_whole(path: Path, *pieces: bytes, sync: bool) -> None:
    """Write a file in pieces, whole or not at all."""
    with making(path) as unfinished:
        with unfinished.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        unfinished.rename(path)


@contextlib.contextmanager
def making(path: Path) -> Iterator[Path]:
    """Give a temporary name for a file being written; a file still under that name at the end is removed."""
    unfinished = path.with_name(path.name + MAKING)
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def check_version(path: Path, data: bytes, name: bytes, version: int) -> None:
    """Refuse a file of an older version of the log's format: its first bytes are a name and the version."""
    found = data[len(name)] if data.startswith(name) and len(data) > len(name) else version
    if 0 < found < version:
        raise StorageError(
            f"{path} has version {found} of the log's format, and this Headrace reads version {version}:"
            " begin with an empty data directory, or keep using the Headrace that wrote it"
        )


@contextlib.contextmanager
def translating(path: Path) -> Iterator[None]:
    """Turn the system's errors about ``path`` into ours."""
    try:
        yield
    except OSError as error:
        raise translated(error, path) from error


def translated(error: OSError, path: Path) -> StorageError:
    """Translate one of the system's errors."""
    reason = os.strerror(error.errno or 0).lower()
    return FullError(str(path), reason) if error.errno in _NO_ROOM else StorageError(f"{path}: {reason}")


class WriterLock:
    """The lock of a log's one writer, from construction to :meth:`release`; a second gets a ``LockedError``.

    The operating system drops the lock when its holder dies. The file names the holder, so that tools can report the
    process, or talk to it, instead of waiting.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock_file(self._fd)
        except BlockingIOError:
            os.close(self._fd)
            pid = holder(path).get("pid", "?")
            raise LockedError(str(path.parent), f"process {pid}") from None
        self.tell()

    def tell(self, **facts: object) -> None:
        """Write facts about the holder into the file, beside its process id."""
        # They may not fit on a full disk; the lock is held all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode({"pid": os.getpid(), **facts}) + b"\n", 0)

    def release(self) -> None:
        """Release the lock, so that another process can write."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder(path: Path) -> dict[str, object]:
    """Read the facts that a lock's holder wrote; empty if there are none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError):
        return {}


def has_writer(path: Path) -> bool:
    """Whether the process named in a lock file is running, and so may be writing. Takes no lock itself."""
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
