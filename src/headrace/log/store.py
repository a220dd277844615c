"""The log of one hub: append at the tail, commit up to the head, sync, cut back, keep snapshots.

:mod:`headrace.log.reading` reads it, and :mod:`headrace.log.maintained` seals and trims its segments.

``tail`` is the last message appended, ``head`` the last committed. The log's owner decides when the head moves: after
the write or the sync on a lone hub, after a majority has appended in a cluster.

Between messages stand entries, the hub's own bookkeeping, which have no sequence numbers. Messages and entries together
are the log's **operations** (``op``), counted for those who must agree on both: commits, syncs, snapshots, other nodes
and copies. Readers of messages never meet entries.

Threads: one thread at a time appends, rotates or cuts; any thread reads, syncs, seals or trims.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from msgspec import structs

from headrace.errors import StorageError, TrimmedError, UsageError
from headrace.log import recovery
from headrace.log.files import FailedSync, WriterLock, translating
from headrace.log.frame import Piece, time_span
from headrace.log.maintained import Fsync, MaintainedLog
from headrace.log.proof.log_chain import SECTION, LogChain
from headrace.log.sealed.segment import SealedSegment
from headrace.log.snapshots import snapshot
from headrace.log.snapshots.pieces import Section
from headrace.log.tail import EncodedFrame, TailFile, TornEnd
from headrace.log.tail_writer import TailWriter, cut_back
from headrace.log.watermark import Watermark, begin, forget
from headrace.message import MAX_SEQUENCE, Batch
from headrace.platforms import sync_data, sync_path


class Log(MaintainedLog):
    """An open log; make one with :meth:`open`.

    >>> from headrace.message import Run
    >>> log = Log.open(getfixture("tmp_path"))
    >>> log.append([Batch(Run.of([b"hello", b"world"]), first=1, origin="doc")])
    >>> log.commit(log.tail_op)
    >>> [message.payload for batch in log.scan(1) for message in batch]
    [b'hello', b'world']
    >>> log.close()
    """

    def __init__(
        self,
        directory: Path,
        recovered: recovery.Recovered,
        lock: WriterLock | None,
        *,
        fsync: Fsync,
        segment_bytes: int,
        committed: int | None = None,
    ) -> None:
        self.directory = directory
        self.uuid: UUID = recovered.uuid
        self.fsync = fsync
        self.torn: TornEnd | None = recovered.torn
        """The torn end that recovery cut off, if any."""
        self.damaged_snapshots = recovered.damaged_snapshots
        self.snapshot = recovered.snapshot
        self.lock = lock
        self._segment_bytes = segment_bytes
        self._segments = tuple(recovered.segments)
        self._writing = threading.Lock()
        self._changing = threading.Lock()
        self._syncing = threading.Lock()
        self.syncs = 0
        """Number of syncs finished: while it stays the same, :attr:`syncing` is about one and the same sync."""
        self._sealing = threading.Lock()
        self._writer = TailWriter()
        self.past = None
        self.damaged = {}
        self._being_sealed = None
        self._unindexed = set()
        self.failure: str | None = None
        """The sync failure, if there was one: nothing can be promised after it."""
        self._needs_state, _ = recovery.needs_state(recovered.segments)
        last = self._segments[-1]
        self.tail = last.last
        self.tail_op = last.last_op
        self.head_op = last.last_op if committed is None else self._known(committed)
        self.head = self.seq_of(self.head_op)
        self.last_time = max(segment.last_time for segment in self._segments)
        """The latest time stamped; nothing earlier may follow."""
        self._synced = last.last_op
        self._whole = last.last_op
        """The last operation that ends a group: any after it belong to a group that is not complete yet."""
        self._watermark: Watermark | None = None
        if lock is not None and fsync != "never":
            # Recovery has synced everything that is served from now on.
            self._watermark = begin(directory)
            self._mark(sync=True)
            # Its directory entry as well: without a watermark, everything would count as promised.
            sync_path(directory)
        elif lock is not None:
            forget(directory)
        self._dirty_directory = False
        self.chain = LogChain(self)
        if lock is not None:
            self.chain.load(sync=fsync != "never")

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        fsync: Fsync = "interval",
        segment_bytes: int = 256 << 20,
        committed: int | None = None,
        uuid: UUID | None = None,
        read_only: bool = False,
    ) -> Log:
        """Open the log in ``directory``, creating it if there is none; recover from a crash if there was one.

        ``committed`` is the last operation that a node of a cluster knows to be committed; by default all are. Sealed
        operations, and those that a snapshot covers, are committed in any case. ``uuid`` is the uuid to give a new log.
        ``read_only`` takes no lock and changes nothing, so that a running hub's log can be read.
        """
        with translating(directory):
            if read_only:
                recovered = recovery.look(directory)
                return cls(directory, recovered, None, fsync=fsync, segment_bytes=segment_bytes)
            directory.mkdir(parents=True, exist_ok=True)
            lock = WriterLock(directory / "lock")
            try:
                recovered = recovery.recover(directory, sync=fsync != "never", uuid=uuid)
                return cls(
                    directory, recovered, lock, fsync=fsync, segment_bytes=segment_bytes, committed=committed
                )
            except BaseException:
                lock.release()
                raise

    @property
    def dirty(self) -> bool:
        """Whether a sync would write anything."""
        return self._synced < self.tail_op

    @property
    def synced_op(self) -> int:
        """The last operation that is known to be on the disk."""
        return self._synced

    @property
    def syncing(self) -> bool:
        """Whether a sync is under way."""
        return self._syncing.locked()

    @property
    def writing(self) -> bool:
        """Whether another thread appends, rotates or cuts now."""
        return self._writing.locked()

    @property
    def busy(self) -> bool:
        """Whether an append might have to wait: for a sync, for another thread, or to begin a new tail."""
        return (
            self._syncing.locked() or self._writing.locked() or self._segments[-1].size >= self._segment_bytes
        )

    def append(self, batches: Sequence[Batch]) -> None:
        """Append batches in one write, all or none.

        They must follow the tail and one another without a hole, and their times must not decrease. A batch without an
        operation number gets the next one. If the last batch is tied, more appends of its group follow: a crash before
        the last of them leaves none of the group. Batches copied from another log keep the ties they had there.

        After a failed sync, whoever saw it fail, nothing is appended any more: nothing could be promised.
        """
        with self._writing:
            if self.failure is not None:
                raise StorageError(self.failure)
            try:
                self._append(batches)
            except MemoryError:
                raise StorageError(f"{self.directory}: there is not enough memory to append") from None

    def _append(self, batches: Sequence[Batch]) -> None:
        file = self._tail_file
        if file.size >= self._segment_bytes:
            self._rotate()
            file = self._tail_file
        pieces: list[Piece] = []
        frames: list[EncodedFrame] = []
        op, following, time, offset = file.next_op, file.next, self.last_time, file.size
        for place, batch in enumerate(batches, 1):
            times = time_span(batch)
            count = batch.run.count
            if batch.op != op:
                if batch.op:
                    raise UsageError(f"operation {batch.op} cannot follow operation {op - 1}")
                batch = structs.replace(batch, op=op)
            expected = following - 1 if batch.is_entries else following
            if batch.first != expected or times[0] < time or not count:
                what = f"{count} {'entries' if batch.is_entries else 'messages'} from {batch.first} at {times[0]}"
                raise UsageError(f"{what} cannot follow message {following - 1} at {time}")
            continued = place < len(batches) if batch.tied is None else batch.tied
            encoded = file.encode(batch, times, offset, continued=continued)
            pieces += encoded.pieces
            frames.append(encoded)
            op, offset, time = op + count, offset + encoded.length, times[1]
            following = batch.last + 1
        if following - 1 > MAX_SEQUENCE:
            raise UsageError(f"sequence numbers end at {MAX_SEQUENCE}")
        self._writer.write(file, pieces)
        for encoded in frames:
            file.appended(encoded)
        self.last_time = time
        if batches and not batches[-1].tied:
            self._whole = op - 1
        # As in _note_tail().
        self.tail = file.next - 1
        self.tail_op = op - 1

    def _note_tail(self) -> None:
        newest = self._segments[-1]
        # In this order: a reader that sees the operation also sees the message.
        self.tail = newest.last
        self.tail_op = newest.last_op

    def commit(self, op: int) -> None:
        """Make everything up to an operation visible."""
        newest = self._kept[-1]
        # In this order, as in seq_of(). A lone hub commits all it has, once per turn.
        last = newest.last
        if op == newest.last_op:
            self.head, self.head_op = last, op
            return
        if op > self.tail_op:
            raise UsageError(f"cannot commit {op}: the tail is {self.tail_op}")
        if op > self.head_op:
            self.head = self.seq_of(op)
            self.head_op = op

    def adopt(self, uuid: UUID) -> None:
        """Take the uuid of another log; raise if this log has ever held anything."""
        file = self._tail_file
        if self.tail_op or len(self._segments) > 1:
            raise UsageError(f"the log {self.uuid} has messages: it cannot become the log {uuid}")
        sync = self.fsync != "never"
        with self._writing, self._syncing, self._changing, translating(file.path):
            fresh = TailFile.create(file.path, uuid, file.first_op, file.first, sync=sync)
            if sync:
                sync_path(self.directory)
            self._segments = (fresh,)
        self.uuid = uuid
        # Synced: a watermark of another log is as good as none, and then everything counts as promised.
        self._mark(sync=True)

    def cut_back(self, last: int) -> None:
        """Remove every operation after ``last`` for good, waiting for the disk; none of them may be committed."""
        self._check_writable()
        if last < self.head_op:
            raise UsageError(f"cannot cut back to {last}: {self.head_op} is committed")
        if last >= self.tail_op:
            return
        # A sync under way could otherwise count later appends as synced.
        with self._writing, self._syncing, self._changing, translating(self.directory):
            self._synced = min(self._synced, last)
            self._whole = last
            # Before cutting: operations appended later under the same numbers are not on the disk yet.
            self._mark(sync=True)
            # Step by step: after a failure, appends must not go to a file that is gone.
            try:
                for remaining in cut_back(self.directory, self._segments, last):
                    self._segments = remaining
            except FailedSync as error:
                self._note_failure(error)
                raise
            finally:
                # A step that fails may have shortened the tail.
                self._note_tail()
                self.last_time = self._tail_file.last_time
            self._writer.note_cut_back()

    def sync(self) -> int:
        """Write everything appended before the call to the disk; return the last operation this covers.

        Call it from a thread of its own, since it waits for the disk. Once it has failed it fails for good: the system
        forgets what it could not write, so a later success would prove nothing.
        """
        # One at a time: the system reports a failed write once, to the first sync after it.
        with self._syncing:
            if self.failure is not None:
                raise StorageError(self.failure)
            upto = self._kept[-1].last_op
            try:
                for segment in self._segments:
                    if isinstance(segment, TailFile) and segment.last_op > self._synced:
                        sync_data(segment.fd)
                if self._dirty_directory:
                    # Before the sync, not after: a rotation meanwhile makes it dirty again.
                    self._dirty_directory = False
                    sync_path(self.directory)
            except OSError as error:
                raise StorageError(self._note_failure(error)) from error
            self._synced = max(self._synced, upto)
            self._mark()
            self.syncs += 1
            return upto

    def _note_failure(self, error: OSError) -> str:
        """Note that a sync has failed, and so will every later one; return the error to report."""
        why = os.strerror(error.errno or 0).lower()
        doubt = f"messages from {self.seq_of(self._synced) + 1} on may not be on the disk ({why})"
        self.failure = f"{self.directory}: {doubt}; check it, then restart the hub"
        return self.failure

    def rotate(self) -> None:
        """Begin a new open tail, so that the old one can be sealed.

        An empty tail stays, and so does one that another thread is appending to: this never waits for the disk.
        """
        if self._writing.acquire(blocking=False):
            try:
                self._rotate()
            finally:
                self._writing.release()

    def _rotate(self) -> None:
        old = self._tail_file
        if old.empty or self._whole < self.tail_op:
            # A group must stay in one file, where recovery can cut it off.
            return
        path = self.directory / f"{old.next_op:016d}.open"
        with translating(path):
            self._writer.tidy(old)
            sync = self.fsync == "always"
            fresh = TailFile.create(path, self.uuid, old.next_op, old.next, self.last_time, sync=sync)
            self._writer.release(old)
        self._dirty_directory = True
        with self._changing:
            self._segments = (*self._segments, fresh)

    def write_snapshot(self, op: int, seq: int, sections: Mapping[str, Section]) -> None:
        """Write the hub's state after operation ``op``, which must be committed; ``seq`` is the newest message then."""
        self._check_writable()
        if op > self.head_op:
            raise UsageError(f"cannot write a snapshot at {op}: the head is {self.head_op}")
        if self.snapshot is not None and op < self.snapshot.op:
            raise UsageError(f"cannot write a snapshot at {op}: there is a newer one at {self.snapshot.op}")
        sync = self.fsync != "never"
        if sync and self._synced < op:
            # After a power failure, a snapshot ahead of the log would look as if the log had lost its end.
            self.sync()
        state = snapshot.FrozenState(op, seq, sections)
        with translating(self.directory):
            snapshot.write_frozen(self.directory, self.uuid, state, sync=sync)
        self.snapshot = snapshot.Snapshot(self.uuid, op, seq, {})

    def packed_snapshot(self, state: snapshot.FrozenState) -> bytes:
        """Serialize a state, with the chain of digests up to it, for a log that begins after it; for a thread."""
        try:
            chain = self.chain.at(state.seq).serialize()
        except TrimmedError:
            # The log was sealed past the state meanwhile. The copy digests the messages it gets itself.
            return snapshot.packed(self.uuid, state)
        return snapshot.packed(self.uuid, replace(state, sections={**state.sections, SECTION: chain}))

    def forget_sections(self) -> None:
        """Free the memory of the newest snapshot, once the state has been restored from it."""
        if self.snapshot is not None:
            self.snapshot = replace(self.snapshot, sections={})

    def close(self) -> None:
        """Sync (unless ``fsync`` is ``never``), then release the files and the lock."""
        # Finish sealing first: the next writer would remove a half-sealed segment as litter.
        with self._sealing:
            if not self._segments:
                return
            try:
                if self.lock is not None:
                    self._writer.release(self._tail_file)
                    if self.fsync != "never":
                        self.sync()
            finally:
                self._segments = ()
                if self.lock is not None:
                    self.lock.release()
                    self.lock = None

    def _mark(self, *, sync: bool = False) -> None:
        """Write down how far the log is on the disk."""
        if self._watermark is not None:
            # If it cannot be written it lags, as it may.
            with contextlib.suppress(OSError):
                # An incomplete group is promised to nobody.
                self._watermark.write(self.uuid, min(self._synced, self._whole), sync=sync)

    def _known(self, committed: int) -> int:
        """The last operation to show when ``committed`` is the last one noted as committed.

        The note may end within a group, as a sync may. A commit never does, so the rest of the group is committed too.
        """
        safe = self._safe
        if committed <= safe:
            return safe
        tails = [segment for segment in self._segments if isinstance(segment, TailFile)]
        tail = next((tail for tail in tails if tail.first_op <= committed < tail.last_op), None)
        return min(committed, self.tail_op) if tail is None else max(tail.whole(committed), safe)

    @property
    def _safe(self) -> int:
        """The last operation known to be committed: only committed ones are sealed, or covered by a snapshot."""
        sealed = [segment.last_op for segment in self._segments if isinstance(segment, SealedSegment)]
        return max([0 if self.snapshot is None else self.snapshot.op, *sealed])

    @property
    def _tail_file(self) -> TailFile:
        last = self._kept[-1]
        if self.lock is None or not isinstance(last, TailFile):
            self._check_writable()
            raise UsageError("the log has no open tail")
        return last
