"""A log's archive as its past: what retention has removed from the hub's disk is read from there.

The log's directory has a note of what its archive holds, written before anything is removed. So a hub that starts while
the archive cannot be reached knows which messages are there: whoever asks for them gets an error that says why they
cannot be read now, and nobody is told that they are gone. ``docs/archive.md`` tells an operator what follows from that.

An archive is trusted with a message once its copy of that message was compared (:meth:`ArchivedPast.vouched`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import numpy as np
from pyarrow.fs import FileSystem

from headrace.archive.parquet_file import ArchiveFile
from headrace.archive.reader import ArchiveReader
from headrace.archive.table import ArchiveTable, format_of, open_table
from headrace.errors import ArchiveError, DamagedError, HeadraceError, NoArchiveError, StorageError
from headrace.log.files import translating, write_whole
from headrace.log.frame import times
from headrace.log.sealed.segment import SealedSegment
from headrace.log.store import Log
from headrace.log.topics.found import Found
from headrace.log.topics.segment_topics import TopicChoice
from headrace.message import Batch
from headrace.platforms import sync_path

T = TypeVar("T")

logger = logging.getLogger("headrace")

NOTE: Final = "archive"
"""The file in a log's directory that says what its archive holds."""

_COMPARED: Final = 4
"""Segments whose copies are compared at a time."""


class ArchiveNote(msgspec.Struct, frozen=True):
    """What an archive was seen to hold of a log."""

    place: str
    log: str
    first: int
    last: int


def read_note(directory: Path) -> ArchiveNote | None:
    """Return the note in a log's directory, if there is one."""
    path = directory / NOTE
    with translating(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        return msgspec.json.decode(data, type=ArchiveNote)
    except (msgspec.DecodeError, UnicodeDecodeError):
        reason = "it does not say what the log's archive holds; remove it if there is no archive"
        raise DamagedError(str(path), 0, 1, None, reason) from None


def attach(log: Log, place: str | None = None) -> ArchivedPast | None:
    """Give a log its past, if it has one: the archive at ``place``, or the one that its directory names."""
    note = read_note(log.directory)
    if place is None and note is not None:
        place = note.place
    if place is None:
        return None
    past = ArchivedPast(log, place)
    past.look()
    log.past = past
    return past


@contextmanager
def open_whole(directory: Path) -> Iterator[Log]:
    """Open a log for reading, beside a hub or without, together with what only its archive has."""
    log = Log.open(directory, read_only=True)
    try:
        attach(log)
        yield log
    finally:
        log.close()


class Count(Protocol):
    """A counter."""

    value: int


@dataclass(slots=True)
class _Uncounted:
    value: int = 0


class ArchivedPast:
    """What an archive holds of a log; any thread may read it."""

    def __init__(self, log: Log, place: str, *, served: Count | None = None) -> None:
        self.place = place if "://" in place else str(Path(place).absolute())
        self.problem: str | None = "it has not answered yet"
        """Why it cannot be read now, if so."""
        self._log = log
        self._uuid = str(log.uuid)
        self._served = served or _Uncounted()
        """Messages that were read."""
        self._counting = threading.Lock()
        self._looking = threading.Lock()
        self._reader: ArchiveReader | None = None
        self._table: ArchiveTable | None = None
        note = read_note(log.directory)
        if note is not None and note.log != self._uuid:
            note = None
        self._noted = note
        self._range = (1, 0) if note is None else (note.first, note.last)
        self._compared = 0

    @property
    def first(self) -> int:
        """The oldest message."""
        return self._range[0]

    @property
    def last(self) -> int:
        """The newest message that is known to be there."""
        return self._range[1]

    def look(self) -> bool:
        """Look for the newest version of the archive; return whether it is there and of this log. For a thread."""
        with self._looking:
            try:
                self._take(self._newest())
                self.problem = None
            except NoArchiveError:
                self._lose("there is none" if self._noted is None else "there is none any more")
            except ArchiveError as error:
                self._lose(error.reason)
            except HeadraceError as error:
                self._lose(str(error))
            return self.problem is None

    def vouched(self) -> int:
        """Return the last message up to which segments of the log may go: the archive has the same. For a thread.

        Of some segments the times of all messages are compared, and the last message as a whole. A hub that lost its
        newest messages with the power goes on with others under the same numbers: if the archive has the lost ones, it
        may agree with the log before them and after them. Then, or if it cannot be read, that is its problem.
        """
        log = self._log
        if self._table is None or not log.segments:
            return 0
        here = [each for each in log.segments[:-1] if isinstance(each, SealedSegment)]
        try:
            for segment in [each for each in here if each.last > self._compared][:_COMPARED]:
                if segment.last > self.last or segment.first < self.first:
                    break
                if segment.last >= segment.first:
                    self._compare(segment.first, segment.last)
                self._compared = segment.last
        except ArchiveError as error:
            self.problem = error.reason
        except StorageError as error:
            # The log's own copy is damaged or gone: it stays.
            logger.warning("not compared with the archive: %s", error)
        return self._compared

    def read(self, first: int, last: int, max_bytes: int) -> list[Batch]:
        """Read messages from ``first`` on, up to ``last`` or about ``max_bytes``, at least one."""
        batches = self._reading(first, last, lambda reader: reader.read(first, last, max_bytes))
        self._count(batches)
        return batches

    def find(self, first: int, last: int, topics: TopicChoice | None, max_bytes: int) -> Found:
        """Read messages from ``first`` on that may be of chosen topics."""
        found = self._reading(first, last, lambda reader: reader.find(first, last, topics, max_bytes))
        self._count(found.batches)
        return found

    def seq_at(self, time: int) -> int | None:
        """Return the first message stamped at or after ``time`` (µs), if there is one."""
        return self._reading(self.first, self.last, lambda reader: reader.seq_at(time))

    def reach(self, first: int, size: int) -> tuple[int, int]:
        """Return how far about ``size`` stored bytes reach from ``first`` on, and how many that takes."""
        reader = self._reader
        return (self.last, 0) if reader is None else reader.reach(first, size)

    def first_time(self) -> int | None:
        """Return the time of the oldest message, if it is known."""
        reader = self._reader
        return None if reader is None else reader.first_time()

    def files(self, first: int, last: int) -> tuple[FileSystem, list[ArchiveFile]]:
        """Return the files that hold any message of a range, for whoever reads Parquet, and where they are opened."""
        table = self._table
        if table is None:
            raise ArchiveError(self.place, first, last, self.problem or "it cannot be reached")
        return table.filesystem, table.files(first, last)

    def facts(self) -> dict[str, object]:
        """Return what a status says of it."""
        return {
            "place": self.place,
            "first": self.first,
            "last": self.last,
            "served": self._served.value,
            "problem": self.problem,
        }

    def _count(self, batches: Sequence[Batch]) -> None:
        with self._counting:
            self._served.value += sum(map(len, batches))

    def _compare(self, first: int, last: int) -> None:
        """Raise if messages of the log differ from the archive's."""
        at = first
        while at <= last:
            theirs = self._reading(at, last, partial(ArchiveReader.times, first=at, last=last))
            end = at + len(theirs) - 1
            ours = np.concatenate([times(batch.to_arrow()) for batch in self._log.scan(at, end)])
            if len(differing := np.flatnonzero(ours != theirs)):
                raise self._differs(at + int(differing[0]))
            at = end + 1
        whole = self._reading(last, last, lambda reader: reader.read(last, last, 1))
        # By what is shown of them: one that is no number equals itself there.
        if [repr(each) for each in whole[0]] != [repr(each) for each in self._log.read(last, last)[0]]:
            raise self._differs(last)

    def _differs(self, seq: int) -> ArchiveError:
        reason = f"its message {seq} differs from the log's: it is of another history"
        return ArchiveError(self.place, seq, seq, reason)

    def _newest(self) -> ArchiveTable:
        if self._table is not None and format_of(self._table.folder) is not None:
            # Another archive may have taken its place, which is no newer version of this one.
            with suppress(StorageError):
                return self._table.refreshed()
        self._compared = 0
        return open_table(self.place)

    def _reading(self, first: int, last: int, read: Callable[[ArchiveReader], T]) -> T:
        reader, table = self._reader, self._table
        if reader is None:
            raise ArchiveError(self.place, first, last, self.problem or "it cannot be reached")
        try:
            return read(reader)
        except ArchiveError:
            # Files that another version has replaced are removed some time later.
            if not self.look() or self._table is table:
                raise
            return read(reader)

    def _take(self, table: ArchiveTable) -> None:
        if table.log != self._uuid:
            reason = f"it is of log {table.log}, and the hub's log is {self._uuid}"
            raise ArchiveError(self.place, table.first, table.through, reason)
        if table is self._table:
            return
        if table.through < self.last:
            reason = f"it ends at {table.through}, and has had messages up to {self.last}"
            raise ArchiveError(self.place, table.through + 1, self.last, reason)
        if table.first > self.first and self.last >= self.first:
            reason = f"it begins at {table.first}, and has had messages from {self.first} on"
            raise ArchiveError(self.place, self.first, table.first - 1, reason)
        self._write_note(table)
        if self._reader is None:
            self._reader = ArchiveReader(table, self.place)
        self._reader.table = self._table = table
        self._range = (table.first, table.through)

    def _lose(self, problem: str) -> None:
        self.problem = problem
        if self._table is None:
            self._reader = None

    def _write_note(self, table: ArchiveTable) -> None:
        note = ArchiveNote(self.place, self._uuid, table.first, table.through)
        if self._log.lock is None or note == self._noted or table.through < table.first:
            return
        path = self._log.directory / NOTE
        with translating(path):
            write_whole(path, msgspec.json.encode(note) + b"\n", sync=True)
            sync_path(path.parent)
        self._noted = note
