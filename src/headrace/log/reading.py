"""Read a log: any range of messages or operations, by number or by time, from its segments and its past.

Nobody reads past the head. The segments are one tuple that is replaced, never changed, so a reader keeps the segments
it found, and descriptors live as long as their readers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from headrace.errors import ClosedError, DamagedError, StorageError, TrimmedError, UsageError
from headrace.log import recovery
from headrace.log.files import WriterLock, translated
from headrace.log.frame_file import READ_BYTES
from headrace.log.past import Past
from headrace.log.sealed.segment import SealedSegment
from headrace.log.tail import TailFile
from headrace.log.topics.found import Found
from headrace.log.topics.segment_topics import TopicChoice
from headrace.message import Batch

Segment = recovery.Segment

_first: Final = attrgetter("first")
_first_op: Final = attrgetter("first_op")


class ReadableLog:
    """The reading half of a log; any thread may call it."""

    directory: Path
    lock: WriterLock | None
    """The lock that keeps other writers out; None if the log is open for reading only."""
    past: Past | None
    """Older messages kept elsewhere, if any; read as if they were one more segment."""
    head: int
    """The last message committed; 0 before the first."""
    head_op: int
    """The last operation committed."""
    tail: int
    """The last sequence number appended; 0 in an empty log."""
    tail_op: int
    """The last operation appended; 0 in an empty log."""
    _segments: tuple[Segment, ...]
    """Oldest first; none once the log is closed."""
    _needs_state: int
    """The operation up to which only a snapshot can stand in for entries that are missing here."""

    @property
    def first(self) -> int:
        """The oldest sequence number that can be read; ``head + 1`` when there is none."""
        here, past = self.first_here, self._whole_past
        return here if past is None else min(past.first, here)

    @property
    def first_here(self) -> int:
        """The oldest sequence number in the log's own segments."""
        return self._kept[0].first

    @property
    def first_op(self) -> int:
        """The oldest operation after which none is missing; older messages may be readable, but not their entries."""
        return max(self._kept[0].first_op, self._needs_state + 1)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first; the last is the open tail."""
        return self._segments

    def read(self, first: int, last: int | None = None, max_bytes: int = READ_BYTES) -> list[Batch]:
        """Read committed messages from ``first`` on: about ``max_bytes`` of them, none past ``last`` or the head.

        At least one message is returned unless ``first`` is past the head. Call again for more.
        """
        segment, last = self._holding(first, last)
        if segment is None:
            return []
        try:
            return segment.read(first, min(last, segment.last), max_bytes)
        except OSError as error:
            past = self._in_the_past(error, first)
            if past is None:
                raise self._unreadable(error, segment, first, last) from error
        return past.read(first, min(last, past.last), max_bytes)

    def find(
        self, first: int, last: int | None, topics: TopicChoice | None, max_bytes: int = READ_BYTES
    ) -> Found:
        """Read committed messages from ``first`` on that may be of chosen topics, and skip those that cannot be.

        The caller judges what is found row by row: it may include messages of other topics. As with :meth:`read`, call
        again for more, after :attr:`Found.upto`, even if this call found none. Without ``topics`` nothing is skipped.
        """
        segment, last = self._holding(first, last)
        if segment is None:
            return Found([], first - 1, 0)
        try:
            return segment.find(first, min(last, segment.last), topics, max_bytes)
        except OSError as error:
            past = self._in_the_past(error, first)
            if past is None:
                raise self._unreadable(error, segment, first, last) from error
        return past.find(first, min(last, past.last), topics, max_bytes)

    def read_ops(
        self, first: int, last: int | None = None, max_bytes: int = READ_BYTES, *, uncommitted: bool = False
    ) -> list[Batch]:
        """Read messages and entries from operation ``first`` on, as :meth:`read` does messages.

        Only nodes of a cluster read up to the tail, for each other (``uncommitted``).
        """
        end = self.tail_op if uncommitted else self.head_op
        last = end if last is None else min(last, end)
        segments = self._kept
        if first > last:
            return []
        if first < max(segments[0].first_op, self._needs_state + 1):
            raise TrimmedError(1, max(self.seq_of(last), 1), segments[0].first)
        segment = segments[bisect_right(segments, first, key=_first_op) - 1]
        last = min(last, segment.last_op)
        if first > last:
            # Uncommitted operations were cut back meanwhile.
            return []
        try:
            return segment.read_ops(first, last, max_bytes)
        except OSError as error:
            raise self._unreadable(error, segment, segment.first, segment.last) from error

    def scan(self, first: int, last: int | None = None, max_bytes: int = READ_BYTES) -> Iterator[Batch]:
        """Yield every committed batch from ``first`` to ``last`` (by default the head at the time of the call)."""
        last = self.head if last is None else min(last, self.head)
        while first <= last:
            for batch in self.read(first, last, max_bytes):
                yield batch
                first = batch.last + 1

    def scan_ops(self, first: int, last: int | None = None, max_bytes: int = READ_BYTES) -> Iterator[Batch]:
        """Yield every committed message and entry, by operation, as :meth:`scan` does messages."""
        last = self.head_op if last is None else min(last, self.head_op)
        while first <= last:
            for batch in self.read_ops(first, last, max_bytes):
                yield batch
                first = batch.last_op + 1

    def seq_of(self, op: int) -> int:
        """The newest message at or before an operation; for one no longer kept, the message before the oldest here."""
        segments = self._kept
        newest = segments[-1]
        # In this order: another thread may append meanwhile, and an operation is counted before its message.
        last = newest.last
        if op >= newest.last_op:
            return last
        place = bisect_right(segments, op, key=_first_op) - 1
        segment = segments[max(place, 0)]
        if place < 0 or (op <= self._needs_state and op != segment.last_op):
            return segment.first - 1
        try:
            return segment.seq_of(op)
        except OSError as error:
            raise self._unreadable(error, segment, segment.first, segment.last) from error

    def op_of(self, seq: int) -> int:
        """The operation of a message, which must be kept, as must the operations after it."""
        segments = self._kept
        place = bisect_right(segments, seq, key=_first) - 1
        if place < 0:
            raise TrimmedError(seq, seq, segments[0].first)
        segment = segments[place]
        if seq > segment.last:
            raise UsageError(f"message {seq} is not in the log, which ends at {self.tail}")
        if segment.last_op <= self._needs_state:
            raise TrimmedError(seq, seq, self.seq_of(self._needs_state) + 1)
        try:
            return segment.op_of(seq)
        except OSError as error:
            raise self._unreadable(error, segment, seq, seq) from error

    def tied_after(self, op: int) -> list[tuple[int, int]]:
        """Return ranges of operations after ``op`` that must be committed together with the next one."""
        return [
            (max(first, op + 1), last)
            for segment in self._kept
            if isinstance(segment, TailFile) and segment.last_op > op
            for first, last in segment.tied_after(op)
        ]

    def sealed_end(self, op: int) -> int | None:
        """The last operation of the sealed segment that has ``op``; None if a tail has it.

        A tail's frames say which operations are tied to the next. A sealed segment does not, but no group extends past
        its end.
        """
        segments = self._kept
        place = bisect_right(segments, op, key=_first_op) - 1
        if place < 0:
            return segments[0].first_op - 1
        return None if isinstance(segments[place], TailFile) else segments[place].last_op

    def seq_at(self, time: int) -> int:
        """The first committed sequence number stamped at or after ``time`` (µs); ``head + 1`` if all are older."""
        past = self._whole_past
        if past is not None and self.is_past(time) and (found := past.seq_at(time)) is not None:
            return min(found, self.head + 1)
        for segment in self._kept:
            if segment.last < segment.first or segment.last_time < time:
                continue
            try:
                found = segment.seq_at(time)
            except OSError as error:
                raise self._unreadable(error, segment, segment.first, segment.last) from error
            if found is not None:
                return min(found, self.head + 1)
        return self.head + 1

    def reach(self, first: int, size: int) -> int:
        """The last committed number such that messages from ``first`` up to it take about ``size`` bytes on disk.

        Whole frames or record batches are counted, at least one.
        """
        last = first - 1
        past = self._whole_past
        if past is not None and first <= past.last:
            last, used = past.reach(first, size)
            if last < past.last or used >= size:
                return min(last, self.head)
            first, size = last + 1, size - used
        for segment in self._kept:
            if segment.last < first or segment.last < segment.first:
                continue
            found, used = segment.reach(max(first, segment.first), size)
            if used > size and last >= first:
                break
            last, size = found, size - used
            if last < segment.last:
                break
        return min(last, self.head)

    def first_time(self) -> int | None:
        """The time of the oldest message that can be read."""
        past = self._whole_past
        return self._first_time_here() if past is None else past.first_time()

    def is_past(self, time: int) -> bool:
        """Whether the past must be read to find the first message stamped at or after ``time`` (µs)."""
        here = self._first_time_here()
        return self._whole_past is not None and (here is None or time <= here)

    def _first_time_here(self) -> int | None:
        return next((segment.first_time() for segment in self._kept if segment.last >= segment.first), None)

    def _holding(self, first: int, last: int | None) -> tuple[Segment | Past | None, int]:
        """The segment or past with ``first``, if committed, and the end of a range up to ``last`` or the head."""
        # Take the head first: the segments, taken after it, contain all it covers.
        end = self.head
        last = end if last is None else min(last, end)
        segments = self._kept
        if first > last:
            return None, last
        place = bisect_right(segments, first, key=_first) - 1
        if place >= 0:
            return segments[place], last
        past = self.past
        if past is None or not past.first <= first <= past.last:
            raise TrimmedError(first, last, segments[0].first)
        # The log itself serves what both have.
        return past, min(last, segments[0].first - 1)

    @property
    def _whole_past(self) -> Past | None:
        """The past, if no message is missing between it and the segments."""
        past, here = self.past, self.first_here
        return past if past is not None and past.first < here <= past.last + 1 else None

    def _in_the_past(self, error: OSError, first: int) -> Past | None:
        """The past that has a message, if its segment could not be read because retention removed it meanwhile."""
        past = self.past
        if past is None or not isinstance(error, FileNotFoundError):
            return None
        return past if past.first <= first <= past.last else None

    @property
    def _kept(self) -> tuple[Segment, ...]:
        segments = self._segments
        if not segments:
            raise ClosedError("the log is closed")
        return segments

    def _unreadable(self, error: OSError, segment: Segment | Past, first: int, last: int) -> StorageError:
        if not isinstance(segment, SealedSegment | TailFile):
            raise AssertionError("a past translates its errors") from error
        if not isinstance(error, FileNotFoundError):
            return translated(error, segment.path)
        if self.lock is not None and segment in self._segments:
            return DamagedError(str(segment.path), 0, segment.first, segment.last, "the file is gone")
        # Retention removed it, here or in the writing process, after the segment was chosen.
        return TrimmedError(first, last, segment.last + 1)
