"""An upstream hub over the backbone's own protocol: any backbone will do, not only one of ours.

This hub follows as a subscriber (DELIVER, gaps repaired by REQUEST; over UDP it answers FORWARD) and PUSHes what its
own publishers send. The numbers are the upstream hub's. The protocol carries nothing else of the envelope: messages are
stamped when they arrive, with origin ``fyrehose``, and log entries do not come at all. The uuid of the upstream hub's
log is unknown, so the copy has its own.

Numbers that the upstream hub can no longer deliver become empty messages with the topic ``lost/``: the sequence stays
whole.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from random import Random
from time import time_ns
from typing import Final
from uuid import uuid4

import numpy as np

from headrace.client.fyrehose.client import FyrehoseClient
from headrace.client.reconnect import DialPlan, redial
from headrace.config import Address, Settings
from headrace.errors import LostRangeError, StorageError, UsageError
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.relaying.pushes import PushRelay
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import begin, is_log
from headrace.message import Batch, Run
from headrace.net.server.accepting.tls import HubTls
from headrace.net.server.machine.log_disk import LogDisk
from headrace.net.upstream.frontend import START_SECONDS, UpstreamStatus, first_contact

logger = logging.getLogger("headrace")

MAX_WAITING: Final = 64 << 20
MAX_LOST: Final = 1 << 20
"""The longest range that is filled in; a hub that lacks more has to start over."""
LOST: Final = "lost/"

_LONGEST: Final = {"fyrehose": 65_526, "fyrehose+tls": 65_526, "fyrehose+udp": 65_504}
_ATTEMPT_SECONDS: Final = 10.0
_FIRST_SECONDS: Final = 5.0
"""Seconds that a new copy waits for the oldest message that the upstream hub still has."""
_GIVE_UP_SECONDS: Final = 2.0
_DISK_SECONDS: Final = 0.25
_POLL_SECONDS: Final = 0.02


class FyrehoseUpstream:
    """The upstream hub, of which this one is a subscriber and a publisher."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = "the upstream hub was not reached yet"
        self._settings = settings
        self._urls = settings.node.upstream
        self._scheme = self._urls[0].partition("://")[0]
        self._tls = HubTls(settings).dials_url(self._urls[0])
        self._hosts = [Address.parse(url.partition("://")[2]) for url in self._urls]
        self._hub: Hub
        self._disk: LogDisk
        self._pushing: PushRelay
        # The client itself tries all the hosts, so the plan has only one.
        self._plan = DialPlan(
            self._hosts[:1],
            Random(),
            attempt=2 * _ATTEMPT_SECONDS,
            on_failure=lambda error: self._lose(str(error)),
        )
        self._client: FyrehoseClient | None = None
        self._due = asyncio.Event()
        self._lost: list[LostRangeError] = []
        self._failure: str | None = None

    async def open_log(self, directory: Path) -> Log:
        """Open this hub's log; if there is none, begin one with the oldest message that the upstream hub has."""
        options = self._settings.log
        if not is_log(directory):
            plan = DialPlan(self._hosts[:1], Random(), attempt=2 * _ATTEMPT_SECONDS)
            before = await first_contact(plan, self._before_oldest, START_SECONDS)
            begin(directory, Snapshot(uuid4(), before, before, {}), sync=options.fsync != "never")
            logger.info("a new copy begins after message %d, as a log of its own", before)
        return Log.open(directory, fsync=options.fsync, segment_bytes=options.segment_bytes)

    def attach(self, hub: Hub, disk: LogDisk, publishers: PublisherNumbers) -> None:  # noqa: ARG002 -- it knows none
        """Become the hub's sequencer."""
        self._hub, self._disk = hub, disk
        self._pushing = PushRelay(
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
        self._client = await redial(self._plan, lambda _first: self._make(self._hub.log.tail + 1).open())
        pushing = asyncio.ensure_future(self._push(self._client))
        try:
            await self._follow(self._client)
        except UsageError as error:
            self._failure = str(error)
            raise
        finally:
            pushing.cancel()

    def tick(self, now: float) -> None:
        """Enforce deadlines, and check the connection."""
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

    def facts(self) -> UpstreamStatus:
        """Describe the upstream hub for the status."""
        return {
            "url": ",".join(self._urls),
            "connected": self._client is not None and self._client.connected,
            "peer": None,
            # The protocol does not tell the upstream hub's head.
            "head": self._hub.log.head,
            "lag": 0,
            "waiting_bytes": self._pushing.size,
            "problem": self.problem,
            "away_since": None,
            "outbox": None,
        }

    @property
    def refusing(self) -> str | None:
        """Why publishers are refused, if they are."""
        return self.problem

    @property
    def aside(self) -> None:
        """Nothing is kept for an upstream hub that recognises no repeats."""

    async def _follow(self, client: FyrehoseClient) -> None:
        batches = client.batches()
        while True:
            batch = await anext(batches, None)
            if batch is None:
                return
            for lost in self._lost:
                self._hub.counters.report("upstream_lost", lost.first, lost.last, lost.reason)
                if lost.last - lost.first >= MAX_LOST:
                    raise UsageError(f"{lost}: begin anew with an empty data directory")
                empty = Run(np.zeros(0, np.uint8), np.zeros(lost.last - lost.first + 2, np.int32))
                await self._append(Batch(empty, lost.first, origin="fyrehose", topic=LOST))
            self._lost.clear()
            await self._append(Batch(batch.run, batch.first, origin="fyrehose"))

    async def _append(self, batch: Batch) -> None:
        log = self._hub.log
        if batch.first != log.tail + 1:
            raise UsageError(f"expected message {log.tail + 1}, got {batch.first}")
        while True:
            time = max(time_ns() // 1000, log.last_time)
            numbered = [batch.numbered(log.tail_op + 1, batch.first, time, self._hub.node)]
            try:
                await self._disk.appended(numbered)
            except StorageError as error:
                self._hub.counters.refuse("upstream", "storage", "", error)
                await asyncio.sleep(_DISK_SECONDS)
                continue
            self._hub.followed(numbered)
            return

    async def _push(self, client: FyrehoseClient) -> None:
        while True:
            self._due.clear()
            while (batch := self._pushing.first()) is not None:
                await client.publish(batch.run)
                self._pushing.pushed(batch)
            await self._due.wait()

    def _make(self, from_seq: int, repair_timeout: float | None = None) -> FyrehoseClient:
        return FyrehoseClient(
            self._hosts,
            transport="udp" if self._scheme == "fyrehose+udp" else "tcp",
            from_seq=from_seq,
            timeout=_ATTEMPT_SECONDS,
            repair_timeout=repair_timeout,
            on_lost=self._lost.append,
            translated=self._settings.node.upstream_translated,
            tls=self._tls,
        )

    async def _before_oldest(self, _first: Address) -> int:
        """Find the number before the oldest message that the upstream hub delivers; 0 if it seems to have none yet."""
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
