"""An event loop for a command, in which Ctrl-C at any moment ends the work and prints no trace."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run_until_done(make: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run the coroutine that ``make`` makes, in an event loop of its own.

    Ctrl-C waits while the loop is being made: half a loop cannot be closed, and says so when it is collected.
    """
    if not hasattr(signal, "pthread_sigmask"):
        return asyncio.run(make())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    async def work() -> R:
        # From here on the loop turns it into a cancellation.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return await make()

    return asyncio.run(work())
