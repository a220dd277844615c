"""Background work of the log: syncs, sealing, snapshots, retention.

Each is a small loop. It decides on the event loop and uses the disk in threads. Nothing fails silently: an error of the
disk is counted and logged, and the work is tried again; after a failed sync the hub acknowledges nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from headrace.config import Settings
from headrace.errors import DamagedError, FullError, StorageError
from headrace.hub.consumers.cursors import Consumers, remove, use
from headrace.hub.consumers.unused import UnusedConsumers
from headrace.hub.sequence import Hub
from headrace.hub.steady_clock import SteadyClock
from headrace.log.maintained import remove_files
from headrace.log.snapshots.pieces import Section, in_pieces
from headrace.log.tail import TailFile
from headrace.net.server.machine.clock import machine_clock
from headrace.net.server.machine.disk_room import DiskRoom

if TYPE_CHECKING:
    from headrace.archive.past import ArchivedPast

logger = logging.getLogger("headrace")

P = ParamSpec("P")
T = TypeVar("T")

_PAUSE: Final = 1.0
"""Seconds between checks for something to seal or trim."""

_BUSY: Final = 32 << 20
"""Incoming bytes per second above which the hub is too busy to seal."""

_CALM: Final = 5.0
"""Seconds without load before the hub seals, so that it does not seal between the batches of a query."""

_MAX_BACKLOG: Final = 1 << 30
"""Bytes that may wait to be sealed while the hub is busy."""

_UNLIMITED: Final = 1 << 62

_LOOK_SECONDS: Final = 10.0
"""Seconds between looks at the archive while nothing has to be removed from the log."""

_LONGEST_REST: Final = 0.01
"""Longest pause, in seconds, after one piece of a snapshot."""

_TIDY_SECONDS: Final = 60.0
"""Seconds between searches for unused consumers."""

TRUSTED_AFTER: Final = 600.0
"""Seconds after the start before messages are removed by age: the machine's clock may not be set yet."""


class GroupCommit:
    """The commit rule under ``fsync=always``: one sync at a time, each covering everything appended before it."""

    def __init__(self, hub: Hub, disk: Executor) -> None:
        self._hub = hub
        self._disk = disk
        self._syncing = False

    def __call__(self, _tail: int) -> None:
        """Start a sync soon; if one is running, the next covers this append too."""
        if not self._syncing and self._hub.log.failure is None:
            try:
                syncing = asyncio.get_running_loop().run_in_executor(self._disk, self._hub.log.sync)
            except RuntimeError:
                return  # The hub stopped before the disk answered: unsynced messages are as safe as after a crash.
            self._syncing = True
            syncing.add_done_callback(self._synced)

    def _synced(self, done: asyncio.Future[int]) -> None:
        self._syncing = False
        if done.cancelled():
            return
        error = done.exception()
        if not self._hub.log.segments:
            return  # The log was closed meanwhile; closing syncs it or reports why not.
        if error is not None:
            # After a failed sync it is unknown what is on the disk: acknowledge nothing more.
            logger.critical("the disk failed to sync, nothing more is acknowledged: %s", error)
            self._hub.counters.add("sync_failures")
            self._hub.fail(error if isinstance(error, StorageError) else StorageError(str(error)))
            return
        # A thread may have appended what the hub does not know of yet; the next sync covers that.
        self._hub.committed(min(done.result(), self._hub.appended_op))
        if self._hub.appended_op > self._hub.log.head_op:
            self(self._hub.appended_op)


def politely(section: Section) -> Iterator[bytes]:
    """Make a section's pieces in a thread that rests as long as it works: the event loop needs the interpreter, too."""
    pieces = iter(in_pieces(section))
    while True:
        begun = perf_counter()
        piece = next(pieces, None)
        if piece is None:
            return
        yield piece
        sleep(min(perf_counter() - begun, _LONGEST_REST))


class LogMaintenance:
    """The background loops of one hub's log."""

    def __init__(
        self,
        hub: Hub,
        settings: Settings,
        disk: Executor,
        *,
        holds: Callable[[], Mapping[str, int]] = dict,
        clock: SteadyClock | None = None,
        consumers: Consumers | None = None,
        sync_failed: Callable[[StorageError], None] | None = None,
        trusted_after: float = TRUSTED_AFTER,
        past: ArchivedPast | None = None,
        past_threads: Executor | None = None,
    ) -> None:
        self.problems: dict[str, str] = {}
        """Why each kind of work fails now (``sync``, ``seal``, ``trim``, ``snapshot``, ``room``)."""
        self._past = past
        """The archive, if the log has one."""
        self._past_threads = past_threads or disk
        self._clock = clock or machine_clock()
        self._trusted_at = asyncio.get_running_loop().time() + min(
            trusted_after, settings.log.retain_seconds or 0
        )
        self.room = DiskRoom(hub, settings.log.retain_bytes)
        self._hub = hub
        self._sync_failed = sync_failed or hub.fail
        """Called after a failed sync, to stop all acknowledgements."""
        self._log = hub.log
        self._holds = holds
        """Returns further holds, beside those in the state: what durable consumers still need."""
        self._settings = settings.log
        self._disk = disk
        self._aging: tuple[int, float] | None = None
        """First operation of the open tail, and when the tail was first seen to have messages."""
        self._looked = (hub.log.size, 0.0)
        """The log's size at the last check, and the time of that check."""
        self._busy_at = -_CALM
        """When the hub was last busy."""
        self._broken: set[tuple[str, int]] = set()
        """Broken holds that have been reported."""
        self._unused_after = settings.limits.consumer_seconds
        self._unused = (
            None
            if consumers is None or self._unused_after is None
            else UnusedConsumers(consumers, self._unused_after)
        )
        self._archived = 0
        """The last message up to which the archive is known to agree with the log."""
        self._sealing = asyncio.Lock()
        self._keeping = asyncio.Lock()

    def loops(self) -> list[Callable[[], Awaitable[None]]]:
        """Return the loops to run for as long as the hub does."""
        loops: list[Callable[[], Awaitable[None]]] = [self._keep_sealed, self._keep_snapshots]
        if self._settings.fsync == "interval":
            loops.append(self._keep_synced)
        if self._unused is not None:
            loops.append(self._keep_tidy)
        if self._past is not None:
            loops.append(partial(self._keep_looking, self._past))
        return loops

    async def seal(self) -> int:
        """Seal everything committed now; return the number of new segments."""
        tail = self._log.segments[-1]
        if tail.last >= tail.first:
            await self._in_thread(self._log.rotate)
        count = 0
        while await self._seal_next():
            count += 1
        return count

    async def snapshot(self) -> None:
        """Write a snapshot of the state, unless the newest one is of this state."""
        # One at a time: otherwise the older of two could finish last.
        async with self._keeping:
            state, kept = self._hub.state, self._log.snapshot
            if state.op > (0 if kept is None else kept.op):
                try:
                    taken = state.freeze()
                    sections = {name: politely(section) for name, section in taken.sections.items()}
                    await self._in_thread(self._log.write_snapshot, taken.op, taken.seq, sections)
                except StorageError:
                    raise
                except Exception as error:
                    # A state that cannot be written must not end this loop, nor interrupt a stop.
                    raise StorageError(
                        f"the state cannot be kept: {type(error).__name__}: {error}"
                    ) from error

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(self._settings.fsync_interval)
            if self._log.dirty:
                try:
                    await self._in_thread(self._log.sync)
                except StorageError as error:
                    # A log that has failed to sync once fails for good. Messages since the last sync may be lost;
                    # acknowledging more would be a promise that nobody can keep.
                    self._hub.counters.add("sync_failures")
                    logger.critical("the disk failed to sync, nothing more is acknowledged: %s", error)
                    self.problems["sync"] = str(error)
                    self._sync_failed(error)
                    return

    async def _keep_sealed(self) -> None:
        while True:
            await asyncio.sleep(min(_PAUSE, self._settings.segment_seconds))
            # The clock is read even while nobody publishes, to notice that it stepped and when that is over.
            self._clock.now()
            try:
                await self._rotate_by_age()
                while not self._too_busy_to_seal() and await self._seal_next():
                    # Trim between segments, too: while messages come faster than they are sealed, sealing never ends.
                    await self._trim()
                if not self._too_busy_to_seal():
                    await self._index_next()
                    async with self._sealing:
                        await self._in_thread(self._log.prove_next)
                self._went_well("seal")
            except DamagedError as error:
                # This is raised once per tail: sealing skips it from now on.
                self._hub.counters.add("damaged_tails")
                logger.error("set aside, since it cannot be sealed: %s", error)
                self._went_well("seal")
            except StorageError as error:
                self._failed("seal", "the log could not be sealed", error)
            try:
                # Trim even if sealing failed: on a full disk nothing else frees space.
                await self._trim()
                self._went_well("trim")
            except StorageError as error:
                self._failed("trim", "the log could not be trimmed", error)
            with contextlib.suppress(OSError):
                await self._in_thread(self.room.look)

    async def _keep_snapshots(self) -> None:
        while True:
            await asyncio.sleep(self._settings.snapshot_seconds)
            await self._try_snapshot()

    async def _keep_looking(self, past: ArchivedPast) -> None:
        """Check what the archive has, more often while the log is larger than it should be."""
        while True:
            await self._look(past)
            urgent = self._oversized or past.problem is not None
            await asyncio.sleep(_PAUSE if urgent else _LOOK_SECONDS)

    async def _look(self, past: ArchivedPast) -> None:
        loop = asyncio.get_running_loop()
        archived = 0
        if await loop.run_in_executor(self._past_threads, past.look):
            archived = await loop.run_in_executor(self._past_threads, past.vouched)
        # An archive with a problem may have lost messages, so the log may have the only copy.
        self._archived = 0 if past.problem is not None else archived
        if past.problem is not None:
            self._failed(
                "archive",
                "the archive cannot be read",
                StorageError(f"the archive {past.place}: {past.problem}"),
            )
        elif self._oversized and self._archived < self._log.segments[0].last:
            self._failed(
                "archive",
                "the log is larger than log.retain_bytes",
                StorageError(
                    f"the archive {past.place} ends at message {past.last}: only archived messages are removed"
                ),
            )
        else:
            self._went_well("archive")

    @property
    def _oversized(self) -> bool:
        """Whether the log is larger than it should be, and has segments that could be removed."""
        most = self._settings.retain_bytes
        return most is not None and self._log.size > most and len(self._log.segments) > 1

    async def _keep_tidy(self) -> None:
        while True:
            # Look several times before anything counts as unused: news from another node may take two looks.
            await asyncio.sleep(min(_TIDY_SECONDS, (self._unused_after or _TIDY_SECONDS) / 4))
            with contextlib.suppress(StorageError):
                await self.tidy()

    async def tidy(self) -> None:
        """Remove unused durable consumers; if another node numbers messages, tell it which are in use."""
        if self._unused is None or self._unused_after is None:
            return
        before = self._clock.now() - int(self._unused_after * 1e6)
        recent = await self._in_thread(self._log.seq_at, before)
        if self._hub.sequencer is not None:
            for consumer in self._unused.in_use(recent):
                self._hub.submit(use(consumer.name))
            return
        for consumer in self._unused.look(asyncio.get_running_loop().time(), recent):
            self._hub.counters.add("consumers_expired")
            logger.warning(
                "removing consumer %s: messages that wait for it are older than limits.consumer_seconds (%g)",
                consumer.name,
                self._unused_after,
            )
            self._hub.submit(remove(consumer.name))

    async def _try_snapshot(self) -> None:
        try:
            try:
                await self.snapshot()
            except FullError:
                if not await self._in_thread(self.room.give_up):
                    raise
                await self.snapshot()
            self._went_well("snapshot")
        except StorageError as error:
            self._failed("snapshot", "the snapshot could not be written", error)

    def told(self) -> dict[str, str]:
        """Return every current problem, by what it concerns."""
        told = dict(self.problems)
        if self._past is not None and self._past.problem is not None:
            # Report it at once: an archive that hangs takes minutes to fail.
            told["archive"] = f"the archive {self._past.place}: {self._past.problem}"
        if self._hub.shortage is not None:
            told["room"] = str(self._hub.shortage)
        if self._log.damaged:
            told["damage"] = "; ".join(str(each) for each in self._log.damaged.values())
        if self._clock.stepped:
            told["clock"] = (
                "the machine's clock has stepped: messages are stamped as if it had not, for some minutes"
            )
        return told

    def _failed(self, work: str, what: str, error: StorageError) -> None:
        self._hub.counters.add("upkeep_failures")
        if self.problems.get(work) != str(error):
            logger.error("%s, trying again: %s", what, error)
        self.problems[work] = str(error)

    def _went_well(self, work: str) -> None:
        if self.problems.pop(work, None) is not None:
            logger.info("%s works again", work)

    def _too_busy_to_seal(self) -> bool:
        """Return whether sealing should wait, since it takes a core for a second or so.

        It does not wait if much is unsealed already, or if retention needs sealed segments to remove. Unsealed messages
        are as safe in the log as sealed ones.
        """
        size, now = self._log.size, asyncio.get_running_loop().time()
        (size_before, before), self._looked = self._looked, (size, now)
        backlog = sum(segment.size for segment in self._log.segments[:-1] if isinstance(segment, TailFile))
        over = self._settings.retain_bytes is not None and size > self._settings.retain_bytes
        if backlog > _MAX_BACKLOG or over:
            return False
        if size - size_before > _BUSY * max(now - before, 0.001):
            self._busy_at = now
        return now - self._busy_at < _CALM

    async def _rotate_by_age(self) -> None:
        tail = self._log.segments[-1]
        now = asyncio.get_running_loop().time()
        if tail.last < tail.first:
            return
        # A new tail may have begun: a tail also ends when it has enough bytes.
        if self._aging is None or self._aging[0] != tail.first_op:
            self._aging = tail.first_op, now
        elif now - self._aging[1] >= self._settings.segment_seconds:
            await self._in_thread(self._log.rotate)

    async def _seal_next(self) -> bool:
        async with self._sealing:
            segment = await self._in_thread(self._log.seal_next)
        if segment is None:
            return False
        self._hub.counters.add("segments_sealed")
        logger.info("sealed messages %d to %d in %s", segment.first, segment.last, segment.path.name)
        return True

    async def _index_next(self) -> None:
        """Write one of the topic indexes that are missing or damaged, if any."""
        async with self._sealing:
            segment = await self._in_thread(self._log.index_next)
        if segment is not None:
            logger.info("wrote the index of topics %s", segment.topics_path.name)

    async def _trim(self) -> None:
        before = self._log.first_here
        retain = self._settings
        limited = retain.retain_bytes is not None or retain.retain_seconds is not None
        if not limited or len(self._log.segments) < 2:
            return
        # A snapshot precedes any trimming, so that removed messages are never needed again. If there is no room for a
        # new one, messages that the last one covers are still removed.
        if retain.retain_bytes is not None and self._log.size > retain.retain_bytes:
            await self._try_snapshot()
        holds = {**self._hub.state.holds, **self._holds()}
        seconds = retain.retain_seconds
        if asyncio.get_running_loop().time() < self._trusted_at:
            seconds = None
        # Decide here, not in a thread: a hold that is granted in the meantime must be kept.
        verdict, gone = self._log.let_go(
            self._clock.now(),
            retain_bytes=_UNLIMITED if retain.retain_bytes is None else retain.retain_bytes,
            retain_us=None if seconds is None else int(seconds * 1e6),
            holds=holds,
            archived=None if self._past is None else self._archived,
            unsealed="seal" in self.problems or bool(self._log.damaged),
        )
        await self._in_thread(remove_files, gone)
        begin = self._log.first_here
        if begin > before:
            self._hub.counters.add("trimmed", begin - before)
            logger.info("trimmed messages %d to %d", before, begin - 1)
        for name in verdict.broken:
            if (name, holds[name]) not in self._broken:
                self._hub.counters.report("holds_broken", holds[name], begin - 1, f"held by {name}")
        self._broken = {(name, seq) for name, seq in holds.items() if seq < self._log.first}

    async def _in_thread(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._disk, partial(function, *arguments, **keywords)
        )
