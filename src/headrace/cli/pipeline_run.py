"""What ``pipeline run`` does: run jobs, show how far they are, stop when told to.

On a terminal that is one line that changes; in a pipe it is a JSON line for each thing that happens: ``starting``,
``started``, ``progress`` (a micro-batch is done), ``done``, ``failed`` (it is tried again), ``stopping``, ``stopped``.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.access import Client
from headrace.cli.options import identified
from headrace.cli.output import counted, wants_json
from headrace.cli.pipeline import parse_params
from headrace.cli.stderr import speak_briefly
from headrace.config import Settings
from headrace.config.sources import CLIENT_VARIABLE, KEY_VARIABLE
from headrace.errors import UsageError
from headrace.spark.jobs.job import DEFAULT_JOBS, find, parameters_of
from headrace.spark.options import Access
from headrace.spark.runner import Asked, Pipeline
from headrace.spark.sessions import cores

logger = logging.getLogger("headrace")


def run(
    jobs: Sequence[str],
    servers: str,
    *,
    master: str,
    available_now: bool,
    params: Sequence[str],
    memory: str,
    data: Path,
    client: Client | None,
    as_json: bool,
) -> None:
    """Run jobs until they are done or stopped."""
    speak_briefly()
    introduce(client)
    names = tuple(dict.fromkeys(jobs or DEFAULT_JOBS))
    asked = Asked(
        names,
        Access.to(servers),
        master=master,
        params=parse_params(params),
        available_now=available_now,
        # One alone that fails, or one that has an end, is better told at once than tried again and again.
        restart=len(names) > 1 and not available_now,
        root=str(data / "pipeline"),
        memory=memory,
    )
    show = _JsonLines() if wants_json(asked=as_json) else _Line()
    pipeline = Pipeline(asked, show.tell)
    stop_on_signals(pipeline)
    try:
        pipeline.run()
    finally:
        show.end()


def run_for_hub(settings: Settings) -> None:
    """Run the pipeline that the settings describe, beside the hub of this machine."""
    client = identified(None, settings)
    if client is None and settings.auth.required:
        raise UsageError(
            f"auth.required is on, and nobody says who the pipeline is: set {CLIENT_VARIABLE} to one of auth.clients"
        )
    introduce(client)
    wanted, where = settings.pipeline, settings.listen.tube_tcp
    master = f"local[{max(cores('local[*]') - 1, 1)}]" if wanted.master == "auto" else wanted.master
    asked = Asked(
        wanted.jobs,
        Access(str(where)),
        master=master,
        params=wanted.params,
        root=str(settings.node.data.absolute() / "pipeline"),
        memory=wanted.memory,
        restart=True,
    )

    def tell(facts: Mapping[str, object]) -> None:
        match facts["event"]:
            case "started":
                logger.info("the pipeline runs %s; Spark's pages: %s", ", ".join(wanted.jobs), facts["ui"])
            case "failed":
                logger.error("%s", failure_line(facts))

    pipeline = Pipeline(asked, tell)
    stop_on_signals(pipeline, watched=True)
    pipeline.run()


def check_params(settings: Settings) -> None:
    """See that the jobs of the settings take what they are told."""
    try:
        jobs = {name: find(name) for name in settings.pipeline.jobs}
    except UsageError:
        # Without Spark nobody takes anything, and the hub runs alone.
        return
    parameters_of(jobs, settings.pipeline.params)


def introduce(client: Client | None) -> None:
    """Have this process, and those that Spark starts here, say who they are, where the hub wants to know.

    In the environment: what is on a command line or among Spark's settings is seen by others.
    """
    if client is not None:
        os.environ |= {CLIENT_VARIABLE: client.id, KEY_VARIABLE: client.key}


def stop_on_signals(pipeline: Pipeline, *, watched: bool = False) -> None:
    """Have the first SIGTERM or SIGINT stop a pipeline; the next has its plain meaning.

    One that is ``watched`` need not wait for a Spark that is being started: whoever watches ends the JVM as well.
    """
    signals = (signal.SIGTERM, signal.SIGINT)

    def told(_number: int, _frame: Any) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        pipeline.stop()
        if watched and pipeline.starting:
            raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, told)


class _JsonLines:
    """For programs."""

    def tell(self, facts: Mapping[str, object]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(facts) + b"\n")
        sys.stdout.flush()

    def end(self) -> None:
        """Nothing is left to do."""


class _Line:
    """For people: what happened once stands, how far the jobs are changes."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._live = sys.stdout.isatty()

    def tell(self, facts: Mapping[str, object]) -> None:
        match facts["event"]:
            case "starting":
                self._say(f"starting Spark on {facts['master']} …")
            case "started":
                self._say(
                    f"running {', '.join(map(str, _list(facts['jobs'])))}; Spark's pages: {facts['ui'] or 'off'}"
                )
            case "progress":
                self._jobs[str(facts["job"])] = progress_line(facts)
                self._show(" · ".join(self._jobs.values()))
            case "done":
                rest = {name: value for name, value in facts.items() if name not in ("event", "job", "state")}
                self._say(f"{facts['job']}: " + ", ".join(f"{name} {value}" for name, value in rest.items()))
            case "failed":
                self._say(failure_line(facts))
                self._jobs[str(facts["job"])] = progress_line({**facts, "error": None})
            case "stopping":
                self._say("stopping: what is under way comes to its end, for some seconds")
            case "stopped":
                self._say("stopped")

    def end(self) -> None:
        """Leave the last line where it is."""
        if self._jobs and self._live:
            print()

    def _show(self, line: str) -> None:
        # A line that is wrapped cannot be taken back.
        width = shutil.get_terminal_size((0, 0)).columns if self._live else 0
        line = f"{line[: width - 2]}…" if 0 < width <= len(line) else line
        print(f"\r\x1b[2K{line}" if self._live else line, end="" if self._live else "\n", flush=True)

    def _say(self, line: str) -> None:
        if self._jobs and self._live:
            print()
            self._jobs.clear()
        print(line, flush=True)


def failure_line(facts: Mapping[str, object]) -> str:
    """That a job failed and is tried again, as a sentence.

    >>> failure_line({"job": "archive", "error": "no room", "seconds": 2.0, "restarts": 1})
    'archive: no room; archive is started again in 2 s'
    """
    # By its name: an error may speak of the hub, and of how that is started.
    job = facts["job"]
    return f"{job}: {facts['error']}; {job} is started again in {facts['seconds']:g} s"


def progress_line(facts: Mapping[str, object]) -> str:
    """How far a job is, in a few words.

    >>> progress_line({"job": "archive", "rows_per_second": 1250.4, "behind": 12, "batch_seconds": 0.25})
    'archive 1,250/s, 12 behind, 0.25 s a batch'
    >>> progress_line({"job": "measure", "batch_seconds": 0.1, "lost": {"messages": 36, "ranges": [[1, 36]]}})
    'measure 0/s, 0.10 s a batch, 36 messages lost'
    >>> progress_line({"job": "replay", "state": "running", "tasks": 9, "tasks_done": 8, "through": 12345})
    'replay 8 of 9 tasks, through message 12,345'
    >>> progress_line({"job": "archive", "state": "restarting", "restarts": 2, "error": "no room"})
    'archive restarting, 2 restarts: no room'
    >>> progress_line({"job": "archive", "state": "running", "restarts": 3, "error": "no room"})
    'archive running, 3 restarts: no room'
    """
    if facts.get("state") == "running" and facts.get("tasks"):
        done = f"{facts['job']} {facts['tasks_done']} of {counted(int(str(facts['tasks'])), 'task')}"
        return done if facts.get("through") is None else f"{done}, through message {facts['through']:,}"
    restarts = facts.get("restarts")
    again = [counted(restarts, "restart")] if isinstance(restarts, int) and restarts else []
    if facts.get("batch_seconds") is None or facts.get("state") in ("restarting", "failed"):
        why = f": {facts['error']}" if facts.get("error") else ""
        return ", ".join([f"{facts['job']} {facts['state']}", *again]) + why
    behind = facts.get("behind")
    parts = [f"{facts['job']} {float(str(facts.get('rows_per_second') or 0)):,.0f}/s"]
    if isinstance(behind, int):
        parts.append(f"{behind:,} behind")
    parts.append(f"{float(str(facts.get('batch_seconds') or 0)):.2f} s a batch")
    findings = facts.get("findings")
    if isinstance(findings, int):
        parts.append(counted(findings, "finding"))
    lost = facts.get("lost")
    if isinstance(lost, dict) and isinstance(gone := lost.get("messages"), int):
        parts.append(f"{counted(gone, 'message')} lost")
    return ", ".join([*parts, *again])


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
