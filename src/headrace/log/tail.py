"""The open tail: a file of frames, appended by ``write()``.

A tail file is a header and frames (:mod:`~headrace.log.frame`) side by side, one per batch; ``docs/log.md`` has the
layout. An append, or a group of several, is whole or not there: all its frames but the last are marked as continued.

Bad frames with no good frame after them are a **torn end**: the append that a crash interrupted, never acknowledged.
Bad frames before a good one are **damage**.
"""

from __future__ import annotations

import os
import secrets
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import numpy as np

from headrace.errors import DamagedError
from headrace.log import frame
from headrace.log.files import Descriptor, FailedSync, making, write_whole
from headrace.log.frame_file import (
    HEADER_BYTES,
    READ_BYTES,
    FileHeader,
    FrameRows,
    fault,
    find_frame,
    misplaced,
    read_label,
    walk,
)
from headrace.log.topics.found import Found
from headrace.log.topics.segment_topics import TopicChoice
from headrace.log.topics.tail_topics import UNKNOWN, TailTopics
from headrace.message import Batch

FIND_FRAMES: Final = 1 << 16
"""Frames that one search looks at, most of which it skips."""

_NEVER_SYNCED: Final = "it and everything after it had never been synced"

_MOST_LABELS: Final = 4096
"""Labels kept in memory; with more publishers and topics at a time, labels are written, or read, more often."""


@dataclass(frozen=True, slots=True)
class TornEnd:
    """The end of a tail that a crash cut short: ``size`` bytes from ``offset`` on."""

    offset: int
    size: int
    reason: str


class FrameColumns(NamedTuple):
    """Where the frames of a tail are and what is in them.

    Appends lengthen these columns; cutting back begins new ones. So a reader that takes them once keeps finding in them
    whatever it has found before.
    """

    offsets: array[int]
    ops: array[int]
    seqs: array[int]
    times: array[int]
    last_times: array[int]
    frames: array[int]
    """The frames that hold messages, by their place among all frames."""
    firsts: array[int]
    """The first message of each of these."""
    topics: array[int]
    """The topics of each of these, as :class:`~headrace.log.topics.tail_topics.TailTopics` numbers them."""

    @classmethod
    def none(cls) -> FrameColumns:
        """Return the columns of an empty tail."""
        return cls(
            array("Q"), array("Q"), array("Q"), array("q"), array("q"), array("Q"), array("Q"), array("I")
        )

    def before(self, index: int) -> FrameColumns:
        """Return new columns for the frames before ``index``."""
        place = bisect_left(self.frames, index)
        return FrameColumns(
            *(column[:index] for column in self[:5]), *(column[:place] for column in self[5:])
        )

    def is_messages(self, index: int) -> bool:
        """Whether a frame holds messages, not entries."""
        place = bisect_left(self.frames, index)
        return place < len(self.frames) and self.frames[place] == index


class TailFile:
    """One tail file: appended to while it is the last, then read until it is sealed.

    It counts twice: operations (``op``), by which nodes and copies of a log agree, and messages, by which everybody
    else reads. One thread appends; any thread reads. Positions are published only after their bytes are in the file, so
    a reader never meets an unwritten frame.
    """

    def __init__(self, path: Path, descriptor: Descriptor, header: FileHeader) -> None:
        self.path = path
        self.uuid = header.uuid
        self.first_op = self.next_op = header.op
        self.first = self.next = header.first
        """The sequence number that the next message gets."""
        self.size = HEADER_BYTES
        """Bytes of the file's header and its whole frames."""
        self.last_time = header.time
        self._before = header.time
        self.fd = descriptor.fd
        self._descriptor = descriptor  # closes the file with its last reference
        self._salt = header.salt
        self._columns = FrameColumns.none()
        self._topics = TailTopics()
        self._written: dict[tuple[str, int, str, str], int] = {}
        """Labels that new frames may refer to, and their offsets."""
        self._labels: dict[int, frame.Label] = {}
        """Labels that were read lately, by offset."""

    @classmethod
    def create(cls, path: Path, uuid: UUID, op: int, first: int, time: int = 0, *, sync: bool) -> TailFile:
        """Create an empty tail that begins with ``op``; its first message will be ``first``, not before ``time``."""
        # Never 0: a file system that lost data leaves zeros.
        header = FileHeader(uuid, op, first, time, 1 + secrets.randbelow((1 << 32) - 1))
        write_whole(path, header.serialize(), sync=sync)
        return cls(path, Descriptor(path, os.O_RDWR), header)

    @classmethod
    def open(
        cls, path: Path, *, writable: bool, synced: int | None = None
    ) -> tuple[TailFile, TornEnd | None]:
        """Read a tail and check every frame; describe a torn end, but leave it in place.

        Bad frames after the operation that is known to be ``synced`` are a torn end, whatever follows them.
        """
        descriptor = Descriptor(path, os.O_RDWR if writable else os.O_RDONLY)
        header = FileHeader.parse(os.pread(descriptor.fd, HEADER_BYTES, 0), path)
        tail = cls(path, descriptor, header)
        return tail, tail._check_frames(synced)

    @property
    def header(self) -> FileHeader:
        """The file's header."""
        return FileHeader(self.uuid, self.first_op, self.first, self._before, self._salt)

    def write_again(self, synced: int) -> None:
        """Write all frames after operation ``synced`` once more, as they are.

        After a failed sync, the system may have given up on pages and still show them to readers: the next sync would
        succeed without them. Writing them again makes the next sync cover them.
        """
        columns = self._columns
        if self.last_op <= synced:
            return
        place = bisect_right(columns.ops, synced)
        at = columns.offsets[place - 1] if place else 0
        while at < self.size:
            data = os.pread(self.fd, min(READ_BYTES, self.size - at), at)
            if not data:
                break
            at += os.pwrite(self.fd, data, at)

    @property
    def last(self) -> int:
        """The last message appended; ``first - 1`` when there is none."""
        return self.next - 1

    @property
    def last_op(self) -> int:
        """The last operation appended; ``first_op - 1`` when there is none."""
        return self.next_op - 1

    @property
    def entries_size(self) -> int:
        """Bytes of the frames that hold entries."""
        # Counted on request, which is rare; appends pay nothing for it.
        columns = self._columns
        edges = [*columns.offsets, self.size]
        holding = [edges[place + 1] - edges[place] for place in columns.frames]
        return self.size - HEADER_BYTES - sum(holding)

    @property
    def empty(self) -> bool:
        """Whether nothing has been appended yet."""
        return not self._columns.offsets

    def encode(self, batch: Batch, times: tuple[int, int], offset: int, *, continued: bool) -> EncodedFrame:
        """Encode a batch for this file, at ``offset``; ``times`` are the times of its first and last row."""
        # A plain tuple finds a label just as well, and this runs once per batch.
        key = batch.origin, batch.node, batch.publisher, batch.topic
        back = offset - self._written.get(key, -frame.REACH - 1)
        if back > frame.REACH:
            back = 0
        pieces, length = frame.encode(batch, self._salt, time=times[0], continued=continued, back=back)
        rows = FrameRows(batch.op, batch.first, batch.run.count, batch.is_entries)
        # The same as shared_topic(), inlined: this runs once per batch.
        shared = batch.columns is None or "topic" not in batch.columns.schema.names
        topic = batch.topic if shared else None
        label = None if back else frame.label_of(batch)
        return EncodedFrame(pieces, length, rows, times[0], times[1], label, topic)

    def appended(self, written: EncodedFrame) -> None:
        """Record a frame that is now in the file."""
        if written.label is not None:
            if len(self._written) >= _MOST_LABELS:
                self._written.clear()
            self._written[written.label] = self.size
        known = UNKNOWN
        if (topic := written.topic) is not None:
            known = self._topics.numbers.get(topic) or self._topics.number(topic)
        self._note(written.rows, written.time, written.last_time, written.length, known)

    def _note(self, rows: FrameRows, time: int, last_time: int, length: int, known: int = UNKNOWN) -> None:
        offsets, ops, seqs, times, last_times, frames, firsts, topics = self._columns
        last_times.append(last_time)
        times.append(time)
        ops.append(rows.op)
        seqs.append(rows.first)
        offsets.append(self.size)
        self.size += length
        self.last_time = last_time
        self.next_op = rows.op + rows.rows
        if not rows.entries:
            self.next = rows.first + rows.rows
            frames.append(len(offsets) - 1)
            topics.append(known)
            firsts.append(rows.first)

    def read(self, first: int, last: int, max_bytes: int = READ_BYTES) -> list[Batch]:
        """Messages from ``first`` on, up to ``last`` or about ``max_bytes``, at least one."""
        columns = self._columns
        offsets, frames, firsts = columns.offsets, columns.frames, columns.firsts
        known = len(firsts)
        begin = bisect_right(firsts, first, 0, known) - 1
        end = bisect_right(firsts, last, 0, known)
        limit = bisect_left(offsets, offsets[frames[begin]] + max_bytes)
        end = max(begin + 1, bisect_left(frames, limit, begin + 1, end))
        batches = self._decoded(columns, frames[begin:end])
        return _trim(batches, first - batches[0].first, batches[-1].last - last)

    def find(self, first: int, last: int, topics: TopicChoice | None, max_bytes: int = READ_BYTES) -> Found:
        """Messages from ``first`` on that may be of chosen topics; frames that cannot be are skipped unread."""
        if topics is None:
            batches = self.read(first, last, max_bytes)
            return Found(batches, batches[-1].last, sum(batch.size for batch in batches))
        columns = self._columns
        offsets, frames, firsts = columns.offsets, columns.frames, columns.firsts
        known = len(firsts)
        begin = bisect_right(firsts, first, 0, known) - 1
        end = min(bisect_right(firsts, last, 0, known), begin + FIND_FRAMES)
        upto = firsts[end] - 1 if end < known else last
        places = (begin + self._topics.chosen(topics, columns.topics[begin:end])).tolist()
        # Runs of neighbours are read at once.
        batches, cost = [], 0
        for place, stop in _runs(places):
            limit = bisect_left(offsets, offsets[frames[place]] + max(max_bytes - cost, 1))
            fit = max(place + 1, bisect_left(frames, limit, place + 1, stop))
            for at, batch in enumerate(self._decoded(columns, frames[place:fit]), place):
                if columns.topics[at] == UNKNOWN:
                    columns.topics[at] = self._topics.learn(batch)
                batches.append(batch)
                cost += batch.size
            if fit < stop or cost >= max_bytes:
                upto = firsts[fit] - 1 if fit < known else last
                break
        upto = min(upto, last)
        if batches and batches[0].first < first:
            batches[0] = batches[0].slice(first - batches[0].first, len(batches[0]))
        if batches and batches[-1].last > last:
            batches[-1] = batches[-1].slice(0, last - batches[-1].first + 1)
        return Found(batches, upto, cost)

    def read_ops(self, first: int, last: int, max_bytes: int = READ_BYTES) -> list[Batch]:
        """Messages and entries from operation ``first`` on, up to ``last`` or about ``max_bytes``, at least one."""
        columns = self._columns
        offsets, ops = columns.offsets, columns.ops
        known = len(offsets)
        begin = bisect_right(ops, first, 0, known) - 1
        end = bisect_right(ops, last, 0, known)
        limit = bisect_left(offsets, offsets[begin] + max_bytes, begin + 1, end)
        batches = self._decoded(columns, range(begin, max(begin + 1, limit)))
        return _trim(batches, first - batches[0].op, batches[-1].last_op - last)

    def seq_of(self, op: int) -> int:
        """The newest message at or before an operation, which may be the one before the first here."""
        columns = self._columns
        index = bisect_right(columns.ops, op) - 1
        if index < 0:
            return self.first - 1
        rows = min(op - columns.ops[index] + 1, self._rows(columns, index))
        return columns.seqs[index] + (rows - 1 if columns.is_messages(index) else 0)

    def op_of(self, seq: int) -> int:
        """The operation of a message, which must be here."""
        columns = self._columns
        place = bisect_right(columns.firsts, seq) - 1
        return columns.ops[columns.frames[place]] + seq - columns.firsts[place]

    def windows(self, size: int = READ_BYTES) -> Iterator[tuple[bytes, list[int], frame.FindLabel]]:
        """Check every frame; yield windows of the file's bytes, each with its frames' offsets and their labels."""
        columns = self._columns
        offsets = columns.offsets
        index, known = 0, len(offsets)
        while index < known:
            start = offsets[index]
            end = max(index + 1, bisect_left(offsets, start + size, index + 1, known))
            stop = offsets[end] if end < known else self.size
            window = os.pread(self.fd, stop - start, start)
            places = [place.at for place in frame.scan(window, 0, self._salt)]
            if len(places) < end - index:
                index += len(places)
                self._check(columns, window, offsets[index] - start, index)
            yield window, places, partial(self._label_at, start)
            index = end

    def seq_at(self, time: int) -> int | None:
        """The first sequence number whose time is ``time`` or later, if it is here."""
        columns = self._columns
        index = bisect_left(columns.last_times, time, 0, len(columns.offsets))
        place = bisect_left(columns.frames, index)
        if place >= len(columns.firsts):
            return None
        first, index = columns.firsts[place], columns.frames[place]
        if columns.times[index] >= time:
            return first
        [batch] = self._decoded(columns, [index])
        return first + int(np.searchsorted(frame.times(batch.columns), time))

    def reach(self, first: int, size: int) -> tuple[int, int]:
        """The last message of the frames from ``first`` on that fit ``size``, at least one, and their size."""
        columns = self._columns
        frames, firsts = columns.frames, columns.firsts
        end_of = partial(self._end_of, columns)
        known = len(firsts)
        begin = bisect_right(firsts, first, 0, known) - 1
        start = columns.offsets[frames[begin]]
        end = max(begin + 1, bisect_right(range(known), start + size, begin, known, key=end_of))
        return firsts[end - 1] + self._rows(columns, frames[end - 1]) - 1, end_of(end - 1) - start

    def first_time(self) -> int | None:
        """The time of the first message."""
        columns = self._columns
        return columns.times[columns.frames[0]] if columns.frames else None

    def cut_back(self, last: int) -> TailFile:
        """Remove every operation after ``last`` for good; return this tail, shortened, or the file that replaces it.

        If ``last`` ends an append, the file is truncated there. If not, the kept part of that append is rewritten, and
        the new file replaces the old one in one step: nothing that stays is ever missing. The caller
        syncs the directory.
        """
        columns = self._columns
        offsets, ops = columns.offsets, columns.ops
        whole = bisect_right(ops, last)
        if whole and (
            ops[whole - 1] + self._rows(columns, whole - 1) - 1 > last or self._is_continued(whole - 1)
        ):
            return self._rewritten(whole - 1, last)
        if whole < len(offsets):
            os.ftruncate(self.fd, offsets[whole])
            self._forget_from(whole)
            try:
                os.fsync(self.fd)
            except OSError as error:
                raise FailedSync(*error.args) from error
        return self

    def _rewritten(self, index: int, last: int) -> TailFile:
        """Write a new file that ends within the append of the frame at ``index``."""
        while index and self._is_continued(index - 1):
            index -= 1
        kept = self.read_ops(self._columns.ops[index], last, self.size)
        cut = self._columns.offsets[index]
        with making(self.path) as unfinished:
            with unfinished.open("wb") as file:
                for begin in range(0, cut, READ_BYTES):
                    file.write(os.pread(self.fd, min(READ_BYTES, cut - begin), begin))
                self._forget_labels(cut)
                for place, batch in enumerate(kept, 1):
                    times, offset = frame.time_span(batch), file.tell()
                    file.writelines(self.encode(batch, times, offset, continued=place < len(kept)).pieces)
                file.flush()
                os.fsync(file.fileno())
            # Opened before it takes the old one's place: from then on nothing but the directory's sync may fail.
            rewritten, _ = TailFile.open(unfinished, writable=True)
            unfinished.rename(self.path)
        rewritten.path = self.path
        return rewritten

    def _decoded(self, columns: FrameColumns, indexes: Sequence[int]) -> list[Batch]:
        offsets = columns.offsets
        start = offsets[indexes[0]]
        window = os.pread(self.fd, self._stop(columns, indexes[-1]) - start, start)
        batches = []
        for index in indexes:
            at = offsets[index] - start
            self._check(columns, window, at, index)
            batches.append(frame.decode(window, at, partial(self._label_at, start)))
        return batches

    def _label_at(self, start: int, at: int) -> frame.Label:
        """The label of the frame at offset ``at`` of a window that begins at ``start``."""
        offset = start + at
        label = self._labels.get(offset)
        if label is None:
            label = read_label(self.path, self.fd, self._salt, offset, self.first)
            if len(self._labels) >= _MOST_LABELS:
                self._labels.clear()
            self._labels[offset] = label
        return label

    def _forget_labels(self, end: int) -> None:
        self._written = {label: offset for label, offset in self._written.items() if offset < end}
        self._labels.clear()

    def _stop(self, columns: FrameColumns, index: int) -> int:
        """Where a frame ends."""
        offsets = columns.offsets
        return offsets[index + 1] if index + 1 < len(offsets) else self.size

    def _end_of(self, columns: FrameColumns, place: int) -> int:
        """Where a frame of messages ends; ``place`` counts frames of messages only."""
        return self._stop(columns, columns.frames[place])

    def _rows(self, columns: FrameColumns, index: int) -> int:
        ops = columns.ops
        following = ops[index + 1] if index + 1 < len(ops) else self.next_op
        return following - ops[index]

    def tied_after(self, op: int) -> list[tuple[int, int]]:
        """Return the operations of continued frames, from the frame with the operation after ``op`` on, as ranges."""
        columns = self._columns
        begin = max(bisect_right(columns.ops, op + 1) - 1, 0)
        return [
            (columns.ops[index], columns.ops[index] + self._rows(columns, index) - 1)
            for index in range(begin, len(columns.ops))
            if self._is_continued(index)
        ]

    def whole(self, op: int) -> int:
        """The last operation at or before ``op`` that is not tied to the next; ``op`` must be here."""
        ops = self._columns.ops
        index = bisect_right(ops, op) - 1
        if not self._is_continued(index):
            return op
        while index and self._is_continued(index - 1):
            index -= 1
        return ops[index] - 1

    def _is_continued(self, index: int) -> bool:
        """Whether a frame's append continues in the next frame."""
        header = os.pread(self.fd, frame.HEADER.size, self._columns.offsets[index])
        return bool(frame.flags(header) & frame.CONTINUED)

    def _check(self, columns: FrameColumns, window: bytes, at: int, index: int) -> None:
        try:
            frame.check(window, at, self._salt)
        except frame.BadFrame as bad:
            messages = columns.is_messages(index)
            first = columns.seqs[index] + (not messages)
            last = first - 1 + (self._rows(columns, index) if messages else 0)
            raise DamagedError(str(self.path), columns.offsets[index], first, last, str(bad)) from None

    def _check_frames(self, synced: int | None) -> TornEnd | None:
        """Walk every frame; return the torn end, raise on damage."""
        end = os.fstat(self.fd).st_size
        whole = 0  # frames of complete appends
        for window, place in walk(self.fd, self._salt, self.size):
            rows = FrameRows.of(place)
            expected = self.next - 1 if rows.entries else self.next
            if rows.op != self.next_op or rows.first != expected:
                reason = misplaced(rows, self.next)
                if synced is not None and self.next_op > synced:
                    return self._torn(whole, end, f"{reason}; {_NEVER_SYNCED}")
                raise DamagedError(str(self.path), self.size, min(self.next, rows.first), None, reason)
            self._note(rows, place.time, frame.last_time(window, place.at), place.length)
            if not place.flags & frame.CONTINUED:
                whole = len(self._columns.offsets)
        reason = "an append is cut short"
        if self.size < end:
            reason = fault(self.fd, self._salt, self.size)
            later = find_frame(self.fd, self._salt, self.size + 4)
            if later is not None and synced is not None and self.next_op > synced:
                return self._torn(whole, end, f"{reason}; {_NEVER_SYNCED}")
            if later is not None:
                # Entries carry the number of the message before them, which is lost too unless it is the last one here.
                last = max(later.first if later.entries else later.first - 1, self.next - 1)
                raise DamagedError(str(self.path), self.size, self.next, last, reason)
        return self._torn(whole, end, reason)

    def _torn(self, whole: int, end: int, reason: str) -> TornEnd | None:
        """Describe the torn end after ``whole`` frames, if there is one, and forget the frames in it."""
        self._forget_from(whole)
        return TornEnd(self.size, end - self.size, reason) if self.size < end else None

    def _forget_from(self, index: int) -> None:
        columns = self._columns
        if index == len(columns.offsets):
            return
        # New columns: readers in other threads keep those that they have.
        self._columns = columns.before(index)
        self.size, self.next_op = columns.offsets[index], columns.ops[index]
        self._forget_labels(self.size)
        self.last_time = columns.last_times[index - 1] if index else self._before
        place = len(self._columns.frames)
        if place < len(columns.frames):
            self.next = columns.firsts[place]


class EncodedFrame(msgspec.Struct, frozen=True):
    """A frame to be written: its pieces, and the facts that the file remembers."""

    pieces: list[frame.Piece]
    length: int
    rows: FrameRows
    time: int
    last_time: int
    label: frame.Label | None
    """Its label, if the frame contains it; None if it refers to an earlier frame's."""
    topic: str | None
    """The topic, if all its messages share one."""


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of neighbours among ascending places: where each begins, and the place after its last."""
    begin = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or places[index] != places[index - 1] + 1:
            yield places[begin], places[index - 1] + 1
            begin = index


def _trim(batches: list[Batch], before: int, after: int) -> list[Batch]:
    """Cut off rows at the beginning and at the end."""
    if after > 0:
        batches[-1] = batches[-1].slice(0, len(batches[-1]) - after)
    if before > 0:
        batches[0] = batches[0].slice(before, len(batches[0]))
    return batches
