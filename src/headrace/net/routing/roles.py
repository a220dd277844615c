"""The driver of content routing: the threads and turns of the event loop that its rules need.

Committed batches go through the :class:`~headrace.net.routing.match_queue.MatchQueue`;
:class:`~headrace.hub.routing.roles.RoutingRules` decides everything else. For the hub this is a door without a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headrace.errors import StorageError
from headrace.hub.routing.matcher_ring import MatcherRing
from headrace.hub.routing.roles import RoutingRules
from headrace.hub.routing.session_feed import Found, Then
from headrace.hub.routing.subscriptions import (
    Subscriptions,
)
from headrace.matching import is_cold, warm
from headrace.message import Batch
from headrace.net.routing.match_queue import MatchQueue
from headrace.net.routing.matcher_link import ToDispatcher
from headrace.net.server.accepting.door import DoorContext

REPLAY_BYTES: Final = 256 << 10
"""Payload bytes read from the log in one go for a client that is behind."""

FEW: Final = 1000
"""Most subscriptions that plain Python matches while the kernels are compiled."""

COMPILING_SECONDS: Final = 1.0
"""Seconds after which kernels are being compiled: loading them from the cache is quicker."""

logger = logging.getLogger("headrace")


class Routing(RoutingRules):
    """The rules, driven by an event loop and threads."""

    def __init__(self, context: DoorContext, subscriptions: Subscriptions, ring: MatcherRing) -> None:
        super().__init__(context.hub, context.settings, subscriptions, ring, self._look)
        self.to_dispatcher: ToDispatcher | None = None
        self._readers = context.readers
        self._thread = ThreadPoolExecutor(1, "headrace-match")
        self._queue: MatchQueue | None = None
        if self.matches:
            queue = MatchQueue(self._hub, self.matching, self.matched, context.readers, self._thread)
            queue.blocked = self.is_blocked
            self.after = lambda seq, act: queue.when(seq, lambda: self._sort(act))
            self._queue = queue
            if self.dials_dispatcher:
                place = self.own_path
                self.to_dispatcher = ToDispatcher(context, self.node, lambda: place.upto, queue.go_on)
                self.dispatcher_link = self.to_dispatcher
        used = self.matches or self.connector is not None
        if used and len(self.subscriptions) > FEW and is_cold():
            self._compile()
        # Only now is it known which of the subscriptions that the log has kept are matched here.
        for _ in self.matching.sort_out():
            pass

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Match newly committed batches."""
        if self._queue is not None:
            self._queue.deliver(batches)
        if self.connector is not None:
            self.connector.advance()

    def tick(self, now: float) -> None:
        """Expire what is due, maintain the index, and stay on the ring."""
        super().tick(now)
        if self._queue is not None:
            self._queue.tick()

    def relieved(self) -> None:
        """Do nothing, since nobody publishes here."""

    async def close(self) -> None:
        """End the thread; the doors close their connections."""
        if self._queue is not None:
            self._queue.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def abort(self) -> None:
        """Do nothing, since the doors close their connections."""

    def _compile(self) -> None:
        """Compile the matcher's kernels in a thread, while all but matching goes on.

        With few subscriptions, plain Python matches meanwhile; many would hold up the event loop.

        When the hub stops, the thread is not waited for: it takes too long.
        """
        self.begin_loading()
        loop = asyncio.get_running_loop()
        note = loop.call_later(
            COMPILING_SECONDS, logger.info, "compiling the matcher, once: matching waits for that"
        )

        def loaded(error: Exception | None) -> None:
            note.cancel()
            if error is not None:
                logger.error("the matcher's kernels cannot be compiled", exc_info=error)
            if not self._stopping:
                self._sort(self.loaded)

        def load() -> None:
            error: Exception | None = None
            try:
                warm()
            except Exception as failed:  # noqa: BLE001 -- whatever it is, the event loop must know
                error = failed
            with contextlib.suppress(RuntimeError):  # The hub has stopped meanwhile.
                loop.call_soon_threadsafe(loaded, error)

        threading.Thread(target=load, name="headrace-kernels", daemon=True).start()

    def _sort(self, begin: Callable[[], None]) -> None:
        """Sort out which subscriptions are matched here, one step in each turn of the event loop."""
        begin()
        self._sort_on()

    def _sort_on(self) -> None:
        if self.sorting:
            loop = asyncio.get_running_loop()
            if self.sort_step():
                loop.call_soon(self._sort_on)
            elif self._queue is not None:
                loop.call_soon(self._queue.go_on)

    def _look(self, client: bytes, first: int, last: int, then: Then) -> None:
        """Look through some of the log for a client, off the event loop."""

        def look() -> Found:
            batches = self._hub.log.read(first, last, REPLAY_BYTES)
            return [(batch, self.matching.rows(client, batch)) for batch in batches]

        def done(looking: asyncio.Future[Found]) -> None:
            if looking.cancelled():
                return
            error = looking.exception()
            if error is None:
                then(looking.result())
            elif isinstance(error, StorageError):
                then(error)
            else:
                # Whatever it is, the client must know that it is not fed any more.
                logger.error("the log could not be looked through for %s", client.hex(), exc_info=error)
                then(StorageError(f"the matcher failed ({type(error).__name__}: {error})"))

        share = self._readers.at(self._hub.log, first)
        asyncio.get_running_loop().run_in_executor(share, look).add_done_callback(done)
