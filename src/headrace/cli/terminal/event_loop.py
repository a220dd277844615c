"""An event loop for a command, in which Ctrl-C at any moment ends the work and prints no trace.

Ctrl-C cancels the work between two callbacks of the loop. ``asyncio.run`` alone would do that within one, where the
handle that is about to be called may be the one that is cancelled: the loop then logs an exception in it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar, cast

R = TypeVar("R")


def run_until_done(make: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run the coroutine that ``make`` makes, in an event loop of its own.

    Ctrl-C waits while the loop is being made: half a loop cannot be closed, and says so when it is collected. A second
    Ctrl-C interrupts the work where it is, even if that is a write to a pipe that nobody reads.
    """
    if (
        not hasattr(signal, "pthread_sigmask")
        or signal.getsignal(signal.SIGINT) != signal.default_int_handler
    ):
        return asyncio.run(make())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    presses = 0

    async def work() -> R:
        loop, task = asyncio.get_running_loop(), cast("asyncio.Task[R]", asyncio.current_task())

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            nonlocal presses
            presses += 1
            if presses > 1:
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(task.cancel)

        runners = signal.signal(signal.SIGINT, interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            return await make()
        finally:
            signal.signal(signal.SIGINT, runners)

    try:
        return asyncio.run(work())
    except asyncio.CancelledError:
        if presses:
            raise KeyboardInterrupt from None
        raise
