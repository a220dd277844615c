"""The upkeep of a log, for background threads: seal rotated tails, index their topics, digest them, drop old segments.

Segments change under one lock, in one step each, so that no segment is dropped while it is being sealed; readers keep
the segments that they found.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from headrace.errors import DamagedError, StorageError, UsageError
from headrace.log import retention
from headrace.log.files import translating
from headrace.log.proof.log_chain import LogChain
from headrace.log.reading import ReadableLog, Segment
from headrace.log.sealed.sealing import seal
from headrace.log.sealed.segment import SealedSegment
from headrace.log.snapshots import snapshot
from headrace.log.tail import TailFile
from headrace.platforms import sync_path

Fsync = Literal["always", "interval", "never"]


class MaintainedLog(ReadableLog):
    """The half of a log that maintains its segments; any thread may call it."""

    fsync: Fsync
    snapshot: snapshot.Snapshot | None
    """The newest snapshot; its sections are freed once the state is restored."""
    chain: LogChain
    """The digests of all messages, removed ones included."""
    damaged: dict[TailFile, DamagedError]
    """Tails that cannot be sealed, and why."""
    _changing: threading.Lock
    """Held while the segments are replaced."""
    _sealing: threading.Lock
    """Held while a segment is sealed, indexed or digested."""
    _being_sealed: TailFile | None
    _unindexed: set[SealedSegment]
    """Sealed segments whose damage keeps their topics from being indexed."""

    def seal_next(self) -> SealedSegment | None:
        """Seal the oldest rotated tail that is wholly committed, if any; for a background thread.

        A damaged tail raises once and is skipped from then on: its good frames can still be read, and the rest of the
        log is sealed as usual.
        """
        self._check_writable()
        with self._sealing:
            for segment in self._segments[:-1]:
                if isinstance(segment, TailFile) and segment not in self.damaged:
                    if segment.last_op > self.head_op:
                        return None
                    sealed = self._seal(segment)
                    if sealed is not None:
                        return sealed
        return None

    def index_next(self) -> SealedSegment | None:
        """Write the index of topics of a sealed segment that lacks a usable one, if any; for a background thread."""
        self._check_writable()
        with self._sealing:
            for segment in self._segments:
                if not isinstance(segment, SealedSegment) or segment in self._unindexed:
                    continue
                if segment.topics_wanted and self._index(segment):
                    return segment
        return None

    def prove_next(self) -> bool:
        """Add sealed messages that the chain of digests lacks, if any; for a background thread."""
        self._check_writable()
        with self._sealing:
            return self.chain.advance(sync=self.fsync != "never")

    def retain(
        self, now: int, *, retain_bytes: int, retain_us: int | None, holds: Mapping[str, int]
    ) -> retention.RetentionDecision:
        """Remove the segments that retention allows to remove."""
        decision, gone = self.let_go(now, retain_bytes=retain_bytes, retain_us=retain_us, holds=holds)
        remove_files(gone)
        return decision

    def let_go(
        self,
        now: int,
        *,
        retain_bytes: int,
        retain_us: int | None,
        holds: Mapping[str, int],
        archived: int | None = None,
        unsealed: bool = False,
    ) -> tuple[retention.RetentionDecision, list[Segment]]:
        """Drop the segments that retention allows to remove; :func:`remove_files`, in a thread, removes their files.

        Tails are dropped only if ``unsealed``: on a full disk sealing fails, and only dropping segments makes room.
        """
        self._check_writable()
        # Chosen and dropped in one step: sealing a dropped tail must not begin meanwhile.
        with self._changing:
            segments = self._segments
            removable: list[Segment] = []
            for segment in segments[:-1]:
                # Only the oldest: a repaired log may have tails before a sealed segment.
                if not isinstance(segment, SealedSegment) and (
                    not unsealed or segment is self._being_sealed or segment.last_op > self.head_op
                ):
                    break
                removable.append(segment)
            covered = 0 if self.snapshot is None else self.snapshot.op
            decision = retention.decide(
                [
                    retention.SegmentExtent(s.first, s.last, s.size, s.last_time, s.last_op <= covered)
                    for s in removable
                ],
                open_bytes=sum(s.size for s in segments[len(removable) :]),
                now=now,
                retain_bytes=retain_bytes,
                retain_us=retain_us,
                holds=holds,
                archived=archived,
            )
            gone = removable[: decision.remove]
            self._segments = segments[len(gone) :]
        for segment in gone:
            if isinstance(segment, TailFile):
                self.damaged.pop(segment, None)
        return decision, gone

    def _index(self, segment: SealedSegment) -> bool:
        """Write a segment's index of topics; return whether it is there."""
        try:
            with translating(segment.topics_path):
                segment.write_topics()
        except DamagedError:
            # Readers of the damaged messages get the error.
            self._unindexed.add(segment)
            return False
        except StorageError:
            if segment in self._segments:
                raise
        if segment not in self._segments:
            # Retention has removed its files meanwhile.
            segment.topics_path.unlink(missing_ok=True)
            return False
        return True

    def _check_writable(self) -> None:
        if self._kept and self.lock is None:
            raise UsageError(f"{self.directory}: the log is open for reading only")

    def _seal(self, tail: TailFile) -> SealedSegment | None:
        """Seal a tail, unless the log drops it first."""
        path = tail.path.with_suffix(".arrow")
        sync = self.fsync != "never"
        with self._changing:
            if tail not in self._segments:
                return None
            self._being_sealed = tail
        # A failure loses nothing: the tail stays, and sealing is retried later.
        try:
            with translating(path):
                extension = self.chain.extension(tail.first, tail.last)
                segment = seal(tail, path, sync=sync, extension=extension)
                if sync:
                    sync_path(self.directory)
            with self._changing:
                dropped = tail not in self._segments
                self._segments = tuple(segment if s is tail else s for s in self._segments)
        except DamagedError as damage:
            self.damaged[tail] = damage
            raise
        finally:
            self._being_sealed = None
        if dropped:
            # Otherwise the next start would take its files for a part of the log.
            _remove(path, _SEALED_SUFFIXES)
            return None
        if extension is not None:
            self.chain.keep(extension.finish(), sync=sync)
        tail.path.unlink(missing_ok=True)
        return segment


_SEALED_SUFFIXES: Final = (".arrow", ".topics", ".entries", ".index")
"""The files of a sealed segment. The index goes last: a segment without its index is damage, an index alone litter."""


def remove_files(gone: Sequence[Segment]) -> None:
    """Remove the files of segments that the log has dropped, oldest first, up to one that cannot be removed.

    What remains is a whole log, or litter that the next start removes. Removing later files instead would leave a hole.
    """
    for segment in gone:
        if not _remove(segment.path, (".torn", ".open", *_SEALED_SUFFIXES)):
            return


def _remove(path: Path, suffixes: Sequence[str]) -> bool:
    """Remove files in this order, up to one that cannot be removed; return whether all are gone."""
    try:
        for suffix in suffixes:
            path.with_suffix(suffix).unlink(missing_ok=True)
    except OSError:
        return False
    return True
