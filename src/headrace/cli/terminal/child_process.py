"""A process that a command forks and looks after.

Fork it before the command has a thread or anything heavy of its own. A child gets a session of its own: Ctrl-C reaches
the command alone, which then stops its children in order. When the command is killed, the system stops its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from headrace.cli.hubs.ready_file import ReadyHub, read_ready_file
from headrace.cli.terminal.exits import FAILED
from headrace.platforms import end_with_parent

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
START_SECONDS: Final = 90.0
"""How long a hub may take to start: the first start on a machine compiles the kernels."""
_POLL_SECONDS: Final = 0.05
STEADY_SECONDS: Final = 60.0
"""A child that ran for this long is restarted after the first pause again."""


@dataclass(slots=True)
class ChildProcess:
    """A child, running or not, and when it may be started again."""

    name: str
    process: BaseProcess | None = None
    started: float = 0.0
    pause: float = FIRST_PAUSE
    not_before: float = 0.0
    given_up: bool = False
    was_up: bool = False

    def start(self, target: Callable[..., None], *arguments: Any) -> None:
        """Fork it."""
        self.process = get_context("fork").Process(
            target=_run_apart, args=(target, *arguments), name=f"headrace-{self.name}"
        )
        self.process.start()
        self.started = monotonic()

    def ended(self) -> int | None:
        """Return the exit code of a process that has ended, once."""
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
        """Wait for its end, and give its exit code."""
        if self.process is not None:
            self.process.join()
        code = self.ended()
        return 0 if code is None else code

    def wait_until_ready(self, ready_file: Path) -> ReadyHub | None:
        """Wait until this hub has written its ready file; ``None`` if it has ended, or takes too long."""
        deadline = monotonic() + START_SECONDS
        while (ready := read_ready_file(ready_file)) is None:
            if self.ended() is not None or monotonic() > deadline:
                return None
            sleep(_POLL_SECONDS)
        return ready

    def end_by(self, deadline: float) -> bool:
        """Wait for its end until a time, then kill it and what it has started; return whether it ended by itself."""
        if self.process is None:
            return True
        self.process.join(max(deadline - monotonic(), 0))
        ended = not self.process.is_alive()
        self.kill()
        return ended

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kill it and all that it has started."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()


def _run_apart(target: Callable[..., None], *arguments: Any) -> None:
    """Run in the child: in a session of its own, which ends when the parent does."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    target(*arguments)
