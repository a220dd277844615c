"""What a frontend's upstream hub refused for good, on its disk in ``DATA/outbox/aside/log``: listed, retried, dropped.

Threads append and read, one at a time. Once everything is dealt with, the files are removed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from headrace.errors import HeadraceError, RefusedError, StorageError
from headrace.hub.publishing.relaying.passed import column_texts
from headrace.hub.publishing.storing.kept_requests import KeptRequest
from headrace.hub.publishing.storing.set_aside import MAX_TOPICS, AsideRequest, Outcome, SetAside
from headrace.hub.sequencer import Published
from headrace.log import Log
from headrace.log.snapshots.start_after import is_log
from headrace.message import Batch

logger = logging.getLogger("headrace")

AGAIN_SECONDS: Final = 1.0
"""Seconds until the disk is asked again for what it refused."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class AsideDisk:
    """What was set aside of one outbox."""

    def __init__(
        self,
        directory: Path,
        outbox: UUID,
        *,
        open_log: Callable[[Path], Log],
        in_thread: InThread,
        now: Callable[[], int],
        publish: Callable[[Sequence[Batch], Callable[[Published | HeadraceError], None]], None],
    ) -> None:
        """``publish`` passes rows on to the hub that numbers messages, the last of them their mark."""
        self.problem: str | None = None
        """Why nothing can be set aside, if so."""
        self._directory = directory
        self._outbox = outbox
        self._open_log = open_log
        self._in_thread = in_thread
        self._now = now
        self._publish = publish
        self._one_at_a_time = asyncio.Lock()
        log = directory / "log"
        self._aside = SetAside(open_log(log), outbox) if is_log(log) else None

    @property
    def requests(self) -> list[AsideRequest]:
        """Those that nobody has dealt with, oldest first."""
        return [] if self._aside is None else self._aside.requests

    @property
    def messages(self) -> int:
        """How many messages they have."""
        return 0 if self._aside is None else self._aside.messages

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return 0 if self._aside is None else self._aside.size

    async def put(self, request: KeptRequest, error: HeadraceError) -> None:
        """Set a request aside; it tries until the disk takes it."""
        async with self._one_at_a_time:
            while True:
                try:
                    if self._aside is None:
                        opened = await self._in_thread(partial(self._open_log, self._directory / "log"))
                        self._aside = SetAside(opened, self._outbox)
                    await self._in_thread(partial(self._aside.put, request, error, self._now()))
                    break
                except StorageError as problem:
                    self.problem = f"what the upstream hub refused cannot be set aside: {problem}"
                    logger.error("%s", self.problem)
                    await asyncio.sleep(AGAIN_SECONDS)
        self.problem = None
        topics = sorted({topic for batch in request.rows for topic in column_texts(batch, "topic")})
        logger.error(
            "the upstream hub refused %d messages that were kept here, of publisher %s from number %d on, on %s: %s;"
            " they are set aside: headrace log aside list",
            request.terms.messages,
            request.publisher,
            request.number,
            ", ".join(topics[:MAX_TOPICS]) or "no topic",
            error,
        )

    async def retry(self, name: str) -> Published:
        """Publish a request again, as new messages; return their place. If that is refused, it stays here."""
        async with self._one_at_a_time:
            rows = await self._in_thread(partial(self._present().rows, name))
        answered: asyncio.Future[Published | HeadraceError] = asyncio.get_running_loop().create_future()
        self._publish(rows, lambda result: None if answered.done() else answered.set_result(result))
        result = await answered
        if isinstance(result, HeadraceError):
            raise result
        await self._finish(name, "retried")
        return result

    async def drop(self, name: str) -> None:
        """Forget a request: nobody wants its messages any more."""
        await self._finish(name, "dropped")

    def close(self) -> None:
        """Close the files."""
        if self._aside is not None:
            self._aside.log.close()

    def _present(self) -> SetAside:
        if self._aside is None:
            raise RefusedError("missing", "nothing is set aside here")
        return self._aside

    async def _finish(self, name: str, outcome: Outcome) -> None:
        async with self._one_at_a_time:
            aside = self._present()
            await self._in_thread(partial(aside.finish, name, outcome, self._now()))
            if not aside.requests:
                self._aside = None
                await self._in_thread(partial(_remove, aside.log, self._directory))
        logger.warning("the request %s, which the upstream hub had refused, is %s", name, outcome)


def _remove(log: Log, directory: Path) -> None:
    log.close()
    shutil.rmtree(directory)
