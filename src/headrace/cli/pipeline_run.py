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
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
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
from headrace.spark.options import HubAccess
from headrace.spark.runner import Pipeline, PipelineRequest
from headrace.spark.runtime.session import cores

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
    asked = PipelineRequest(
        names,
        HubAccess.to(servers),
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
    asked = PipelineRequest(
        wanted.jobs,
        HubAccess(str(where)),
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


class Weight(IntEnum):
    """How much a fact about a job matters, where there is no room for all of them."""

    PACE = 0
    RESTARTS = 1
    RATE = 2
    BEHIND = 3
    TROUBLE = 4
    STATE = 5


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
        self._jobs: dict[str, Mapping[str, object]] = {}
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
                self._jobs[str(facts["job"])] = facts
                self._show()
            case "done":
                rest = {name: value for name, value in facts.items() if name not in ("event", "job", "state")}
                self._say(f"{facts['job']}: " + ", ".join(f"{name} {value}" for name, value in rest.items()))
            case "failed":
                self._say(failure_line(facts))
                self._jobs[str(facts["job"])] = {**facts, "error": None}
            case "stopping":
                self._say("stopping: what is under way comes to its end, for some seconds")
            case "stopped":
                self._say("stopped")

    def end(self) -> None:
        """Leave the last line where it is."""
        if self._jobs and self._live:
            print()

    def _show(self) -> None:
        line = live_line(self._jobs.values(), shutil.get_terminal_size((0, 0)).columns if self._live else 0)
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


def live_line(jobs: Iterable[Mapping[str, object]], width: int = 0) -> str:
    """How far all jobs are, in less than ``width`` columns, if that is not 0: what matters least is left out first.

    >>> facts = {"rows_per_second": 1250.4, "behind": 12, "batch_seconds": 0.25, "restarts": 2}
    >>> jobs = [{"job": "archive", **facts}, {"job": "verify", **facts, "findings": 1}, {"job": "measure", **facts}]
    >>> for width in (100, 80, 60):
    ...     live_line(jobs, width)
    'archive 1,250/s, 12 behind · verify 1,250/s, 12 behind, 1 finding · measure 1,250/s, 12 behind'
    'archive 12 behind · verify 12 behind, 1 finding · measure 12 behind'
    'archive 12 behind · verify 1 finding · measure 12 behind'
    """
    told = list(jobs)
    for least in Weight:
        line = " · ".join(progress_line(each, least) for each in told)
        if not 0 < width <= len(line):
            return line
    # A line that is wrapped cannot be taken back.
    return f"{line[: width - 2]}…"


def progress_line(facts: Mapping[str, object], least: Weight = Weight.PACE) -> str:
    """How far a job is, in a few words: what has the ``least`` weight or more, and one thing in any case.

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
    parts = _parts(facts)
    heaviest = max(weight for weight, _ in parts)
    kept = ", ".join(text for weight, text in parts if weight >= min(least, heaviest))
    # One that runs, and has shown what it does, has what it once failed with behind it.
    why = f": {facts['error']}" if facts.get("error") and heaviest is Weight.STATE else ""
    return f"{facts['job']} {kept}{why}"


def _parts(facts: Mapping[str, object]) -> list[tuple[Weight, str]]:
    """What there is to say of a job, in its order, and how much it matters."""
    if facts.get("state") == "running" and facts.get("tasks"):
        tasks = counted(int(str(facts["tasks"])), "task")
        parts = [(Weight.BEHIND, f"{facts['tasks_done']} of {tasks}")]
        if facts.get("through") is not None:
            parts.append((Weight.RATE, f"through message {facts['through']:,}"))
        return parts
    restarts = facts.get("restarts")
    again = (
        [(Weight.RESTARTS, counted(restarts, "restart"))] if isinstance(restarts, int) and restarts else []
    )
    if facts.get("batch_seconds") is None or facts.get("state") in ("restarting", "failed"):
        return [(Weight.STATE, str(facts["state"])), *again]
    parts = [(Weight.RATE, f"{float(str(facts.get('rows_per_second') or 0)):,.0f}/s")]
    behind = facts.get("behind")
    if isinstance(behind, int):
        parts.append((Weight.BEHIND, f"{behind:,} behind"))
    parts.append((Weight.PACE, f"{float(str(facts.get('batch_seconds') or 0)):.2f} s a batch"))
    findings = facts.get("findings")
    if isinstance(findings, int):
        parts.append((Weight.TROUBLE if findings else Weight.PACE, counted(findings, "finding")))
    lost = facts.get("lost")
    if isinstance(lost, dict) and isinstance(gone := lost.get("messages"), int):
        parts.append((Weight.TROUBLE, f"{counted(gone, 'message')} lost"))
    return [*parts, *again]


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
