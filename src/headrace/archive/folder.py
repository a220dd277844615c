"""A folder of an archive or of a job: on a local disk, or on any filesystem of pyarrow's (``hdfs://``, ``s3://`` …).

One rule makes it safe to read at any moment: a file gets its name when it is whole. It is written under a name that
readers skip, synced, and then moved. A move replaces an existing file, at once where the filesystem can do that (every
local one, HDFS, and S3, where an object's content changes as a whole).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from headrace.errors import StorageError, UsageError
from headrace.platforms import sync_path

MAKING = "_making"
"""The folder of files that are not whole yet: readers skip names that begin with ``_``, and no name in it ends in
``.parquet``."""


_IN_URIS: Final = "/:@%~!$&'()*+,;=[]"
"""Characters that are not encoded in a URI. A percent sign begins one that is encoded already."""

NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_KEYS: Final = re.compile("(^|&)[^=&]*(secret|key|token|password)", re.IGNORECASE)
"""Secrets among the options of a URI."""


class Folder:
    """One folder; it need not exist yet. Tasks get copies of it."""

    def __init__(
        self, system: fs.FileSystem, path: str, uri: str = "", options: Mapping[str, str] = NO_OPTIONS
    ) -> None:
        self.system = system
        self.path = path
        self.uri = uri or path
        """Its name for libraries other than pyarrow, without options; on a local disk, the path."""
        self.options = dict(options)
        """Options of its filesystem."""

    @classmethod
    def at(cls, place: str, options: Mapping[str, str] = NO_OPTIONS) -> Folder:
        """Return the folder that a path or a URI names; ``options`` are added to those in a URI.

        >>> Folder.at("/srv/archive").sub("data").path
        '/srv/archive/data'
        """
        scheme, separator, rest = place.partition("://")
        if not separator:
            return cls(fs.LocalFileSystem(), str(Path(place).absolute()))
        rest, _, query = rest.partition("?")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        if (at and (is_s3(place) or ":" in user)) or _KEYS.search(urlencode(options) + "&" + query):
            # Paths are shown in a job's status, and are sent with every task.
            where = "in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or " if is_s3(place) else ""
            raise UsageError(
                f"a path of {scheme}:// must not contain keys: put them {where}wherever else its tools look for them, "
                "on the driver's machine and on every worker's"
            )
        # Hadoop calls its S3 client s3a; pyarrow has another one.
        named = f"{'s3' if scheme == 's3a' else scheme}://{quote(rest, safe=_IN_URIS)}".rstrip("/")
        given = {**dict(parse_qsl(query)), **options}
        try:
            system, path = fs.FileSystem.from_uri(f"{named}?{urlencode(given)}" if given else named)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{named}: {error}") from None
        if isinstance(system, fs.LocalFileSystem):
            return cls(system, path)
        return cls(system, path, named, given)

    @property
    def local(self) -> bool:
        """Whether it is on a disk of this machine, as far as the system knows."""
        return isinstance(self.system, fs.LocalFileSystem)

    def sub(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(self.system, f"{self.path}/{name}", f"{self.uri}/{name}", self.options)

    def names(self) -> list[str]:
        """The names in it, sorted; none if there is no such folder."""
        selector = fs.FileSelector(self.path, allow_not_found=True)
        return sorted(found.base_name for found in self.system.get_file_info(selector))

    def files(self) -> list[str]:
        """The names of the files in it, sorted."""
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
            sync_path(source)
        self.system.move(source, target)
        if self.local:
            sync_path(to.path)

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, or not at all."""
        making, unfinished = self._make(content)
        making.move(unfinished, self, name)

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file whole, unless there is one of that name: then raise :class:`FileExistsError`.

        Only a local disk, or one that is mounted, can do that.
        """
        making, unfinished = self._make(content)
        making.sync(unfinished)
        self.system.create_dir(self.path, recursive=True)
        try:
            os.link(f"{making.path}/{unfinished}", f"{self.path}/{name}")
        finally:
            making.remove(unfinished)
        sync_path(self.path)

    def _make(self, content: bytes) -> tuple[Folder, str]:
        making, unfinished = self.sub(MAKING), uuid4().hex
        with making.create(unfinished) as file:
            file.write(content)
        return making, unfinished

    def sync(self, name: str) -> None:
        """Have a file, and its name, on the disk; elsewhere it is safe when it is closed."""
        if self.local:
            sync_path(f"{self.path}/{name}")
            sync_path(self.path)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(f"{self.path}/{name}")

    def remove_older(self, age: float, but: Collection[str] = ()) -> None:
        """Remove the files in it that were written at least ``age`` seconds ago, but for some."""
        since = time.time() - age
        selector = fs.FileSelector(self.path, allow_not_found=True)
        for found in self.system.get_file_info(selector):
            old = found.is_file and found.mtime_ns is not None and found.mtime_ns / 1e9 <= since
            if old and found.base_name not in but:
                self.remove(found.base_name)

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
def storage_errors(what: str, *more: type[Exception]) -> Iterator[None]:
    """Translate the errors of a filesystem, and ``more`` of a library, into ours."""
    try:
        yield
    except (OSError, pa.ArrowException, *more) as error:
        raise StorageError(f"{what}: {in_one_line(error)}") from error


def in_one_line(error: Exception) -> str:
    """Return a library's error as one line: some have several, with colours for a terminal.

    >>> in_one_line(OSError("not found\\n \\x1b[31m↳\\x1b[0m the store said no"))
    'not found: the store said no'
    """
    plain = _COLOUR.sub("", str(error))
    return ": ".join(line.strip(" ↳") for line in plain.splitlines() if line.strip(" ↳"))
