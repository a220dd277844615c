"""Compares repeats with the log in threads, since reading sealed rows takes milliseconds each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.errors import RefusedError
from headrace.hub.publishing.same_rows import Difference, Elsewhere, WhenCompared


def in_threads(readers: Executor) -> Elsewhere:
    """Return a function that runs comparisons in the threads that read the log."""

    def compare(work: Callable[[], Difference], done: WhenCompared) -> None:
        def ended(comparing: asyncio.Future[Difference]) -> None:
            if comparing.cancelled():
                return  # The hub is stopping.
            error = comparing.exception()
            if error is not None:
                # The waiting caller gets the error, and the event loop reports it.
                done(RefusedError("unknown", f"the log could not be searched for this: {error}"))
                raise error
            done(comparing.result())

        asyncio.get_running_loop().run_in_executor(readers, work).add_done_callback(ended)

    return compare
