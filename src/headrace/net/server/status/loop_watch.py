"""Watches the event loop: a turn that takes long is counted, and its cause is named in the log.

While a turn runs, nobody else is served. So the loop gives a sign of life every :data:`BEAT_SECONDS`, and a thread
checks it. If the sign is :data:`SLOW_SECONDS` late, the thread notes the stack of the loop's thread at that moment.
When the turn is over, the loop reports how long it took and what the thread saw.

A turn can also be long because the machine runs something else. The report says for how much of the time the loop
computed, and blames the machine if the loop had not called anything.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import PurePath
from time import monotonic, thread_time, time
from types import FrameType
from typing import Final

from headrace.hub.counters import Counters

logger = logging.getLogger("headrace")

SLOW_SECONDS: Final = 0.1
"""A turn longer than this is reported."""

BEAT_SECONDS: Final = 0.05
"""Seconds between signs of life, and between checks of them."""

LATELY: Final = 60.0
"""Seconds for which a slow turn is an alert."""

_FRAMES: Final = 6
"""Frames of the stack that are named, the innermost first."""

_UNSEEN: Final = "something that was over before it was seen"
_ELSEWHERE: Final = "the machine was busy with something else"


class LoopWatch:
    """Watches the running event loop of the thread that makes it, from :meth:`start` to :meth:`stop`."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._turns = counters.counter("slow_turns")
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._over = threading.Event()
        self._beat_at = monotonic()
        self._computed = thread_time()
        self._cause = ""
        """The functions in which the loop was when its sign was late, once that has been seen."""
        self._timer: asyncio.TimerHandle | None = None
        self._longest = 0.0
        self._last: dict[str, object] = {}
        self._last_at = -LATELY
        self.meanwhile: Callable[[Callable[[], float]], None] | None = None
        """Called in the watching thread at each check, with a function that returns for how long the loop is held."""

    def start(self) -> None:
        """Begin to watch."""
        self._beat_at, self._computed = monotonic(), thread_time()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        threading.Thread(target=self._look, name="headrace-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def facts(self) -> dict[str, object]:
        """Return facts for the status: the number of slow turns, the longest, and the last."""
        return {
            "slow_turns": self._turns.value,
            "longest_seconds": round(self._longest, 3),
            "slow_lately": monotonic() - self._last_at < LATELY,
            "last": self._last,
        }

    def _beat(self) -> None:
        now, computed = monotonic(), thread_time()
        late = now - self._beat_at - BEAT_SECONDS
        if late > SLOW_SECONDS:
            self._report(late, computed - self._computed)
        self._beat_at, self._computed, self._cause = now, computed, ""
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _report(self, seconds: float, computed: float) -> None:
        cause = self._cause or _UNSEEN
        self._longest = max(self._longest, seconds)
        level = logging.INFO
        if computed > SLOW_SECONDS:
            # A machine that is busy with something else is not the hub's fault.
            level, self._last_at = logging.WARNING, monotonic()
        self._last = {
            "seconds": round(seconds, 3),
            "computed": round(computed, 3),
            "time": round(time(), 3),
            "cause": cause,
        }
        if self._counters.failed("slow_turns"):
            logger.log(
                level,
                "nobody was served for %.0f ms, of which the event loop computed for %.0f: %s",
                seconds * 1e3,
                computed * 1e3,
                cause,
            )

    def _look(self) -> None:
        """Check for late signs; runs in a thread of its own."""
        while not self._over.wait(BEAT_SECONDS):
            if self.meanwhile is not None:
                self.meanwhile(self._held)
            if self._cause or self._held() < SLOW_SECONDS:
                continue
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                self._cause = told(frame) or _ELSEWHERE

    def _held(self) -> float:
        """Return for how many seconds the loop's next sign of life is overdue."""
        return 0.0 if self._over.is_set() else monotonic() - self._beat_at - BEAT_SECONDS


def told(frame: FrameType | None) -> str:
    """Name the functions of a stack that the event loop has called, the innermost first.

    >>> told(sys._getframe()).split(":")[0]
    '<module>'
    """
    names: list[str] = []
    while frame is not None and frame.f_code.co_filename != asyncio.runners.__file__ and len(names) < _FRAMES:
        code = frame.f_code
        place = "/".join(PurePath(code.co_filename).parts[-2:])
        names.append(f"{code.co_name}:{frame.f_lineno} ({place})")
        frame = frame.f_back
    return " < ".join(names)
