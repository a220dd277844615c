"""Hubs whose disk and clock fail on purpose: one, or three nodes of a cluster.

with FaultyHub.start(tmp_path, "log.fsync=always") as hub:
    hub.machine.set(Order.WRITE_ERROR, errno.EIO)
    hub.lose_power(random)      # killed, with what a power failure leaves
    hub.restart()
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar

from tests.clusterprocess import Trio
from tests.conftest import SOAK
from tests.faults.machine import Machine, library
from tests.forking import Forked, forked
from tests.hubprocess import HubProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

_PULSE_SECONDS = 0.02


class FaultyHub(HubProcess):
    """A hub with a machine of its own."""

    def __init__(
        self, directory: Path, sets: tuple[str, ...], command: str, environ: Mapping[str, str]
    ) -> None:
        super().__init__(directory, sets, command, environ)
        self.machine = Machine(directory, self.data)

    def lose_power(self, random: Random) -> dict[str, bytes]:
        """Kill it and lose what was not synced; return the files as they are for sure."""
        self.kill9()
        return self.machine.cut_power(random)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it do nothing meanwhile, as a machine that hangs."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def starve(self, seconds: float, share: float) -> None:
        """Let it run for a share of the time only; call it from a thread."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with self.stopped():
                time.sleep(_PULSE_SECONDS * (1 - share))
            time.sleep(_PULSE_SECONDS * share)

    def _begun(self, arguments: list[str]) -> subprocess.Popen[bytes] | Forked:
        environ = {**self._environ, **self.machine.environ()}
        if not SOAK:
            return forked(
                arguments, cwd=self.directory, environ=environ, stderr=self.stderr_file, preload=library()
            )
        with self.stderr_file.open("ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace", *arguments],
                cwd=self.directory,
                env={**environ, "LD_PRELOAD": str(library())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )


class FaultyTrio(Trio):
    """Three nodes, each with a machine of its own."""

    process: ClassVar[type[HubProcess]] = FaultyHub

    @property
    def faulty(self) -> list[FaultyHub]:
        """The nodes, as what they are."""
        return [node for node in self.nodes if isinstance(node, FaultyHub)]
