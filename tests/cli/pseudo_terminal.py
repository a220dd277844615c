"""A command on a terminal, as a person has it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from tests.conftest import SOAK
from tests.forking import Forked, forked

SECONDS = 60
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A running ``headrace`` whose stdin, stdout and stderr are one terminal; ended when the block is left."""

    def __init__(self, *arguments: object, columns: int = 200) -> None:
        self._ours, theirs = pty.openpty()
        self.process: subprocess.Popen[bytes] | Forked
        words = [str(argument) for argument in arguments]
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
        try:
            if SOAK:
                line = [sys.executable, "-m", "headrace", *words]
                self.process = subprocess.Popen(
                    line, stdin=theirs, stdout=theirs, stderr=theirs, process_group=0, env=environ
                )
            else:
                name = Path(os.ttyname(theirs))
                self.process = forked(
                    words, cwd=Path.cwd(), environ=environ, stdin=name, stdout=name, stderr=name, group=True
                )
        finally:
            os.close(theirs)
        self._raw = b""

    @property
    def raw(self) -> str:
        """All that was shown so far, styles included."""
        return self._raw.decode(errors="replace")

    @property
    def shown(self) -> str:
        """All that was shown so far, as text."""
        return _STYLE.sub("", self.raw).replace("\r\n", "\n")

    def write(self, keys: bytes) -> None:
        """Type."""
        os.write(self._ours, keys)

    def read_until(self, text: str) -> None:
        """Wait until this was shown."""
        deadline = time.monotonic() + SECONDS
        while text not in self.shown:
            if not self._read(deadline):
                pytest.fail(f"{text!r} was not shown, but:\n{self.shown}")

    def press_ctrl_c(self) -> None:
        """Interrupt the command and everything else in its process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt(self) -> None:
        """Ctrl-C, by a person who presses it again when nothing happens.

        A signal that comes in the moment before Python waits for input is noticed only after the input.
        """
        for _ in range(SECONDS):
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
                return

    def wait(self) -> int:
        """Wait for the command's end; return its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self, deadline: float) -> bool:
        """Read some; false when nothing more will come."""
        ready, _, _ = select.select([self._ours], [], [], max(0, deadline - time.monotonic()))
        if ready:
            # Linux ends a terminal that nobody holds any more with an error.
            with contextlib.suppress(OSError):
                chunk = os.read(self._ours, 4096)
                self._raw += chunk
                return bool(chunk)
        return False
