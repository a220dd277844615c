"""Files as the log needs them: descriptors that live as long as their last reader, and renames that last."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.errors import FullError, StorageError

MAKING: Final = ".making"
"""What the name of a file ends with while it is being written."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Descriptor:
    """An open file, closed when nobody refers to it any more.

    A segment may be sealed or trimmed away while a reader in another thread is half-way through it. The reader's
    reference keeps the descriptor, and so the removed file's content, until it is done.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory last through a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes, *, sync: bool) -> None:
    """Write a small file so that it is there whole or not at all."""
    with making(path) as unfinished:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        unfinished.rename(path)


@contextlib.contextmanager
def making(path: Path) -> Iterator[Path]:
    """The name a file has until it is whole; whatever still has it at the end is removed."""
    unfinished = path.with_name(path.name + MAKING)
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def translating(path: Path) -> Iterator[None]:
    """Turn the system's errors about ``path`` into ours."""
    try:
        yield
    except OSError as error:
        raise translated(error, path) from error


def translated(error: OSError, path: Path) -> StorageError:
    """One of the system's errors as one of ours."""
    reason = os.strerror(error.errno or 0).lower()
    return FullError(str(path), reason) if error.errno in _NO_ROOM else StorageError(f"{path}: {reason}")
