"""The match queue: takes committed batches in order, and finds the clients of each message.

The queue has a cursor, like any other reader. Committed batches wait for it in a cache, up to :data:`MAX_WAITING`;
above that it reads the log instead. A few messages are matched on the event loop, in the turn in which they were
committed. Many are matched in a thread, some at a time, so that nothing else waits. The index is rebuilt in a thread,
too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.hub.cursor import Cursor, EncodedCache, Lost
from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.sequence import Hub
from headrace.matching import Matches
from headrace.message import Batch
from headrace.net.server.log.feed import LogFeed
from headrace.net.server.machine.reader_threads import ReaderThreads

FEW: Final = 64
"""Most messages that are matched on the event loop, which is quicker than going to another thread and back."""

SLICE: Final = 1024
"""Most messages that are matched at a time."""

MAX_WAITING: Final = 32 << 20
"""Most payload bytes that wait in memory to be matched."""

READ_BYTES: Final = 1 << 20

logger = logging.getLogger("headrace")

Matched = Callable[[Batch, Matches | None], None]
"""Takes a matched batch; ``None`` if there is no subscription at all."""


class Batches(NamedTuple):
    """Batches that follow one another."""

    batches: Sequence[Batch]
    size: int

    @property
    def first(self) -> int:
        """The first sequence number."""
        return self.batches[0].first

    @property
    def last(self) -> int:
        """The last sequence number."""
        return self.batches[-1].last


def _gather(batches: Sequence[Batch]) -> Batches:
    return Batches(batches, sum(batch.size for batch in batches))


class MatchQueue:
    """Matches what is committed."""

    def __init__(
        self, hub: Hub, matching: LocalMatcher, matched: Matched, readers: ReaderThreads, thread: Executor
    ) -> None:
        self.next = hub.log.head + 1
        """The first message that is not matched yet."""
        self.blocked: Callable[[], bool] = lambda: False
        """Whether the taker of matches has no room; call :meth:`go_on` when it has."""
        self._stopped = False
        self._barriers: deque[tuple[int, Callable[[], None]]] = deque()
        self._hub = hub
        self._matching = matching
        self._matched = matched
        self._readers = readers
        self._thread = thread
        self._warm = False
        """Whether the index's kernels are compiled: matching the first messages, in the thread, compiles them."""
        self._away = False
        """Whether messages are being matched in the thread."""
        self._cache = EncodedCache(_gather, max_bytes=MAX_WAITING)
        self._cursor = Cursor(self.next, self._cache.find, passes_over=True)
        self._feed = LogFeed(hub.log, self._cursor, self._read, readers, self)
        self._taken: deque[Batch] = deque()
        """Taken from the cursor, and not matched yet."""
        self._due = False
        self._rebuilding = False
        self._messages = hub.counters.counter("matched", what="messages")
        self._clients = hub.counters.counter("matched", what="clients")

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Take newly committed batches; there may be none, if only entries were committed."""
        busy = self._taken or self._barriers or self._away or self._cursor.reading
        if not (batches or busy):
            return
        if not (busy or len(self._matching)):
            # There are no subscriptions, as on a hub that routes nothing: no batch need be looked at.
            newest = batches[-1]
            if batches[0].first == self.next and not (self._stopped or self.blocked()):
                self._cursor.next = self.next = newest.last + 1
                self._matched(newest, None)
                return
        self._cache.encode(batches)
        self._feed.pump()
        if not self._due:
            self.go_on()

    def stop(self) -> None:
        """Stop matching; the log has the rest."""
        self._stopped = True
        self._cursor.close()

    def when(self, seq: int, act: Callable[[], None]) -> None:
        """Call ``act`` once everything up to ``seq``, and nothing after it, is matched."""
        self._barriers.append((seq, act))

    def go_on(self) -> None:
        """Match some of the waiting messages, and the rest after others had their turn."""
        self._due = False
        if self._stopped:
            return
        budget = SLICE
        while budget > 0 and not (self._away or self.blocked()):
            if self._barriers and self._barriers[0][0] < self.next:
                self._barriers.popleft()[1]()
                continue
            if not self._taken:
                self._feed.pump()
                if not self._taken:
                    return
            batch = self._next_batch(SLICE)
            budget -= len(batch) if len(self._matching) else 1
            self._match(batch)
        if not (self._away or self.blocked()):
            self._due = True
            asyncio.get_running_loop().call_soon(self.go_on)

    def _next_batch(self, most: int) -> Batch:
        """The next messages that wait: at most ``most``, none after the next barrier."""
        batch = self._taken.popleft()
        if self._barriers:
            most = min(most, self._barriers[0][0] - self.next + 1)
        if len(batch) > most:
            batch, rest = batch.slice(0, most), batch.slice(most, len(batch))
            self._taken.appendleft(rest)
        return batch

    @property
    def ready(self) -> bool:
        """Whether the next chunk can be taken: all before it is matched."""
        return not (self._taken or self._stopped)

    def take_chunk(self, chunk: Batches) -> bool:
        """Take batches to match."""
        self._taken.extend(chunk.batches)
        self._cache.discard(chunk.last)
        return True

    def read_failed(self, lost: Lost, error: HeadraceError) -> None:
        """Count messages that cannot be read and continue after them, since nobody else gets them either."""
        self._hub.counters.report("unmatched", lost.first, lost.last, str(error))
        self.next = lost.last + 1

    def pump(self) -> None:
        """Continue, since a read has ended."""
        self.go_on()

    def tick(self) -> None:
        """Rebuild the index if that is due."""
        matcher = self._matching.matcher
        if self._rebuilding or self._stopped or not matcher.rebuild_due:
            return
        self._rebuilding = True
        rebuilding = asyncio.get_running_loop().run_in_executor(self._readers, matcher.rebuild)
        rebuilding.add_done_callback(self._rebuilt)

    def _match(self, batch: Batch) -> None:
        if not len(self._matching):
            self.next = batch.last + 1
            self._matched(batch, None)
            return
        pieces = self._matching.pieces(batch)
        if self._warm and len(batch) <= FEW and self._matching.matcher.at_hand(batch):
            while True:
                try:
                    found = next(pieces, None)
                except Exception as error:  # noqa: BLE001 -- whatever it is, later messages must not wait
                    self._cannot(batch, error)
                    return
                if found is None:
                    return
                self._take(*found)
        else:
            self._away = True
            self._match_away(batch, pieces)

    def _match_away(self, batch: Batch, pieces: Iterator[tuple[Batch, Matches]]) -> None:
        matching = asyncio.get_running_loop().run_in_executor(self._thread, next, pieces, None)
        matching.add_done_callback(lambda done: self._came(batch, pieces, done))

    def _cannot(self, batch: Batch, error: BaseException) -> None:
        """Give up the rest of a batch, since later messages must not wait for ever."""
        detail = f"the matcher failed ({type(error).__name__}: {error})"
        self._hub.counters.report("unmatched", self.next, batch.last, detail)
        logger.error("messages %d to %d could not be matched", self.next, batch.last, exc_info=error)
        self.next = batch.last + 1

    def _came(
        self,
        batch: Batch,
        pieces: Iterator[tuple[Batch, Matches]],
        done: asyncio.Future[tuple[Batch, Matches] | None],
    ) -> None:
        if done.cancelled() or self._stopped:
            return
        error = done.exception()
        found = done.result() if error is None else None
        if found is not None:
            self._take(*found)
            self._match_away(batch, pieces)
            return
        if error is not None:
            self._cannot(batch, error)
        self._away, self._warm = False, True
        self.go_on()

    def _take(self, batch: Batch, matches: Matches) -> None:
        self.next = batch.last + 1
        self._messages.value += len(batch)
        self._clients.value += len(matches.clients)
        self._matched(batch, matches)

    def _read(self, first: int, last: int) -> Batches:
        return _gather(self._hub.log.read(first, last, READ_BYTES))

    def _rebuilt(self, done: asyncio.Future[bool]) -> None:
        self._rebuilding = False
        if not done.cancelled() and (error := done.exception()) is not None:
            self._hub.counters.add("rebuild_failures")
            logger.error("the index of subscriptions could not be rebuilt", exc_info=error)
