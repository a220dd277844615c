"""The interface of a ledger: the account of an archive's files that count.

An archive is files that never change and a ledger that lists those that count. A commit adds files, or replaces some
by others with the same messages, all at once. It carries who made it (:class:`Writer`) and for which messages, and it
fails with :class:`~headrace.errors.OvertakenError` if anybody else has committed since the ledger was read. So two
writers, a driver that lives on after its successor began, and a second checkpoint cannot add a message twice or leave
one out: the second one is refused, and told who was first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.archive.folder import Folder, in_one_line
from headrace.archive.parquet_file import ArchiveFile
from headrace.errors import OvertakenError, StorageError, UsageError

DATA: Final = "data"
"""The folder of files in a table whose readers know the ledger."""

LOG: Final = "headrace.log"
FIRST: Final = "headrace.first"
THROUGH: Final = "headrace.through"
QUERY: Final = "headrace.query"
BATCH: Final = "headrace.batch"
"""The facts of a commit, by the names that every format keeps them under."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who makes a commit: a query, by its identity, and its micro-batch."""

    query: str
    batch: int

    def __str__(self) -> str:
        return f"query {self.query}, batch {self.batch}"


UNKNOWN: Final = "another writer"


class Ledger(Protocol):
    """An archive's ledger at the version that was last read."""

    log: str
    """The uuid of the archive's log."""
    folder: Folder
    """The table."""
    staging: str
    """The folder in it where tasks write files that do not count yet."""
    merges: bool
    """Whether files may be replaced by others with the same messages."""

    @property
    def version(self) -> int | str:
        """The version; another one has other files."""

    @property
    def through(self) -> int:
        """The last archived sequence number; 0 if there is none."""

    def refresh(self) -> None:
        """Read the newest version."""

    def files(self) -> list[ArchiveFile]:
        """The files of this version, in any order."""

    def append(self, added: Sequence[ArchiveFile], writer: Writer) -> None:
        """Add files that follow this version."""

    def replace(self, parts: Sequence[ArchiveFile], whole: Sequence[ArchiveFile]) -> None:
        """Replace files of this version by others with the same messages."""

    def last_writer(self) -> str:
        """Return who made the newest commit, read or not."""

    def vacuum(self, age: float) -> None:
        """Remove files that have not counted for ``age`` seconds."""


def commit_facts(log: str, added: Sequence[ArchiveFile], writer: Writer) -> dict[str, str]:
    """Return the facts that a commit of new files carries."""
    return {
        LOG: log,
        FIRST: str(added[0].first),
        THROUGH: str(added[-1].last),
        QUERY: writer.query,
        BATCH: str(writer.batch),
    }


def writer_in(facts: dict[str, str]) -> str:
    """Return who made a commit, from its facts."""
    if QUERY not in facts:
        return UNKNOWN
    return f"query {facts[QUERY]}, batch {facts.get(BATCH, '?')}"


def check_log(place: str, theirs: str, ours: str | None) -> None:
    """Raise if an archive is of another log than it is to be."""
    if ours is not None and theirs != ours:
        raise UsageError(
            f"{place} has the archive of log {theirs}, and the hub's log is {ours}: choose another path"
        )


def overtaken(ledger: Ledger) -> OvertakenError:
    """Make the error for a commit that came too late, with the facts of the one that came first."""
    ledger.refresh()
    return OvertakenError(ledger.folder.path, ledger.last_writer(), ledger.through)


@contextmanager
def library_errors(ledger: Ledger, conflict: type[Exception], *others: type[Exception]) -> Iterator[None]:
    """Translate a table library's errors into ours; ``conflict`` is the one for a concurrent commit."""
    try:
        yield
    except conflict as error:
        raise overtaken(ledger) from error
    except others as error:
        raise StorageError(f"{ledger.folder.path}: {in_one_line(error)}") from error
