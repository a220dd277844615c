"""Large appends of a lone hub, in a thread.

A Spark query's batch may have gigabytes, which become visible in one append. Written on the event loop, it would hold
up every connection. So a thread writes it, and the hub is paused meanwhile: readers are served, publishers wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from headrace.errors import HeadraceError
from headrace.hub.sequence import Hub, WhenWritten
from headrace.message import Batch

LARGE: Final = 16 << 20
"""Payload bytes that the event loop writes in some ten milliseconds."""


class LargeAppends:
    """The write rule of a hub that is not part of a cluster."""

    def __init__(self, hub: Hub, disk: Executor) -> None:
        self._hub = hub
        self._disk = disk
        self._writing: asyncio.Future[None] | None = None

    def __call__(self, batches: Sequence[Batch], told: WhenWritten) -> bool:
        """Append batches at once if they are few bytes, else in a thread."""
        if sum(batch.run.size for batch in batches) < LARGE:
            self._hub.log.append(batches)
            return True
        self._hub.paused = True
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._disk, self._hub.log.append, batches)
        self._writing.add_done_callback(partial(self._written, told))
        return False

    async def finish(self) -> None:
        """Wait for the append that is under way, if any."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _written(self, told: WhenWritten, done: asyncio.Future[None]) -> None:
        self._writing = None
        error = done.exception()
        if error is not None and not isinstance(error, HeadraceError):
            raise error
        told(error)
        self._hub.resume()
