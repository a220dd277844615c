"""The outbox's disk: files, threads and the clock for what :mod:`~headrace.hub.publishing.storing` decides.

``DATA/outbox/log`` is the outbox, a log that ``headrace log dump --data DATA/outbox`` reads. Appends, syncs and reads
are done by threads. What the upstream hub has is removed segment by segment, after a snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TypedDict
from uuid import uuid4

from headrace.config import Settings
from headrace.errors import HeadraceError, StorageError
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.storing.kept_requests import KeptRequest
from headrace.hub.publishing.storing.outbox import Outbox
from headrace.hub.publishing.storing.storing_relay import StoringRelay
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import WhenPublished
from headrace.hub.services.entries import PART as SERVICES
from headrace.log import Log
from headrace.log.maintained import remove_files
from headrace.log.snapshots.start_after import is_log
from headrace.message import Batch
from headrace.net.server.log.maintenance import GroupCommit
from headrace.net.server.log.repeat_comparison import in_threads
from headrace.net.server.machine.clock import machine_clock
from headrace.net.server.machine.log_disk import LogDisk, let_append
from headrace.net.server.machine.writer_thread import WriterThread
from headrace.net.upstream.aside_disk import AGAIN_SECONDS, AsideDisk

logger = logging.getLogger("headrace")

SEGMENT_BYTES: Final = 8 << 20
READ_BYTES: Final = 512 << 10
"""Bytes that are read from the outbox at a time."""

FULL: Final = 0.98
"""The share of the bound from which the outbox counts as full: a larger message may find no room earlier."""

_TRIM_BYTES: Final = 64 << 10
"""An outbox that is sent up and smaller than this is left as it is."""

_TRIM_SECONDS: Final = 2.0
"""Seconds from one removal to the next, at least."""


class OutboxStatus(TypedDict):
    """The outbox in the status."""

    storing: bool
    """Whether what is published here is kept."""
    messages: int
    """Kept, and not upstream yet."""
    bytes: int
    most_bytes: int
    oldest: float | None
    """When the oldest of them was kept, in seconds since 1970."""
    overdue: bool
    aside: int
    """Messages that the upstream hub refused for good."""
    problem: str | None


def outbox_directory(settings: Settings) -> Path:
    """Return where the outbox is."""
    return settings.node.data / "outbox"


def has_outbox(settings: Settings) -> bool:
    """Whether there is an outbox, or is to be one."""
    return settings.upstream.store or is_log(outbox_directory(settings) / "log")


class OutboxDisk:
    """The outbox of a frontend, on its disk."""

    def __init__(self, settings: Settings, hub: Hub, holders: PublisherNumbers, *, most_waiting: int) -> None:
        self.problem: str | None = None
        """Why the outbox does not take or give messages, if so."""
        self._settings = settings
        self._clock = machine_clock()
        directory = outbox_directory(settings)
        log = self._open(directory / "log")
        try:
            self._threads = ThreadPoolExecutor(3, "headrace-outbox")
            self._writer = WriterThread()
            outbox = Outbox(
                log,
                hub.log.uuid,
                holders,
                most=settings.upstream.store_bytes,
                node=hub.node,
                elsewhere=in_threads(self._threads),
            )
            self.aside = AsideDisk(
                directory / "aside",
                log.uuid,
                open_log=self._open,
                in_thread=self._in_thread,
                now=self._clock.now,
                publish=self._publish_again,
            )
        except BaseException:
            log.close()
            raise
        if log.torn is not None:
            hub.counters.add("torn_tails")
            logger.warning(
                "cut %d bytes of an unfinished write off the outbox: %s", log.torn.size, log.torn.reason
            )
        self._log = log
        self._outbox = outbox
        outbox.aside_bytes = self.aside.size
        self._disk = LogDisk(log, self._threads, self._writer, alone=True)
        let_append(outbox.hub, self._disk)
        if log.fsync == "always":
            outbox.hub.commit_by(GroupCommit(outbox.hub, self._threads))
        outbox.hub.now = self._clock.now
        outbox.hub.wake = partial(asyncio.get_running_loop().call_soon, outbox.hub.take_turn)
        self.relay = StoringRelay(
            hub,
            outbox,
            name=lambda: uuid4().hex,
            patience=settings.node.upstream_seconds,
            most=most_waiting,
            now=asyncio.get_running_loop().time(),
            enabled=settings.upstream.store,
            services=SERVICES,
            most_seconds=settings.upstream.store_seconds,
        )
        self.relay.time_of_day = self._clock.now()
        self.relay.load = self._load
        self.relay.set_aside = self._set_aside
        self._loading = False
        self._trim_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        if log.fsync == "interval":
            self._hurried = asyncio.Event()
            outbox.hurry = self._hurried.set
            self._begin(self._keep_synced())
        outbox.hub.take_turn()
        waiting = outbox.state.waiting
        if waiting.requests:
            logger.info(
                "the outbox has %d messages (%d bytes) for the upstream hub", waiting.messages, waiting.size
            )

    def tick(self, now: float) -> None:
        """Look at the clock and the disk."""
        self._outbox.aside_bytes = self.aside.size
        self.relay.time_of_day = self._clock.now()
        self._disk.look(now)
        if now >= self._trim_at:
            self._trim()

    async def close(self) -> None:
        """Close the files."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        loop = asyncio.get_running_loop()
        for close in (self._log.close, self.aside.close):
            try:
                await loop.run_in_executor(self._threads, close)
            except StorageError as error:
                logger.error("the outbox's disk fails while stopping: %s", error)
        self._threads.shutdown(wait=False)
        self._writer.shutdown(wait=False)

    @property
    def refusing(self) -> str | None:
        """Why the outbox takes no more messages, if so."""
        failed = self._outbox.hub.failed or self._disk.problem
        if failed is not None:
            return f"the outbox: {failed}"
        if self.relay.is_overdue:
            return (
                f"the outbox: its oldest message has waited for {self._settings.upstream.store_seconds:g} s"
            )
        if self._outbox.size >= FULL * self._outbox.most:
            return (
                f"the outbox is full: {self._outbox.size} of {self._outbox.most} bytes (upstream.store_bytes)"
            )
        return None

    def facts(self) -> OutboxStatus:
        """Describe the outbox for the status."""
        waiting, oldest = self._outbox.state.waiting, self.relay.oldest
        return {
            "storing": self.relay.storing,
            "messages": waiting.messages,
            "bytes": self._outbox.size,
            "most_bytes": self._outbox.most,
            "oldest": None if oldest is None or not waiting.requests else oldest / 1e6,
            "overdue": self.relay.is_overdue,
            "aside": self.aside.messages,
            "problem": self.problem or self.aside.problem or self.refusing or self.relay.refused_for_now,
        }

    def _open(self, directory: Path) -> Log:
        return Log.open(directory, fsync=self._settings.log.fsync, segment_bytes=SEGMENT_BYTES)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_synced(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.log.fsync_interval):
                    await self._hurried.wait()
            self._hurried.clear()
            if self._log.dirty:
                try:
                    await self._in_thread(self._log.sync)
                except StorageError as error:
                    logger.critical("the outbox's disk failed to sync, nothing more is kept: %s", error)
                    self._outbox.hub.counters.add("sync_failures")
                    self._outbox.hub.fail(error)
                    return
            # Whoever has synced: a snapshot or a new segment does so, too.
            self._outbox.synced(self._log.synced_op)

    # Sending up

    def _load(self) -> None:
        if not self._loading and self.relay.due_from is not None:
            self._loading = True
            self._begin(self._read())

    async def _read(self) -> None:
        try:
            while (op := self.relay.due_from) is not None:
                try:
                    batches = await self._in_thread(partial(self._log.read_ops, op, None, READ_BYTES))
                except StorageError as error:
                    # What follows is not sent either: the order is a promise.
                    self.problem = f"the outbox cannot be read: {error}"
                    logger.error("%s", self.problem)
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                self.problem = None
                self.relay.loaded(op, batches)
        finally:
            self._loading = False

    def _set_aside(self, request: KeptRequest, error: HeadraceError, done: Callable[[], None]) -> None:
        self._begin(self._put_aside(request, error, done))

    async def _put_aside(self, request: KeptRequest, error: HeadraceError, done: Callable[[], None]) -> None:
        await self.aside.put(request, error)
        self._outbox.aside_bytes = self.aside.size
        done()

    def _publish_again(self, rows: Sequence[Batch], reply: WhenPublished) -> None:
        *preceding, mark = rows
        self.relay.publish(mark, reply, follows=False, preceding=preceding)

    # Removing what is upstream

    def _trim(self) -> None:
        log = self._log
        whole = len(log.segments) > 1 and log.segments[0].last_op < self._outbox.state.settled.op
        if whole or (self._outbox.empty and log.size > _TRIM_BYTES):
            self._trim_at = inf
            self._begin(self._trimmed())

    async def _trimmed(self) -> None:
        log, outbox = self._log, self._outbox
        try:
            if outbox.empty:
                await self._in_thread(log.rotate)
            # As of now, all at once: what is kept from here on comes after it.
            if outbox.empty:
                outbox.leave_out(log.segments[-1].first_op)
            needed, state = outbox.state.settled.op, outbox.hub.state.freeze()
            await self._in_thread(partial(log.write_snapshot, state.op, state.seq, state.sections))
            await self._in_thread(partial(_remove_before, log, needed))
        except StorageError as error:
            logger.warning("the outbox is not made shorter for now: %s", error)
        finally:
            self._trim_at = asyncio.get_running_loop().time() + _TRIM_SECONDS


def _remove_before(log: Log, op: int) -> None:
    """Remove the segments that end before an operation; a snapshot must cover them."""
    gone = [segment for segment in log.segments[:-1] if segment.last_op < op]
    if not gone:
        return
    following = log.segments[len(gone)]
    # Segments go by their messages: one of entries only ends with the same message as the one before.
    upto = (
        gone[-1].last
        if following.last > gone[-1].last or len(log.segments) == len(gone) + 1
        else gone[-1].last - 1
    )
    _, removed = log.let_go(0, retain_bytes=0, retain_us=None, holds={}, archived=upto, unsealed=True)
    remove_files(removed)
