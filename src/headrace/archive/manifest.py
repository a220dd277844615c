"""The archive as plain Parquet files and nothing else: files are added, and never merged or removed.

Any reader of Parquet may list the folder at any time and read later: what it listed stays, once each. So files appear
in the folder only when they count, in the order of the sequence, in three steps:

1. **Claim.** The numbered entry of the manifest, ``_manifest/N.json``, lists the new files. It is made only if there
   is none of that number: of two writers, one gets it, the other is refused.
2. **Place.** The files move from where tasks wrote them to the folder.
3. **Done.** An empty file ``_manifest/N.done`` says so. Readers of the manifest stop before an entry without it.

Whoever opens the archive to write, finishes an entry that was claimed and not done: repeating step 2 changes nothing.

Step 1 needs a disk, or one that is mounted: object stores offer no such step to ``pyarrow``. Delta has one there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final, NoReturn

from headrace.archive.folder import MAKING, Folder, storage_errors
from headrace.archive.ledger import (
    LOG,
    UNKNOWN,
    Writer,
    check_log,
    commit_facts,
    overtaken,
    writer_in,
)
from headrace.archive.parquet_file import SUFFIX, ArchiveFile
from headrace.errors import NoArchiveError, StorageError, UsageError

MANIFEST: Final = "_manifest"

SUMMED: Final = 256
"""Entries after which one lists the files of all before it, too: so few are read to open an archive."""


class ManifestLedger:
    """The manifest of a folder of Parquet files."""

    staging = MAKING
    merges = False

    def __init__(self, folder: Folder, log: str | None) -> None:
        """Open the archive; with a ``log``, check that it is that log's, and finish what was begun."""
        if log is not None and not folder.local:
            raise UsageError(
                f"{folder.path}: plain Parquet has no transactions but on a disk: choose table-format delta"
            )
        self.folder = folder
        self._manifest = folder.sub(MANIFEST)
        self._number = 0
        self._facts: dict[str, str] = {}
        self._files: list[ArchiveFile] = []
        self.refresh()
        if log is not None:
            with storage_errors(folder.path):
                self._finish()
        self.log = self._facts.get(LOG) or log or ""
        if not self.log:
            raise NoArchiveError(folder.path)
        check_log(folder.path, self.log, log)

    @property
    def version(self) -> int:
        """The number of the newest entry."""
        return self._number

    @property
    def through(self) -> int:
        """The last archived sequence number."""
        return self._files[-1].last if self._files else 0

    def refresh(self) -> None:
        """Read the newest version."""
        with storage_errors(self.folder.path):
            done = [
                int(name.removesuffix(".done")) for name in self._manifest.names() if name.endswith(".done")
            ]
            newest = max(done, default=0)
            begin = max(self._number, newest - newest % SUMMED)
            for number in range(begin, newest + 1):
                if number > self._number:
                    self._take(number)

    def files(self) -> list[ArchiveFile]:
        """The files of this version."""
        return list(self._files)

    def append(self, added: Sequence[ArchiveFile], writer: Writer) -> None:
        """Add files that follow this version."""
        number = self._number + 1
        with storage_errors(self.folder.path):
            files = [replace(file, path=_final(file)) for file in added]
            summed = number % SUMMED == 0
            content = {
                "facts": commit_facts(self.log, added, writer),
                "staged": [file.path for file in added],
                "files": [asdict(file) for file in ([*self._files, *files] if summed else files)],
            }
            try:
                self._manifest.write_new(f"{number:012d}.json", json.dumps(content).encode())
            except FileExistsError:
                raise overtaken(self) from None
            self._place(number)

    def replace(self, parts: Sequence[ArchiveFile], whole: Sequence[ArchiveFile]) -> NoReturn:
        """Refuse: files of a folder without transactions stay as they are."""
        raise UsageError(
            f"{self.folder.path}: files of plain Parquet are not merged: {len(parts)} to {len(whole)}"
        )

    def last_writer(self) -> str:
        """Return who made the newest entry, done or not."""
        claimed = f"{self._number + 1:012d}.json"
        with storage_errors(self.folder.path):
            if claimed in self._manifest.names():
                return writer_in(self._read(self._number + 1)["facts"])
        return writer_in(self._facts) if self._facts else UNKNOWN

    def vacuum(self, age: float) -> None:
        """Remove what tasks wrote ``age`` seconds ago and nobody added; files that count stay."""
        with storage_errors(self.folder.path):
            self.folder.sub(MAKING).remove_older(age)

    def _finish(self) -> None:
        if f"{self._number + 1:012d}.json" in self._manifest.names():
            self._place(self._number + 1)

    def _place(self, number: int) -> None:
        entry = self._read(number)
        there = self.folder.sub(MAKING)
        for staged, file in zip(entry["staged"], entry["files"][-len(entry["staged"]) :], strict=True):
            name = staged.removeprefix(f"{MAKING}/")
            try:
                there.move(name, self.folder, file.path)
            except FileNotFoundError:
                if not self.folder.size(file.path):
                    raise
                # It was moved before.
        self._manifest.write(f"{number:012d}.done", b"")
        self._take(number)

    def _take(self, number: int) -> None:
        entry = self._read(number)
        files = entry["files"]
        self._files = files if number % SUMMED == 0 else self._files + files
        self._facts = entry["facts"]
        self._number = number

    def _read(self, number: int) -> dict[str, Any]:
        name = f"{number:012d}.json"
        try:
            entry = json.loads(self._manifest.read(name))
            files = [ArchiveFile(**file) for file in entry["files"]]
            return {"facts": dict(entry["facts"]), "staged": list(entry["staged"]), "files": files}
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{self._manifest.path}/{name} is damaged: {error!r}") from None


def _final(file: ArchiveFile) -> str:
    """The name of a file that counts: its messages, and the random word of the one that tasks wrote."""
    return f"{file.first:015d}-{file.last:015d}-{file.path.rpartition('-')[2][:8]}{SUFFIX}"
