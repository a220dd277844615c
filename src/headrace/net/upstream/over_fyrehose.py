"""An upstream hub over the backbone's own protocol: any backbone will do, not only one of ours.

This hub follows as a subscriber does (DELIVER, gaps repaired by REQUEST; over UDP it answers FORWARD from its journal)
and PUSHes what its own publishers send. The numbers are the upstream hub's. Everything else that an envelope has is not
in the protocol: messages are stamped when they arrive, from origin ``fyrehose``, and log entries come as the empty
messages that the backbone shows. The uuid of the upstream hub's log is not known either, so the copy has its own.

Numbers that the upstream hub cannot deliver any more are kept as empty log entries, ``lost/``, so that the sequence
stays whole.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from time import time_ns
from typing import Final
from uuid import uuid4

import numpy as np

from headrace.client.fyrehose.client import Backbone
from headrace.config import Address, Settings
from headrace.errors import LostRangeError, StorageError, UnreachableError, UsageError
from headrace.hub.publishing.push_relay import Pushing
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.log.snapshot import Snapshot
from headrace.log.start_after_snapshot import begin, is_log
from headrace.message import NOT_A_MESSAGE, Batch, Run
from headrace.net.upstream.frontend import Facts, wait_for_hub

logger = logging.getLogger("headrace")

MAX_WAITING: Final = 64 << 20
MAX_LOST: Final = 1 << 20
"""The longest range that is filled in; a hub that misses more had better begin anew."""
LOST: Final = "lost/"

_LONGEST: Final = {"fyrehose": 65_526, "fyrehose+udp": 65_504}
_START_SECONDS: Final = 10.0
"""How long a frontend without a log waits for the hub it is to be a copy of."""
_ATTEMPT_SECONDS: Final = 10.0
_FIRST_SECONDS: Final = 5.0
"""How long a new copy waits for the oldest message that the upstream hub still has."""
_GIVE_UP_SECONDS: Final = 2.0
_DISK_SECONDS: Final = 0.25
_POLL_SECONDS: Final = 0.02


class FyrehoseUpstream:
    """A hub that numbers this one's messages, spoken to as its subscriber and publisher."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = "the upstream hub was not reached yet"
        self._settings = settings
        self._urls = settings.node.upstream
        self._scheme = self._urls[0].partition("://")[0]
        self._hosts = [Address.parse(url.partition("://")[2]) for url in self._urls]
        self._hub: Hub
        self._pushing: Pushing
        self._client: Backbone | None = None
        self._due = asyncio.Event()
        self._lost: list[LostRangeError] = []
        self._failure: str | None = None

    async def open_log(self, directory: Path) -> Log:
        """Open this hub's log; where there is none, begin it before the oldest message that can be had."""
        options = self._settings.log
        if not is_log(directory):
            before = await wait_for_hub(self._before_oldest, _START_SECONDS)
            begin(directory, Snapshot(uuid4(), before, {}), sync=options.fsync != "never")
            logger.info("a new copy begins behind message %d, as a log of its own", before)
        return Log.open(directory, fsync=options.fsync, segment_bytes=options.segment_bytes)

    def attach(self, hub: Hub) -> None:
        """Become the hub's sequencer."""
        self._hub = hub
        self._pushing = Pushing(
            hub,
            longest=_LONGEST[self._scheme],
            patience=self._settings.node.upstream_seconds,
            most=MAX_WAITING,
            now=asyncio.get_running_loop().time(),
        )
        self._pushing.wake = self._due.set
        hub.sequencer = self._pushing

    async def run(self) -> None:
        """Follow, and push, for as long as the hub runs."""
        while self._client is None:
            client = self._make(self._hub.log.tail + 1)
            try:
                self._client = await client.open()
            except UnreachableError as error:
                self._lose(str(error))
        pushing = asyncio.ensure_future(self._push(self._client))
        try:
            await self._follow(self._client)
        except UsageError as error:
            self._failure = str(error)
            raise
        finally:
            pushing.cancel()

    def tick(self, now: float) -> None:
        """Judge deadlines, and look whether there is a connection."""
        if self._failure is not None:
            self._lose(self._failure)
        elif self._client is not None and self._client.connected:
            self.problem = None
            self._pushing.connected()
        else:
            self._lose(f"{','.join(self._urls)} does not answer")
        self._pushing.tick(now)

    async def flush(self) -> None:
        """Wait until all is pushed."""
        while self._pushing.size:  # noqa: ASYNC110 -- at the end of a hub's life, and bounded by its caller
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            await self._client.close()

    def facts(self) -> Facts:
        """What the status tells."""
        return {
            "url": ",".join(self._urls),
            "connected": self._client is not None and self._client.connected,
            "peer": None,
            # How far the upstream hub is, the protocol does not say.
            "head": self._hub.log.head,
            "lag": 0,
            "waiting_bytes": self._pushing.size,
            "problem": self.problem,
        }

    async def _follow(self, client: Backbone) -> None:
        batches = client.batches()
        while True:
            batch = await anext(batches, None)
            if batch is None:
                return
            for lost in self._lost:
                self._hub.counters.report("upstream_lost", lost.first, lost.last, lost.reason)
                if lost.last - lost.first >= MAX_LOST:
                    raise UsageError(f"{lost}: begin anew with an empty data directory")
                await self._append(
                    Batch(_empty(lost.last - lost.first + 1), lost.first, origin=NOT_A_MESSAGE, topic=LOST)
                )
            self._lost.clear()
            await self._append(Batch(batch.run, batch.first, origin="fyrehose"))

    async def _append(self, batch: Batch) -> None:
        log = self._hub.log
        if batch.first != log.tail + 1:
            raise UsageError(f"message {batch.first} came where {log.tail + 1} was to follow")
        while True:
            time = max(time_ns() // 1000, log.last_time)
            try:
                self._hub.follow([batch.numbered(batch.first, time, self._hub.node)])
            except StorageError as error:
                self._hub.counters.refuse("upstream", "storage", "", error)
                await asyncio.sleep(_DISK_SECONDS)
                continue
            return

    async def _push(self, client: Backbone) -> None:
        while True:
            self._due.clear()
            while (batch := self._pushing.first()) is not None:
                await client.push_many(batch.run)
                self._pushing.pushed(batch)
            await self._due.wait()

    def _make(self, from_seq: int, patience: float | None = None) -> Backbone:
        return Backbone(
            self._hosts,
            transport="udp" if self._scheme == "fyrehose+udp" else "tcp",
            from_seq=from_seq,
            timeout=_ATTEMPT_SECONDS,
            patience=patience,
            on_lost=self._lost.append,
        )

    async def _before_oldest(self) -> int:
        """The number before the oldest message that the upstream hub delivers; 0 if it seems to have none yet."""
        async with self._make(1, _GIVE_UP_SECONDS) as client:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_SECONDS):
                    async for batch in client.batches():
                        self._lost.clear()
                        return batch.first - 1
        self._lost.clear()
        return 0

    def _lose(self, why: str) -> None:
        if self.problem is None:
            logger.warning("the upstream hub is lost: %s", why)
        self.problem = f"the upstream hub is lost: {why}"
        self._pushing.lost(asyncio.get_running_loop().time())


def _empty(count: int) -> Run:
    return Run(np.zeros(0, np.uint8), np.zeros(count + 1, np.int32))
