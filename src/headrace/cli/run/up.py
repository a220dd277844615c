"""``up``: run a hub and its pipeline as two processes, and keep both running.

This process only watches its children (:mod:`~headrace.cli.terminal.child_process`). Ctrl-C reaches it alone, and it
stops both in order.

A hub that dies is restarted with the doors it had, a pipeline with its checkpoints, each after a pause that doubles
from try to try. A hub that ends with 0 was stopped by somebody, and so everything stops. A hub that never came up, or a
pipeline that cannot run here (no PySpark, no Java), is not restarted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Final

import typer

from headrace.cli.hubs.first_key import with_first_key
from headrace.cli.operate.pipeline.run import Params, parse_params
from headrace.cli.run.serve import Format, Insecure, Level, ReadyFile
from headrace.cli.terminal.exits import USAGE_ERROR, exit_with_code
from headrace.cli.terminal.options import Config, Data, Sets, load_settings
from headrace.cli.terminal.stderr import LogFormat, LogLevel, log_to_stderr
from headrace.config import Settings

logger = logging.getLogger("headrace")

EXAMPLES: Final = (
    ("Up, with the log in ./headrace-data:", "headrace up"),
    ("A second one beside the first:", "headrace up --data ./other"),
    ("Another choice of jobs:", "headrace up --set pipeline.jobs=archive"),
    ("Archive elsewhere, every ten seconds:", "headrace up -p archive.path=/srv/a -p archive.interval=10"),
)

PIPELINE_STOP_SECONDS: Final = 9.0
AHEAD_SECONDS: Final = 3.0
"""How long the hub stays when both are stopped, so that micro-batches under way can end."""
_POLL_SECONDS: Final = 0.1


def up(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    params: Params = None,
    insecure: Insecure = False,
    ready_file: ReadyFile = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run everything on this machine: the hub, its http door, and the Spark pipeline (archive, verify, measure).

    Hub and pipeline have a process each. A process that dies is restarted, and so is a job that fails, by itself.

    up is made for trying things out, and never fails because a port is taken: that door takes a free port, and up says
    which. Without PySpark or Java the hub runs alone, and up says so. SIGTERM and Ctrl-C stop both in order.
    """
    import tempfile

    from headrace.cli.terminal.child_process import ChildProcess

    given = {f"pipeline.params.{name}": value for name, value in parse_params(params or ()).items()}
    log_to_stderr(log_format, log_level)
    settings = load_settings(config, data, sets).override(given, source="--param")
    if insecure:
        settings = settings.override({"auth.insecure": True}, source="--insecure")
    settings = with_first_key(settings)
    if settings.pipeline.params:
        # In a process of its own: it takes all of Spark's Python to know the jobs' parameters.
        check = ChildProcess("check")
        check.start(_check_params, settings)
        if code := check.wait():
            raise typer.Exit(code)
    with tempfile.TemporaryDirectory(prefix="headrace-up-") as scratch:
        ready = ready_file or Path(scratch) / "ready.json"
        watcher = _Watcher(settings, ready, banner=log_format is LogFormat.TEXT)
        with _on_signals(watcher.stop):
            code = watcher.watch()
    raise typer.Exit(code)


class _Watcher:
    def __init__(self, settings: Settings, ready: Path, *, banner: bool) -> None:
        from headrace.cli.terminal.child_process import ChildProcess

        self._settings = settings
        self._ready = ready
        self._banner = banner
        self._stopping = False
        self._hub = ChildProcess("hub")
        self._pipeline = ChildProcess("pipeline")
        if not settings.pipeline.jobs or settings.listen.tube_tcp is None:
            if settings.pipeline.jobs:
                logger.warning("the pipeline needs the tube_tcp door, which is off: the hub runs without it")
            self._pipeline.given_up = True

    def stop(self) -> None:
        self._stopping = True

    def watch(self) -> int:
        """Keep both running until stopped; return the exit code."""
        from multiprocessing import connection

        try:
            while not self._stopping:
                if (code := self._check_hub()) is not None:
                    return code
                self._check_pipeline()
                running = [each.process.sentinel for each in (self._hub, self._pipeline) if each.process]
                connection.wait(running, _POLL_SECONDS)
            return 0
        finally:
            self._end()

    def _check_hub(self) -> int | None:
        hub = self._hub
        code = hub.ended()
        if code is not None:
            if code == 0 or not hub.was_up:
                return code
            logger.error(
                "the hub ended with %s: it is restarted in %.1f s", code, hub.not_before - monotonic()
            )
            hub.was_up = False
        if hub.process is None and monotonic() >= hub.not_before:
            hub.start(_run_hub, self._settings, self._ready, self._banner)
        if not hub.was_up and (doors := self._doors()):
            hub.was_up = True
            # After a restart, clients find the doors where they were.
            again = {f"listen.{door}": where for door, where in doors.items()}
            self._settings = self._settings.override(again, source="the doors' first places")
        return None

    def _check_pipeline(self) -> None:
        pipeline = self._pipeline
        code = pipeline.ended()
        if code in (0, USAGE_ERROR):
            logger.warning("the pipeline is not running; the hub continues without it")
            pipeline.given_up = True
        elif code is not None:
            wait = pipeline.not_before - monotonic()
            logger.error("the pipeline ended with %s: it is restarted in %.1f s", code, wait)
        due = pipeline.process is None and not pipeline.given_up and monotonic() >= pipeline.not_before
        if due and self._hub.was_up:
            pipeline.start(_run_pipeline, self._settings)

    def _doors(self) -> dict[str, str] | None:
        """Return the addresses of the hub's doors, once its ready file names them."""
        from headrace.cli.hubs.ready_file import read_ready_file

        ready, process = read_ready_file(self._ready), self._hub.process
        return ready.doors if ready is not None and process is not None and ready.pid == process.pid else None

    def _end(self) -> None:
        """Stop the pipeline, and then the hub, for which Spark's tasks under way would wait."""
        from multiprocessing import connection

        children = (self._pipeline, self._hub)
        begun = monotonic()
        self._pipeline.signal(signal.SIGTERM)
        if self._pipeline.process is not None and self._hub.process is not None:
            connection.wait([self._pipeline.process.sentinel, self._hub.process.sentinel], AHEAD_SECONDS)
        self._hub.signal(signal.SIGTERM)
        limits = (PIPELINE_STOP_SECONDS, AHEAD_SECONDS + self._settings.limits.drain_seconds + 2.0)
        for child, seconds in zip(children, limits, strict=True):
            if not child.end_by(begun + seconds):
                logger.error("the %s did not stop: it was killed", child.name)


def _check_params(settings: Settings) -> None:
    with exit_with_code():
        from headrace.cli.operate.pipeline.run import check_params

        check_params(settings)


def _run_hub(settings: Settings, ready: Path, banner: bool) -> None:
    from headrace.cli.run.serve import run_hub

    with exit_with_code():
        run_hub(settings, ready, take_free_ports=True, banner=banner)


def _run_pipeline(settings: Settings) -> None:
    # Messages come first.
    os.nice(5)
    with exit_with_code():
        from headrace.cli.operate.pipeline.run import run_for_hub

        run_for_hub(settings)


@contextlib.contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
