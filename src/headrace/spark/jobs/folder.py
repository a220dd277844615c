"""A folder that jobs write to: on a local disk, or on any filesystem of pyarrow's (``hdfs://``, ``s3://`` …).

One rule makes it safe to read at any moment: a file gets its name when it is whole. It is written under a name that
readers skip, synced, and then moved. A move replaces an existing file, at once where the filesystem can do that (every
local one, HDFS, and S3, where an object's content changes as a whole).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from headrace.errors import StorageError, UsageError

MAKING = "_making"
"""The folder of files that are not whole yet: readers skip names that begin with ``_``, and no name in it ends in
``.parquet``."""


_KEYS: Final = re.compile("(^|&)[^=&]*(secret|key|token|password)", re.IGNORECASE)
"""Secrets among the options of a URI."""


class Folder:
    """One folder; it need not exist yet. Tasks get copies of it."""

    def __init__(self, system: fs.FileSystem, path: str) -> None:
        self.system = system
        self.path = path

    @classmethod
    def at(cls, place: str) -> Folder:
        """Return the folder that a path or a URI names.

        >>> Folder.at("/srv/archive").sub("day=2026-01-31").path
        '/srv/archive/day=2026-01-31'
        """
        scheme, separator, rest = place.partition("://")
        if not separator:
            return cls(fs.LocalFileSystem(), str(Path(place).absolute()))
        user, at, _ = rest.partition("/")[0].rpartition("@")
        if (at and (is_s3(place) or ":" in user)) or _KEYS.search(rest.partition("?")[2]):
            # Paths are shown in a job's status, and are sent with every task.
            where = "in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or " if is_s3(place) else ""
            raise UsageError(
                f"a path of {scheme}:// must not contain keys: put them {where}wherever else its tools look for them, "
                "on the driver's machine and on every worker's"
            )
        try:
            # Hadoop calls its S3 client s3a; pyarrow has another one.
            found = fs.FileSystem.from_uri(f"s3://{rest}" if scheme == "s3a" else place)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{place.partition('?')[0]}: {error}") from None
        return cls(*found)

    @property
    def local(self) -> bool:
        """Whether it is on a disk of this machine, as far as the system knows."""
        return isinstance(self.system, fs.LocalFileSystem)

    def sub(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(self.system, f"{self.path}/{name}")

    def names(self) -> list[str]:
        """What is in it, sorted; nothing, if there is no such folder."""
        selector = fs.FileSelector(self.path, allow_not_found=True)
        return sorted(found.base_name for found in self.system.get_file_info(selector))

    def files(self) -> list[str]:
        """The same without the folders in it."""
        selector = fs.FileSelector(self.path, allow_not_found=True)
        return sorted(found.base_name for found in self.system.get_file_info(selector) if found.is_file)

    def size(self, name: str) -> int:
        """A file's bytes."""
        return int(self.system.get_file_info(f"{self.path}/{name}").size or 0)

    def read(self, name: str) -> bytes:
        """A file's content."""
        with self.open(name) as file:
            content: bytes = file.read()
        return content

    def open(self, name: str) -> Any:
        """Open a file for random reading."""
        return self.system.open_input_file(f"{self.path}/{name}")

    def create(self, name: str) -> Any:
        """Open a file for writing; it is not safe before :meth:`move`."""
        self.system.create_dir(self.path, recursive=True)
        return self.system.open_output_stream(f"{self.path}/{name}")

    def move(self, name: str, to: Folder, new_name: str) -> None:
        """Move a whole file to its place, replacing any of that name."""
        source, target = f"{self.path}/{name}", f"{to.path}/{new_name}"
        self.system.create_dir(to.path, recursive=True)
        if self.local:
            _sync(source)
        self.system.move(source, target)
        if self.local:
            _sync(to.path)

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, or not at all."""
        making = self.sub(MAKING)
        unfinished = uuid4().hex
        with making.create(unfinished) as file:
            file.write(content)
        making.move(unfinished, self, name)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(f"{self.path}/{name}")

    def remove_all(self) -> None:
        """Remove the folder and all that is in it."""
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_dir(self.path)


def is_s3(place: str) -> bool:
    """Return whether a path is a URI of S3, with either scheme.

    >>> is_s3("s3://bucket/archive"), is_s3("s3a://bucket/archive"), is_s3("/srv/archive")
    (True, True, False)
    """
    return place.startswith(("s3://", "s3a://"))


def is_local(place: str) -> bool:
    """Whether a path is on this machine, so that checking it is quick.

    >>> is_local("/srv/archive"), is_local("file:///srv/archive"), is_local("hdfs://mill/archive")
    (True, True, False)
    """
    return "://" not in place or place.startswith("file://")


@contextlib.contextmanager
def storage_errors(what: str) -> Any:
    """Translate a filesystem's errors into ours."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{what}: {error}") from error


def _sync(path: str) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
