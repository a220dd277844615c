"""What ``demo`` does: fork a hub and a Spark job, have the play run against them, end both.

Both children are forked before this process has a thread or an event loop. What they say goes into files of the
temporary directory, so that it does not disturb the picture; if one of them fails, its last line is what is told.
Whatever ends the demo (its end, Ctrl-C, SIGTERM, an error), both are stopped, then killed if they do not stop, and the
directory is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from headrace.cli.children import Child
from headrace.cli.exits import FAILED, WRONGLY_ASKED
from headrace.cli.options import gather
from headrace.cli.output import wants_json
from headrace.cli.stderr import LogFormat, LogLevel, speak
from headrace.config import Settings
from headrace.errors import UnreachableError

if TYPE_CHECKING:
    from headrace.demo.play import SparkEnd

_START_SECONDS: Final = 90.0
"""The first start on a machine compiles the kernels."""
_STOP_SECONDS: Final = 8.0
_SPARK_STOP_SECONDS: Final = 2.0
_POLL: Final = 0.05

JOB: Final = "fleet"
JOBS: Final = (JOB, "measure")
"""The demo's own job, and the one whose figures the dashboard's page Pipeline shows."""


def show(seconds: float, vehicles: int, *, spark: bool, keep: bool, as_json: bool) -> None:
    """Show it; ends in the exit code."""
    # Terminated is interrupted: everything is stopped.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with staged(JOBS if spark else ()) as stage:
        # Only now what is heavy: children were forked from a small process.
        from headrace.cli.demo_lines import Lines
        from headrace.cli.demo_view import Picture
        from headrace.demo.play import Play

        # Clients that meet with a hub that stops would say so in the middle of the picture.
        logging.getLogger("headrace").setLevel(logging.CRITICAL)
        play = Play(stage.doors, vehicles=vehicles, seconds=seconds, spark=stage.spark_end if spark else None)
        view = Lines(play, stage.data) if wants_json(asked=as_json) else Picture(play)
        with view:
            audit = asyncio.run(play.run(view.look))
        view.tell(audit)
        if keep:
            with contextlib.suppress(KeyboardInterrupt):
                # Whoever reads that it stays may stop it at once.
                view.keep()
                while stage.hub.ended() is None:
                    time.sleep(_POLL)
    if not audit.good:
        raise typer.Exit(FAILED)


class Stage:
    """The hub and the Spark job."""

    def __init__(self, directory: Path) -> None:
        self.hub = Child("hub")
        self.spark = Child("spark")
        self.doors: dict[str, str] = {}
        self.data = directory / "data"
        self._directory = directory
        self._ready = directory / "ready.json"
        self._ended: SparkEnd | None = None

    def raise_hub(self) -> None:
        """Start the hub, and wait until its doors are open."""
        settings = gather(None, self.data).override(
            # Payloads are JSON, and some protocols have no other place for what a message says.
            {"node.name": "demo", "matching.json_attributes": True},
            source="the demo",
        )
        self.hub.start(_run_hub, settings, self._ready, self._said("hub"))
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready.exists():
            if self.hub.ended() is not None or time.monotonic() > deadline:
                raise UnreachableError("the hub", f"it does not start: {self._last_word('hub')}")
            time.sleep(_POLL)
        told = msgspec.json.decode(self._ready.read_bytes(), type=dict[str, int | str])
        self.doors = {door: str(where) for door, where in told.items() if door != "pid"}

    def start_spark(self, jobs: Sequence[str]) -> None:
        """Start Spark jobs."""
        root = str(self._directory / "pipeline")
        self.spark.start(_run_jobs, jobs, self.doors["tube_tcp"], root, self._said("spark"))

    def spark_end(self) -> SparkEnd | None:
        """Why the Spark job has ended, if it has."""
        code = self.spark.ended()
        if code is not None:
            from headrace.demo.play import SparkEnd

            # What is not installed was asked for wrongly.
            self._ended = SparkEnd(self._last_word("spark"), missing=code == WRONGLY_ASKED)
        return self._ended

    def clear(self) -> None:
        """Stop both at once. Spark takes its time, and all it has is in our directory: so it is not waited for long."""
        children = ((self.spark, _SPARK_STOP_SECONDS), (self.hub, _STOP_SECONDS))
        for child, _ in children:
            child.tell(signal.SIGTERM)
        begun = time.monotonic()
        for child, seconds in children:
            if child.process is not None:
                child.process.join(max(begun + seconds - time.monotonic(), 0))
            child.kill()

    def _said(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _last_word(self, name: str) -> str:
        """The last line that a child has said of its own accord."""
        with contextlib.suppress(OSError):
            lines = self._said(name).read_text(errors="replace").split("\n")
            ours = [line.removeprefix("headrace: ") for line in lines if line.startswith("headrace: ")]
            said = ours or [line for line in lines if line.strip()]
            if said:
                return said[-1]
        return "it said nothing"


@contextlib.contextmanager
def staged(jobs: Sequence[str]) -> Iterator[Stage]:
    """A hub, and Spark with these jobs if there are any, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as directory:
        stage = Stage(Path(directory))
        try:
            stage.raise_hub()
            if jobs:
                stage.start_spark(jobs)
            yield stage
        finally:
            # It takes seconds at most, and a half-stopped demo is what nobody wants.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            stage.clear()


def _run_hub(settings: Settings, ready: Path, said: Path) -> None:
    from headrace.cli.exits import ending
    from headrace.cli.running import run

    _speak_into(said)
    with ending():
        run(settings, ready, take_free_ports=True, banner=False)


def _run_jobs(jobs: Sequence[str], servers: str, root: str, said: Path) -> None:
    from headrace.cli.exits import ending

    _speak_into(said)
    # Messages come first.
    os.nice(5)
    with ending():
        from headrace.cli.pipeline_run import stop_on_signals
        from headrace.spark.jobs.job import Job
        from headrace.spark.options import HubAccess
        from headrace.spark.runner import Pipeline, PipelineRequest

        job: Job = import_module("headrace.demo.job")
        asked = PipelineRequest(
            jobs,
            HubAccess(servers),
            master="local[1]",
            root=root,
            # One that fails does not take the others along; the audit names it.
            restart=True,
            ui=False,
            # Where it is removed with everything else, however Spark ends.
            conf={"spark.local.dir": f"{root}/scratch"},
            own={JOB: job},
        )
        pipeline = Pipeline(asked)
        stop_on_signals(pipeline)
        pipeline.run()


def _speak_into(said: Path) -> None:
    """Have whatever this process says, and those that it starts, go into a file."""
    sys.stdout.flush()
    with said.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    speak(LogFormat.TEXT, LogLevel.INFO)
