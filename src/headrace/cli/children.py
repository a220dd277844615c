"""A process that a command forks and looks after.

Fork it before the command has a thread or anything heavy of its own. It gets a session of its own: Ctrl-C reaches the
command alone, which then stops its children in good order. A child whose parent is killed is told to stop by the
system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any, Final

from headrace.cli.exits import FAILED

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A child that has run for so long begins again with the first pause."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass(slots=True)
class Child:
    """Its process, if it runs, and when it may be started again."""

    name: str
    process: BaseProcess | None = None
    started: float = 0.0
    pause: float = FIRST_PAUSE
    not_before: float = 0.0
    given_up: bool = False
    was_up: bool = field(default=False)

    def start(self, target: Callable[..., None], *arguments: Any) -> None:
        """Fork it."""
        self.process = get_context("fork").Process(
            target=_apart, args=(target, *arguments), name=f"headrace-{self.name}"
        )
        self.process.start()
        self.started = monotonic()

    def ended(self) -> int | None:
        """The exit code, once, of a process that has ended."""
        if self.process is None or self.process.is_alive():
            return None
        code = self.process.exitcode
        self.process = None
        now = monotonic()
        if now - self.started > STEADY_SECONDS:
            self.pause = FIRST_PAUSE
        self.not_before, self.pause = now + self.pause, min(self.pause * 2, LONGEST_PAUSE)
        return FAILED if code is None else code

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        if self.process is not None:
            self.process.join()
        code = self.ended()
        return 0 if code is None else code

    def tell(self, number: int) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it and whatever it has started."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()


def _apart(target: Callable[..., None], *arguments: Any) -> None:
    """In a child: have a session of its own, and end as the watcher ends."""
    os.setsid()
    parent = os.getppid()
    # Only Linux can; elsewhere a child outlives a watcher that was killed.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(FAILED)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    target(*arguments)
