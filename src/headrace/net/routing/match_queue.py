"""The match queue: committed batches in, in order; the clients of each message out.

The queue is a consumer with a cursor, like any other. Committed batches wait in memory, up to :data:`MAX_WAITING`;
past that it reads the log instead. A few messages are matched on the event loop, in the turn they were committed in;
many are matched in a thread, some at a time, so that nobody else waits for that. The index is rebuilt in a thread, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final

from headrace.errors import StorageError, TrimmedError
from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.sequence import Hub
from headrace.matching import Matches
from headrace.message import Batch

FEW: Final = 64
"""Messages that are matched on the event loop: less work than going to another thread and back."""

SLICE: Final = 1024
"""Messages that are taken up at a time."""

MAX_WAITING: Final = 32 << 20
"""Payload bytes that wait in memory to be matched."""

READ_BYTES: Final = 1 << 20

logger = logging.getLogger("headrace")

Matched = Callable[[Batch, Matches | None], None]
"""Takes what was matched; ``None`` stands for a batch that nobody could want."""


class MatchQueue:
    """Matches what is committed."""

    def __init__(
        self, hub: Hub, matching: LocalMatcher, matched: Matched, readers: Executor, thread: Executor
    ) -> None:
        self.next = hub.log.head + 1
        """The first message that is not matched yet."""
        self.blocked: Callable[[], bool] = lambda: False
        """Whether whoever takes what is matched has no room; then call :meth:`go_on` when it has."""
        self._stopped = False
        self._barriers: deque[tuple[int, Callable[[], None]]] = deque()
        self._hub = hub
        self._matching = matching
        self._matched = matched
        self._readers = readers
        self._thread = thread
        self._warm = False
        """Whether the index's kernels are compiled; the first messages see to that in the thread."""
        self._away = False
        """Whether messages are just being matched in the thread."""
        self._waiting: deque[Batch] = deque()
        self._bytes = 0
        self._due = False
        self._reading = False
        self._rebuilding = False
        self._messages = hub.counters.counter("matched", what="messages")
        self._clients = hub.counters.counter("matched", what="clients")

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Take newly committed batches."""
        waiting = self._waiting
        if not (waiting or self._barriers or len(self._matching) or self._away or self._reading):
            # Nobody wants anything, as on a hub that routes nothing: no batch need be looked at.
            newest = batches[-1]
            if batches[0].first == self.next and not (self._stopped or self.blocked()):
                self.next = newest.last + 1
                self._matched(newest, None)
                return
        following = waiting[-1].last + 1 if waiting else self.next
        for batch in batches:
            if batch.first != following:
                break  # The log has it, and what is between.
            waiting.append(batch)
            self._bytes += batch.size
            following = batch.last + 1
        while self._bytes > MAX_WAITING and len(waiting) > 1:
            self._bytes -= waiting.pop().size
        if not self._due:
            self.go_on()

    def stop(self) -> None:
        """Match nothing more: whoever is owed something finds it in the log."""
        self._stopped = True

    def when(self, seq: int, act: Callable[[], None]) -> None:
        """Call ``act`` once everything up to ``seq``, and nothing behind it, is matched."""
        self._barriers.append((seq, act))

    def go_on(self) -> None:
        """Match some of what waits, and the rest when others have had their turn."""
        self._due = False
        if self._stopped:
            return
        budget = SLICE
        while budget > 0 and not (self._away or self.blocked()):
            if self._barriers and self._barriers[0][0] < self.next:
                self._barriers.popleft()[1]()
            elif self._waiting:
                batch = self._next_batch(SLICE)
                budget -= len(batch) if len(self._matching) else 1
                self._match(batch)
            else:
                break
        if self._away or self.blocked():
            return
        if self._waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self.go_on)
        elif self.next <= self._hub.log.head:
            self._read()

    def _next_batch(self, most: int) -> Batch:
        """What waits first: no more than ``most`` messages, none behind the next barrier."""
        batch = self._waiting.popleft()
        if self._barriers:
            most = min(most, self._barriers[0][0] - self.next + 1)
        if len(batch) > most:
            batch, rest = batch.slice(0, most), batch.slice(most, len(batch))
            self._waiting.appendleft(rest)
        # The parts of a batch may come to some bytes more than it did: where nothing waits, the count begins anew.
        self._bytes = self._bytes - batch.size if self._waiting else 0
        return batch

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
        if self._warm and len(batch) <= FEW:
            while True:
                try:
                    found = next(pieces, None)
                except Exception as error:  # noqa: BLE001 -- whatever it is, those behind must not wait
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
        """Give up what is not matched of a batch: those behind it must not wait for ever."""
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

    def _read(self) -> None:
        if not self._reading:
            self._reading = True
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(
                self._readers, self._hub.log.read, self.next, self._hub.log.head, READ_BYTES
            )
            reading.add_done_callback(self._was_read)

    def _was_read(self, done: asyncio.Future[list[Batch]]) -> None:
        self._reading = False
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, StorageError):
            # Nobody else gets these either: count them and go on with what comes next.
            last = error.oldest - 1 if isinstance(error, TrimmedError) else self._hub.log.head
            self._hub.counters.report("unmatched", self.next, last, str(error))
            self.next = last + 1
            self.go_on()
            return
        if error is not None:
            raise error
        batches = done.result()
        if batches and not self._waiting and batches[0].first == self.next:
            self._waiting.extend(batches)
            self._bytes = sum(batch.size for batch in batches)
        self.go_on()

    def _rebuilt(self, done: asyncio.Future[bool]) -> None:
        self._rebuilding = False
        if not done.cancelled() and (error := done.exception()) is not None:
            self._hub.counters.add("rebuild_failures")
            logger.error("the index of subscriptions could not be rebuilt", exc_info=error)
