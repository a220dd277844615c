"""Run a hub and its pipeline as two processes, and keep both running.

This process does nothing but watch. It forks its children before it has a thread or anything heavy of its own, each
into a session of its own: Ctrl-C reaches the watcher alone, which then stops both in good order. A child whose watcher
is killed is told to stop by the system.

A hub that dies is started again with the doors it had, a pipeline with its checkpoints, each after a pause that doubles
from try to try. A hub that ends with 0 was told to stop by somebody, and so all stops. One that never came up, or a
pipeline that was asked for wrongly (no PySpark, no Java), is not tried again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
import typer

from headrace.cli.children import Child
from headrace.cli.exits import WRONGLY_ASKED
from headrace.config import Settings

logger = logging.getLogger("headrace")

PIPELINE_STOP_SECONDS: Final = 9.0
AHEAD_SECONDS: Final = 3.0
"""For how long the hub stays when both are stopped, so that micro-batches under way can end."""
_LOOK: Final = 0.1


def supervise(settings: Settings, ready_file: Path | None, *, banner: bool) -> None:
    """Run until told to stop; then stop both."""
    if settings.pipeline.params:
        # In a process of its own: it takes all of Spark's Python to know what jobs take.
        asked = Child("check")
        asked.start(_check_pipeline, settings)
        if code := asked.wait():
            raise typer.Exit(code)
    with tempfile.TemporaryDirectory(prefix="headrace-up-") as scratch:
        ready = ready_file or Path(scratch) / "ready.json"
        watcher = _Watcher(settings, ready, banner=banner)
        with _signals(watcher.stop):
            code = watcher.watch()
    raise typer.Exit(code)


class _Watcher:
    def __init__(self, settings: Settings, ready: Path, *, banner: bool) -> None:
        self._settings = settings
        self._ready = ready
        self._banner = banner
        self._stopping = False
        self._hub = Child("hub")
        self._pipeline = Child("pipeline")
        if not settings.pipeline.jobs or settings.listen.tube_tcp is None:
            if settings.pipeline.jobs:
                logger.warning("the pipeline needs the tube_tcp door, which is off: the hub runs without it")
            self._pipeline.given_up = True

    def stop(self) -> None:
        self._stopping = True

    def watch(self) -> int:
        """The exit code of it all."""
        try:
            while not self._stopping:
                if (code := self._look_at_hub()) is not None:
                    return code
                self._look_at_pipeline()
                running = [each.process.sentinel for each in (self._hub, self._pipeline) if each.process]
                connection.wait(running, _LOOK)
            return 0
        finally:
            self._end()

    def _look_at_hub(self) -> int | None:
        hub = self._hub
        code = hub.ended()
        if code is not None:
            if code == 0 or not hub.was_up:
                return code
            logger.error(
                "the hub ended with %s: it is started again in %.1f s", code, hub.not_before - monotonic()
            )
            hub.was_up = False
        if hub.process is None and monotonic() >= hub.not_before:
            hub.start(_run_hub, self._settings, self._ready, self._banner)
        if not hub.was_up and (doors := self._doors()):
            hub.was_up = True
            # Whoever knows where the doors are finds them there again.
            again = {f"listen.{door}": where for door, where in doors.items()}
            self._settings = self._settings.override(again, source="the doors' first places")
        return None

    def _look_at_pipeline(self) -> None:
        pipeline = self._pipeline
        code = pipeline.ended()
        if code == WRONGLY_ASKED or code == 0:
            logger.warning("the pipeline does not run; the hub goes on without it")
            pipeline.given_up = True
        elif code is not None:
            wait = pipeline.not_before - monotonic()
            logger.error("the pipeline ended with %s: it is started again in %.1f s", code, wait)
        due = pipeline.process is None and not pipeline.given_up and monotonic() >= pipeline.not_before
        if due and self._hub.was_up:
            pipeline.start(_run_pipeline, self._settings)

    def _doors(self) -> dict[str, str] | None:
        """Where the hub's doors are, once it says so itself."""
        try:
            told = msgspec.json.decode(self._ready.read_bytes(), type=dict[str, int | str])
        except (OSError, msgspec.DecodeError):
            return None
        if self._hub.process is None or told.pop("pid", None) != self._hub.process.pid:
            return None
        return {door: str(where) for door, where in told.items()}

    def _end(self) -> None:
        """Stop the pipeline, and then the hub, for which what is under way in Spark would wait."""
        children = (self._pipeline, self._hub)
        begun = monotonic()
        self._pipeline.tell(signal.SIGTERM)
        if self._pipeline.process is not None and self._hub.process is not None:
            connection.wait([self._pipeline.process.sentinel, self._hub.process.sentinel], AHEAD_SECONDS)
        self._hub.tell(signal.SIGTERM)
        limits = (PIPELINE_STOP_SECONDS, AHEAD_SECONDS + self._settings.limits.drain_seconds + 2.0)
        for child, seconds in zip(children, limits, strict=True):
            if child.process is not None:
                child.process.join(max(begun + seconds - monotonic(), 0))
                if child.process.is_alive():
                    logger.error("the %s does not stop: it is killed", child.name)
                child.kill()


def _check_pipeline(settings: Settings) -> None:
    from headrace.cli.exits import ending

    with ending():
        from headrace.cli.pipeline_run import check_params

        check_params(settings)


def _run_hub(settings: Settings, ready: Path, banner: bool) -> None:
    from headrace.cli.exits import ending
    from headrace.cli.running import run

    with ending():
        run(settings, ready, take_free_ports=True, banner=banner)


def _run_pipeline(settings: Settings) -> None:
    from headrace.cli.exits import ending

    # Messages come first.
    os.nice(5)
    with ending():
        from headrace.cli.pipeline_run import run_for_hub

        run_for_hub(settings)


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
