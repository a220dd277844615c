"""A hub in a process of its own, on free ports, that tests kill and restart.

    with HubProcess.start(tmp_path, "log.fsync=always") as hub:
        host, port = hub.address("fyrehose")
        hub.kill9()
        hub.restart()  # the same ports, the same data
        hub.terminate()

A hub is forked from a process that has everything imported (:mod:`tests.forking`). With the command ``up``, with extra
environment variables, and with ``HEADRACE_SOAK=1`` it is started as users start it.

Starting waits for the ready file, with a deadline. A hub that does not start, exits by itself, or does not drain in
time fails the test and shows its stderr. Leaving the ``with`` block kills the process, so that nothing outlives a test.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import pytest
from tests.forking import Forked, forked
from tests.ports import lasting_port

from headrace.config import DOORS

FREE_DOORS = tuple(f"listen.{door}=127.0.0.1:0" for door in DOORS)
"""Settings that give each door a free port."""

_SOAK = os.environ.get("HEADRACE_SOAK", "0") not in ("", "0")

START_SECONDS = 60.0
"""Long enough for a cold machine that has to compile the kernels first."""

STOP_SECONDS = 20.0
"""A hub drains within 10 s; the rest is for a busy machine."""

_POLL_SECONDS = 0.01


class HubProcess:
    """One hub, and where its doors are; make one with :meth:`start`."""

    def __init__(
        self, directory: Path, sets: tuple[str, ...], command: str, environ: Mapping[str, str]
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.ready_file = directory / "ready.json"
        self.stderr_file = directory / "stderr.txt"
        self.doors: dict[str, str] = {}
        """Each open door's ``host:port`` by its name, as the ready file has them."""
        self.options: tuple[str, ...] = ()
        self.soft_limits: dict[int, int] = {}
        self._command = command
        self._sets = sets
        self._environ = {**os.environ, **environ}
        # Some variables are read only when a process starts, which a fork does not do.
        self._forked = command == "serve" and not environ and not _SOAK
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @classmethod
    def start(
        cls,
        tmp_path: Path,
        *sets: str,
        command: str = "serve",
        options: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        soft_limits: Mapping[int, int] | None = None,
    ) -> Self:
        """Start a hub with its data under ``tmp_path`` and wait until every door accepts.

        ``sets`` are ``section.key=value`` and win over the free ports chosen here. ``options`` are passed to the
        command unchanged. ``soft_limits`` are the system's limits for the hub alone, not for the test.
        """
        tmp_path.mkdir(parents=True, exist_ok=True)
        doors = (f"listen.{door}=127.0.0.1:{lasting_port()}" for door in DOORS)
        hub = cls(tmp_path, (*doors, *sets), command, environ or {})
        hub.options = options
        hub.soft_limits = dict(soft_limits or {})
        hub._run()
        return hub

    def restart(self, *sets: str) -> None:
        """Start again after :meth:`kill9` or :meth:`terminate`, with the same data and, unless ``sets`` change them,
        the same ports."""
        if self.running:
            pytest.fail("restart() needs a hub that was stopped: call kill9() or terminate() first")
        same = tuple(f"listen.{door}={address}" for door, address in self.doors.items())
        self._sets = (*self._sets, *same, *sets)
        self._run()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def stderr(self) -> str:
        """What the hub has written to stderr so far, in all its lives."""
        return self.stderr_file.read_text(errors="replace") if self.stderr_file.exists() else ""

    def address(self, door: str) -> tuple[str, int]:
        """Where a door listens, as ``socket.connect`` takes it."""
        if door not in self.doors:
            self._fail(f"the hub has no door {door!r}, only {sorted(self.doors)}")
        host, _, port = self.doors[door].rpartition(":")
        return host.strip("[]"), int(port)

    def url(self, door: str) -> str:
        """A door's address as clients take it, e.g. ``fyrehose://127.0.0.1:40123``."""
        self.address(door)
        return f"{door}://{self.doors[door]}"

    def kill9(self) -> None:
        """Kill the process as a crash would, without a chance to clean up."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def terminate(self, *, signum: int = signal.SIGTERM, expect: int = 0) -> None:
        """Stop the hub by a signal; fail unless it drains in time and exits with ``expect``."""
        process = self._running()
        process.send_signal(signum)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._end()
            self._fail(f"the hub did not stop within {STOP_SECONDS:g} s of signal {signum}")
        self._process = None
        if code != expect:
            self._fail(f"the hub exited with {code} where {expect} was expected")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = None if self._process is None else self._process.poll()
        self._end()
        if code is not None and error is None:
            self._fail(f"the hub ended by itself with {code}")
        if error is not None:
            error.add_note(f"The hub's stderr:\n{self.stderr}")

    def _run(self) -> None:
        # The file of an earlier process must not be taken for the new one's.
        self.ready_file.unlink(missing_ok=True)
        arguments = ["--data", str(self.data), "--ready-file", str(self.ready_file), *self.options]
        for setting in self._sets:
            arguments += ["--set", setting]
        self._process = self._begun([self._command, *arguments])
        try:
            ready = self._wait_ready(self._process)
        except BaseException:
            self._end()
            raise
        self.doors = {door: address for door, address in ready.items() if door != "pid"}

    def _begun(self, arguments: list[str]) -> subprocess.Popen[bytes] | Forked:
        if self._forked:
            return forked(
                arguments,
                cwd=self.directory,
                environ=self._environ,
                stderr=self.stderr_file,
                soft_limits=self.soft_limits,
            )
        with self.stderr_file.open("ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace", *arguments],
                cwd=self.directory,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                preexec_fn=self._limit_itself if self.soft_limits else None,
            )

    def _limit_itself(self) -> None:
        for kind, soft in self.soft_limits.items():
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))

    def _wait_ready(self, process: subprocess.Popen[bytes] | Forked) -> dict[str, str]:
        deadline = time.monotonic() + START_SECONDS
        while not self.ready_file.exists():
            code = process.poll()
            if code is not None:
                self._fail(f"the hub did not start: it exited with {code}")
            if time.monotonic() > deadline:
                self._fail(f"the hub was not ready within {START_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        ready: dict[str, str] = json.loads(self.ready_file.read_bytes())
        return ready

    def _running(self) -> subprocess.Popen[bytes] | Forked:
        if self._process is None:
            pytest.fail("the hub is not running: kill9() or terminate() ended it")
        code = self._process.poll()
        if code is not None:
            self._process = None
            self._fail(f"the hub ended by itself with {code}")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _fail(self, what: str) -> NoReturn:
        pytest.fail(f"{what}\nIts stderr:\n{self.stderr or '(nothing)'}", pytrace=False)
