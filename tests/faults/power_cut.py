"""What a power failure may leave of some files, worked out from a trace of everything that changed them.

    disk = Disk({"/data/log/1.open": b"..."})   # what is on the disk for sure
    disk.replay(trace)                          # what a program did since
    disk.survivors(random)                      # one of the things that may be there after a power failure
    disk.certain()                              # the least: everything that was not synced is gone

The rules are those of a disk behind a page cache and a file system with a journal:

- A sync that succeeded covers what was written to that file before it began. A sync that failed covers nothing, and a
  later one does not make up for it: the system has forgotten what it could not write.
- Any other page may be there as it is now, as it was at some moment since the last sync, or as it was at that sync;
  each page by itself. Pages that are missing before one that is there read as zeros.
- Names (files created, renamed, removed) are kept in the order in which they changed, up to some change; at least up to
  the last sync of a directory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

PAGE = 4096

_RECORD = struct.Struct("<IIQQ")


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the trace; ``machine.c`` writes them."""

    kind: str
    inode: int
    offset: int
    data: bytes


@dataclass(slots=True)
class _Change:
    """A write, or a new size if there is no data."""

    offset: int
    data: bytes | None
    forgotten: bool = False
    """Whether a sync that covered it has failed."""


@dataclass(slots=True)
class _File:
    synced: bytearray = field(default_factory=bytearray)
    changes: list[_Change] = field(default_factory=list)
    syncing: dict[int, int] = field(default_factory=dict)
    """For each sync under way, how many of the changes it covers."""


@dataclass(frozen=True, slots=True)
class _Naming:
    """A change of names: ``old`` is gone, ``new`` names the file."""

    old: str | None
    new: str | None
    file: _File | None


class Disk:
    """The files of one program, from when the disk was known on."""

    def __init__(self, files: Mapping[str, bytes], inodes: Mapping[int, str] | None = None) -> None:
        self._names = {path: _File(bytearray(content)) for path, content in files.items()}
        self._now = dict(self._names)
        self._inodes = {inode: self._names[path] for inode, path in (inodes or {}).items()}
        self._namings: list[_Naming] = []
        self._named = 0
        """How many of the changes of names are on the disk for sure."""
        self._naming: dict[int, int] = {}
        """For each sync of a directory under way, how many of them it covers."""

    def replay(self, trace: bytes) -> None:
        """Take in what a program did."""
        for record in records(trace):
            self.take(record)

    def certain(self) -> dict[str, bytes]:
        """The least that a power failure leaves: what was synced."""
        return {path: bytes(file.synced) for path, file in self._listing(self._named).items()}

    def survivors(self, random: Random) -> dict[str, bytes]:
        """One of the things that a power failure may leave."""
        names = self._listing(random.randint(self._named, len(self._namings)))
        # All pages alike now and then: chance alone would seldom lose or keep every page.
        share = random.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        return {path: _survivor(file, share, random) for path, file in sorted(names.items())}

    def take(self, record: Record) -> None:
        """Take in one thing that a program did."""
        file = self._inodes.get(record.inode)
        match record.kind:
            case "C":
                path = record.data.decode()
                if self._now.get(path) is None or self._now[path] is not file:
                    # A new file, whatever file had this number before.
                    self._inodes[record.inode] = created = _File()
                    self._rename(None, path, created)
            case "W" if file is not None:
                file.changes.append(_Change(record.offset, record.data))
            case "T" if file is not None:
                file.changes.append(_Change(record.offset, None))
            case "R":
                old, _, new = record.data.decode().partition("\0")
                for path in [path for path in self._now if path == old or path.startswith(old + "/")]:
                    self._rename(path, new + path[len(old) :], self._now[path])
            case "U":
                self._rename(record.data.decode(), None, None)
            case "B" if file is not None:
                file.syncing[record.offset] = len(file.changes)
            case "B":
                self._naming[record.offset] = len(self._namings)
            case "E" | "F" if file is not None:
                _end_sync(file, file.syncing.pop(record.offset, 0), failed=record.kind == "F")
            case "E":
                self._named = max(self._named, self._naming.pop(record.offset, 0))

    def _rename(self, old: str | None, new: str | None, file: _File | None) -> None:
        self._namings.append(_Naming(old, new, file))
        _apply(self._now, self._namings[-1])

    def _listing(self, count: int) -> dict[str, _File]:
        names = dict(self._names)
        for naming in self._namings[:count]:
            _apply(names, naming)
        return names


def records(trace: bytes) -> Iterator[Record]:
    """The records of a trace; the program may have been killed in the middle of the last one."""
    at = 0
    while at + _RECORD.size <= len(trace):
        length, kind, inode, offset = _RECORD.unpack_from(trace, at)
        at += _RECORD.size
        if at + length > len(trace):
            return
        yield Record(chr(kind), inode, offset, trace[at : at + length])
        at += length


def _apply(names: dict[str, _File], naming: _Naming) -> None:
    if naming.old is not None:
        names.pop(naming.old, None)
    if naming.new is not None and naming.file is not None:
        names[naming.new] = naming.file


def _end_sync(file: _File, covered: int, *, failed: bool) -> None:
    if failed:
        for change in file.changes[:covered]:
            change.forgotten = True
        return
    for change in file.changes[:covered]:
        if not change.forgotten:
            _change(file.synced, change)
    kept = [change for change in file.changes[:covered] if change.forgotten]
    # What began before this one ended covers what is left of it.
    file.syncing = {number: max(0, count - covered) + len(kept) for number, count in file.syncing.items()}
    file.changes[:covered] = kept


def _change(content: bytearray, change: _Change) -> None:
    if change.data is None:
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
    else:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(change.data)] = change.data


def _survivor(file: _File, share: float, random: Random) -> bytes:
    content = bytearray(file.synced)
    pages: dict[int, list[_Change]] = {}
    size = len(content)
    for change in file.changes:
        if change.data is None:
            size = change.offset
            if random.random() < share:
                _change(content, change)
            continue
        size = max(size, change.offset + len(change.data))
        at = 0
        while at < len(change.data):
            begin = change.offset + at
            length = min(PAGE - begin % PAGE, len(change.data) - at)
            pages.setdefault(begin // PAGE, []).append(_Change(begin, change.data[at : at + length]))
            at += length
    for page in sorted(pages):
        if random.random() < share:
            # As it is now, or as it was at some moment before.
            moment = len(pages[page]) if random.random() < 0.7 else random.randint(0, len(pages[page]))
            for change in pages[page][:moment]:
                _change(content, change)
    if size > len(content) and random.random() < 0.3:
        # Some file systems keep the size of what they lost.
        content.extend(bytes(size - len(content)))
    return bytes(content)
