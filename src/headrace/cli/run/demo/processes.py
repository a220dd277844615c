"""The demo's processes: a hub and a Spark job.

Both are forked before this process has a thread or an event loop. Their output goes into files of the temporary
directory, so that it does not disturb the picture; if one of them fails, the last line of its file is shown. However
the demo ends (by itself, Ctrl-C, SIGTERM, an error), both are stopped, then killed if they do not stop, and the
directory is removed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cli.terminal.child_process import ChildProcess
from headrace.cli.terminal.exits import USAGE_ERROR, exit_with_code
from headrace.cli.terminal.options import load_settings
from headrace.cli.terminal.stderr import LogFormat, LogLevel, log_to_stderr
from headrace.config import Settings
from headrace.errors import UnreachableError

if TYPE_CHECKING:
    from headrace.demo.play import SparkEnd

_STOP_SECONDS: Final = 8.0
_SPARK_STOP_SECONDS: Final = 2.0

JOB: Final = "fleet"
JOBS: Final = (JOB, "measure")
"""The demo's own job, and the one whose figures the dashboard shows on its page Pipeline."""


class DemoProcesses:
    """The hub and the Spark job."""

    def __init__(self, directory: Path) -> None:
        self.hub = ChildProcess("hub")
        self.spark = ChildProcess("spark")
        self.doors: dict[str, str] = {}
        self.data = directory / "data"
        self._directory = directory
        self._ready = directory / "ready.json"
        self._ended: SparkEnd | None = None

    def start_hub(self) -> None:
        """Start the hub, and wait until its doors are open."""
        settings = load_settings(None, self.data).override(
            # Some protocols carry no attributes, so those are taken from the JSON payloads.
            {"node.name": "demo", "matching.json_attributes": True},
            source="the demo",
        )
        self.hub.start(_run_hub, settings, self._ready, self._output("hub"))
        if (ready := self.hub.wait_until_ready(self._ready)) is None:
            raise UnreachableError("the hub", f"it does not start: {self._last_line('hub')}")
        self.doors = ready.doors

    def start_spark(self, jobs: Sequence[str]) -> None:
        """Start Spark jobs."""
        root = str(self._directory / "pipeline")
        self.spark.start(_run_jobs, jobs, self.doors["tube_tcp"], root, self._output("spark"))

    def spark_end(self) -> SparkEnd | None:
        """Return why the Spark job has ended, if it has."""
        code = self.spark.ended()
        if code is not None:
            from headrace.demo.play import SparkEnd

            # A usage error means that something is not installed.
            self._ended = SparkEnd(self._last_line("spark"), missing=code == USAGE_ERROR)
        return self._ended

    def stop(self) -> None:
        """Stop both at once. Spark is slow to stop and all its files are in our directory, so it gets little time."""
        children = ((self.spark, _SPARK_STOP_SECONDS), (self.hub, _STOP_SECONDS))
        for child, _ in children:
            child.signal(signal.SIGTERM)
        begun = time.monotonic()
        for child, seconds in children:
            child.end_by(begun + seconds)

    def _output(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _last_line(self, name: str) -> str:
        """Return the last line of a child's output, preferably one of Headrace itself."""
        with contextlib.suppress(OSError):
            lines = self._output(name).read_text(errors="replace").split("\n")
            ours = [line.removeprefix("headrace: ") for line in lines if line.startswith("headrace: ")]
            if printed := ours or [line for line in lines if line.strip()]:
                return printed[-1]
        return "it printed nothing"


@contextlib.contextmanager
def started_processes(jobs: Sequence[str]) -> Iterator[DemoProcesses]:
    """Run a hub, and Spark with these jobs if there are any, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as directory:
        processes = DemoProcesses(Path(directory))
        try:
            processes.start_hub()
            if jobs:
                processes.start_spark(jobs)
            yield processes
        finally:
            # Stopping takes seconds at most, and must not be cut short.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            processes.stop()


def _run_hub(settings: Settings, ready: Path, output: Path) -> None:
    from headrace.cli.run.serve import run_hub

    _redirect_output(output)
    with exit_with_code():
        run_hub(settings, ready, take_free_ports=True, banner=False)


def _run_jobs(jobs: Sequence[str], servers: str, root: str, output: Path) -> None:
    _redirect_output(output)
    # Messages come first.
    os.nice(5)
    with exit_with_code():
        from headrace.cli.operate.pipeline.run import stop_on_signals
        from headrace.spark.jobs.job import Job
        from headrace.spark.options import HubOptions
        from headrace.spark.runner import Pipeline, PipelineRequest

        job: Job = import_module("headrace.demo.job")
        asked = PipelineRequest(
            jobs,
            HubOptions(servers),
            master="local[1]",
            root=root,
            # A job that fails does not stop the others; the audit names it.
            restart=True,
            ui=False,
            # In our directory, which is removed however Spark ends.
            conf={"spark.local.dir": f"{root}/scratch"},
            own={JOB: job},
        )
        pipeline = Pipeline(asked)
        stop_on_signals(pipeline)
        pipeline.run()


def _redirect_output(output: Path) -> None:
    """Send the output of this process, and of those that it starts, into a file."""
    sys.stdout.flush()
    with output.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    log_to_stderr(LogFormat.TEXT, LogLevel.INFO)
