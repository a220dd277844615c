"""Repeats are compared with the log in a thread: to read sealed rows takes milliseconds, and a flood of them many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.errors import RefusedError
from headrace.hub.publishing.same_rows import Difference, Elsewhere, WhenCompared


def in_threads(readers: Executor) -> Elsewhere:
    """Run comparisons in the threads that read the log."""

    def compare(work: Callable[[], Difference], done: WhenCompared) -> None:
        def ended(comparing: asyncio.Future[Difference]) -> None:
            if comparing.cancelled():
                return  # The hub is stopping.
            error = comparing.exception()
            if error is not None:
                # The waiting caller gets the error, and the event loop reports it.
                done(RefusedError("unknown", f"whether this is in the log could not be found out: {error}"))
                raise error
            done(comparing.result())

        asyncio.get_running_loop().run_in_executor(readers, work).add_done_callback(ended)

    return compare
