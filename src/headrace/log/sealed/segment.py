"""Sealed segments: plain Arrow IPC files that any Arrow reader opens, each with an index of checksums.

``N.arrow`` is an Arrow IPC file in the envelope's schema, its buffers LZ4-compressed, its record batches in sequence
order without a hole: messages only. Entries of the log lie beside it (:mod:`~headrace.log.sealed.entries_file`).
``N.index`` has for each record batch the position of its IPC message, the sequence numbers and times it covers, and the
CRC32C of the message. We read by the index alone: the CRC is checked **before** pyarrow sees a byte, because a flipped
bit in Arrow's metadata can give wrong data, or worse, without an error. The bytes around the record batches (magic,
schema, footer) matter to other readers only; ``log verify`` checks their CRC. ``N.topics`` tells which record batches
hold which topics (:mod:`~headrace.log.topics.segment_topics`); readers of few topics skip the others.

The files are mapped while they are read, and never rewritten or truncated. Recently unpacked record batches are cached,
for readers that proceed in small steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.errors import DamagedError
from headrace.log.checksum import crc32c
from headrace.log.files import Descriptor, write_whole
from headrace.log.frame import times
from headrace.log.sealed.arrow_file import mapped, unpack
from headrace.log.sealed.bounded_read import BoundedRead
from headrace.log.sealed.entries_file import EntriesFile
from headrace.log.sealed.index import SegmentIndex
from headrace.log.sealed.sized_cache import SizedCache
from headrace.log.topics.found import Found
from headrace.log.topics.segment_topics import (
    TopicChoice,
    TopicIndex,
    TopicIndexBuilder,
    UnusableIndexError,
    check_topic_index,
    read_topic_index,
)
from headrace.message import SCHEMA, Batch, Bytes

CACHE_BYTES: Final = 32 << 20
"""Bytes of unpacked record batches kept in memory, of all segments; and as much again for indexes of topics."""

FIND_BYTES: Final = 16 << 20
"""Most packed bytes that one search unpacks: few of the rows may be wanted."""

_SCHEMA_MESSAGE: Final = SCHEMA.serialize().to_pybytes()


class SealedSegment:
    """One sealed segment, read by any thread."""

    def __init__(self, path: Path, index: SegmentIndex) -> None:
        self.path = path
        self.index = index
        self.first_op, self.last_op = index.first_op, index.last_op
        self.first, self.last = index.first, index.last
        self.entries_size = 0 if index.entries_lost else index.entries_size
        """Bytes of its entries."""
        self.uuid = index.uuid
        self.topics_size = 0
        """Bytes of its index of topics."""
        self.topics_wanted = False
        """Whether its index of topics is missing, or was found to be unusable."""
        self._firsts = np.ascontiguousarray(index.batches["first"])
        self._entries: EntriesFile | None = None

    @classmethod
    def open(cls, path: Path) -> SealedSegment:
        """Open by the index; of the files themselves only the sizes are checked."""
        index = SegmentIndex.read(path.with_suffix(".index"))
        size = path.stat().st_size
        segment = cls(path, index)
        if size != index.file_size:
            raise segment._resized(size)
        beside = segment.entries_path
        found = beside.stat().st_size if segment.entries_size and beside.exists() else 0
        if found != segment.entries_size:
            reason = f"the file has {found} bytes where {segment.entries_size} were written"
            raise segment._entries_damage(reason, min(found, segment.entries_size))
        try:
            segment.topics_size = segment.topics_path.stat().st_size
        except FileNotFoundError:
            segment.topics_wanted = True
        return segment

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return self.index.file_size + self.entries_size + self.topics_size

    @property
    def entries_path(self) -> Path:
        """The file of its entries, if it has any."""
        return self.path.with_suffix(".entries")

    @property
    def topics_path(self) -> Path:
        """The file of its index of topics, if it has one."""
        return self.path.with_suffix(".topics")

    @property
    def last_time(self) -> int:
        """The time of the last operation."""
        return self.index.last_time

    def first_time(self) -> int | None:
        """The time of the first message."""
        return int(self.index.batches["first_time"][0]) if len(self.index.batches) else None

    def rows(self, number: int) -> pa.RecordBatch:
        """Record batch ``number``, checked."""
        rows = _rows_cache.get((self, number))
        if rows is None:
            rows = unpack(self.message(number))
            _rows_cache.put((self, number), rows, rows.get_total_buffer_size())
        return rows

    def columns(self, number: int, schema: pa.Schema) -> pa.RecordBatch:
        """Some columns of record batch ``number``, checked; the others are not unpacked."""
        places = [SCHEMA.get_field_index(name) for name in schema.names]
        # Only a stream can be read in part: the schema, and this one batch.
        stream = b"".join([_SCHEMA_MESSAGE, self.message(number).data])
        options = pa.ipc.IpcReadOptions(included_fields=places)
        return pa.ipc.open_stream(stream, options=options).read_next_batch().select(schema.names)

    def message(self, number: int) -> Bytes:
        """The IPC message of record batch ``number`` as it is on disk, checked."""
        return self._checked(self._map(), number)

    def read(self, first: int, last: int, max_bytes: int = 1 << 20) -> list[Batch]:
        """Messages from ``first`` on, up to ``last`` or about ``max_bytes``, at least one."""
        number = int(np.searchsorted(self._firsts, first, side="right")) - 1
        found = BoundedRead(max_bytes)
        while number < len(self._firsts) and self._firsts[number] <= last and found.has_room:
            rows, start = self.rows(number), int(self._firsts[number])
            begin, end = max(first - start, 0), min(last - start + 1, rows.num_rows)
            found.add(Batch.over(rows).slice(begin, end), rows)
            number += 1
        return found.batches

    def find(self, first: int, last: int, topics: TopicChoice | None, max_bytes: int = 1 << 20) -> Found:
        """Messages from ``first`` on that may be of chosen topics; what cannot be is skipped unread."""
        chosen = None if topics is None or (index := self.topics) is None else index.chosen(topics)
        if chosen is None:
            batches = self.read(first, last, max_bytes)
            return Found(batches, batches[-1].last, sum(batch.size for batch in batches))
        batches = []
        taken = cost = 0
        place = int(np.searchsorted(chosen.numbers, np.searchsorted(self._firsts, first, side="right") - 1))
        for number in chosen.numbers[place:].tolist():
            start = int(self._firsts[number])
            begin, end = (
                max(start + int(chosen.first[place]), first),
                min(start + int(chosen.last[place]), last),
            )
            place += 1
            if start > last:
                break
            if begin > end:
                continue
            if taken >= max_bytes or cost >= FIND_BYTES:
                return Found(batches, begin - 1, cost)
            for batch in self.read(begin, end, max(max_bytes - taken, 1)):
                batches.append(batch)
                taken += batch.size
            # A record batch is unpacked as a whole, however few of its rows are wanted.
            cost += int(self.index.batches["length"][number])
            if batches[-1].last < end:
                return Found(batches, batches[-1].last, cost)
        return Found(batches, last, cost)

    @property
    def topics(self) -> TopicIndex | None:
        """The index of topics; ``None`` if there is none that can be used."""
        if self.topics_wanted:
            return None
        found = _topics_cache.get(self)
        if found is None:
            try:
                found = read_topic_index(self.topics_path, self.index.batches)
            except (OSError, UnusableIndexError):
                # Every row is looked at instead, and the log's owner rewrites the index.
                self.topics_wanted = True
                return None
            _topics_cache.put(self, found, found.size)
        return found

    def write_topics(self) -> None:
        """Write the index of topics, in place of any old one."""
        # Not synced: if it is lost or torn it is written again.
        data = self._made_topics()
        write_whole(self.topics_path, data, sync=False)
        self.topics_size, self.topics_wanted = len(data), False

    def topics_fault(self) -> str | None:
        """Check every byte of the index of topics, if there is one, against the segment; describe a fault."""
        try:
            data = self.topics_path.read_bytes()
            check_topic_index(data, self.index.batches)
            return None if self._made_topics() == data else "the index of topics does not match the messages"
        except UnusableIndexError as unusable:
            return str(unusable)
        except (FileNotFoundError, DamagedError):
            # If the segment itself is damaged, faults() reports it.
            return None

    def _made_topics(self) -> bytes:
        builder, data = TopicIndexBuilder(), self._map()
        for number in range(len(self.index.batches)):
            builder.add(unpack(self._checked(data, number)).column("topic"))
        return builder.finish(self.index.batches)

    def read_ops(self, first: int, last: int, max_bytes: int = 1 << 20) -> list[Batch]:
        """Messages and entries from operation ``first`` on, up to ``last`` or about ``max_bytes``, at least one."""
        batches: list[Batch] = []
        op, taken = first, 0
        while op <= last and (taken < max_bytes or not batches):
            entry = None if self.entries is None else self.entries.next_op(op)
            if self.entries is not None and entry == op:
                found = [self.entries.read(op, last)]
            else:
                end = last if entry is None else min(last, entry - 1)
                found = self.read(self.seq_of(op), self.seq_of(end), max(max_bytes - taken, 1))
            for batch in found:
                batches.append(batch if batch.is_entries else replace(batch, op=op))
                op += len(batch)
                taken += batch.size
        return batches

    @property
    def entries(self) -> EntriesFile | None:
        """The entries, read when they are first needed."""
        if self._entries is None and self.index.entries_size:
            self._entries = self._read_entries()
        return self._entries

    def seq_of(self, op: int) -> int:
        """The newest message at or before an operation, which may be the one before the first here."""
        if op == self.last_op:
            return self.last
        entries = 0 if self.entries is None else self.entries.upto(op)
        return self.first + op - self.first_op - entries

    def op_of(self, seq: int) -> int:
        """The operation of a message, which must be here."""
        before = 0 if self.entries is None else self.entries.before(seq)
        return self.first_op + seq - self.first + before

    def seq_at(self, time: int) -> int | None:
        """The first sequence number whose time is ``time`` or later, if it is here."""
        number = int(np.searchsorted(self.index.batches["last_time"], time))
        if number == len(self._firsts):
            return None
        return int(self._firsts[number]) + int(np.searchsorted(times(self.rows(number)), time))

    def reach(self, first: int, size: int) -> tuple[int, int]:
        """The last message of the record batches from ``first`` on that fit ``size``, at least one, and their size."""
        number = int(np.searchsorted(self._firsts, first, side="right")) - 1
        taken = np.cumsum(self.index.batches["length"][number:])
        fit = max(int(np.searchsorted(taken, size, side="right")), 1)
        found = self.index.batches[number + fit - 1]
        return int(found["first"]) + int(found["count"]) - 1, int(taken[fit - 1])

    def faults(self) -> Iterator[tuple[int | None, DamagedError]]:
        """Check every byte of the files and every number and time in them; yield every fault.

        Each fault comes with the number of its record batch, or ``None``.
        """
        data = self._map(whole=False)
        if len(data) != self.index.file_size:
            yield None, self._resized(len(data))
        expected, time = self.first, None
        around, place = 0, 0
        for number, entry in enumerate(self.index.batches):
            begin, end = int(entry["offset"]), int(entry["offset"] + entry["length"])
            around = crc32c(data[place:begin], around)
            place = end
            following = expected + int(entry["count"])
            try:
                rows = unpack(self._checked(data, number))
            except DamagedError as damage:
                yield number, damage
            else:
                seqs, each = rows.column("seq").to_numpy(), times(rows)
                if not np.array_equal(seqs, np.arange(expected, following)):
                    reason = "sequence numbers do not follow"
                    yield number, self._damage(begin, expected, following - 1, reason)
                if np.any(each[1:] < each[:-1]) or (time is not None and each[0] < time):
                    yield number, self._damage(begin, expected, following - 1, "times decrease")
                time = int(each[-1])
            expected = following
        if len(data) == self.index.file_size and crc32c(data[place:], around) != self.index.around_crc:
            reason = "the bytes around the record batches are changed"
            yield None, self._damage(0, self.first, self.last, reason)
        if (fault := self.entries_fault()) is not None:
            yield None, fault

    def entries_fault(self) -> DamagedError | None:
        """Check every byte of the file of entries; return the damage, if any."""
        if not self.entries_size:
            return None
        try:
            self._read_entries()
        except DamagedError as damage:
            return damage
        except FileNotFoundError:
            return self._entries_damage("the file is gone")
        return None

    def _read_entries(self) -> EntriesFile:
        if self.index.entries_lost:
            raise self._entries_damage("they were lost, and a repair kept the messages without them")
        try:
            found = EntriesFile(self.entries_path)
        except DamagedError as damage:
            # A header that cannot be read does not tell where the entries stood.
            raise damage if damage.last is not None else self._entries_damage(damage.reason) from None
        header, count = found.header, self.last_op - self.first_op - (self.last - self.first)
        if header.uuid != self.uuid:
            raise self._entries_damage(f"it belongs to log {header.uuid}, the segment to log {self.uuid}")
        begins = header.op == self.first_op and header.first == self.first
        if not begins or found.count != count or found.last_after > self.last:
            raise self._entries_damage("its entries do not match the segment's index")
        return found

    def _entries_damage(self, reason: str, offset: int = 0) -> DamagedError:
        return DamagedError(str(self.entries_path), offset, self.first, self.first - 1, reason)

    def salvage(self, number: int) -> pa.RecordBatch:
        """Record batch ``number``, checked, of a damaged file."""
        return unpack(self._checked(self._map(whole=False), number))

    def _checked(self, data: Bytes, number: int) -> Bytes:
        entry = self.index.batches[number]
        begin, first = int(entry["offset"]), int(entry["first"])
        message = data[begin : begin + int(entry["length"])]
        if crc32c(message) != entry["crc"]:
            last = first + int(entry["count"]) - 1
            raise self._damage(begin, first, last, "a record batch's checksum is wrong")
        return message

    def _map(self, *, whole: bool = True) -> Bytes:
        # Mapping costs less than unpacking one record batch, and keeping a descriptor per segment could exhaust them.
        descriptor = Descriptor(self.path, os.O_RDONLY)
        size = os.fstat(descriptor.fd).st_size
        if whole and size != self.index.file_size:
            raise self._resized(size)
        return mapped(descriptor)

    def _resized(self, size: int) -> DamagedError:
        written = self.index.file_size
        reason = f"the file has {size} bytes where {written} were written"
        return self._damage(min(size, written), self.first, self.last, reason)

    def _damage(self, offset: int, first: int, last: int, reason: str) -> DamagedError:
        return DamagedError(str(self.path), offset, first, last, reason)


_rows_cache: Final[SizedCache[tuple[SealedSegment, int], pa.RecordBatch]] = SizedCache(CACHE_BYTES)
_topics_cache: Final[SizedCache[SealedSegment, TopicIndex]] = SizedCache(CACHE_BYTES)
