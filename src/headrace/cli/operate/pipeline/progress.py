"""The progress of a pipeline's jobs, in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from headrace.cli.terminal.output import counted


class Weight(IntEnum):
    """How much a fact about a job matters, where there is no room for all."""

    PACE = 0
    RESTARTS = 1
    RATE = 2
    BEHIND = 3
    TROUBLE = 4
    STATE = 5


def failure_line(facts: Mapping[str, object]) -> str:
    """Describe a failure of a job that will be restarted.

    >>> failure_line({"job": "archive", "error": "no room", "seconds": 2.0, "restarts": 1})
    'archive: no room; archive is started again in 2 s'
    """
    # The job is named again, because the error may speak of the hub and of how that is started.
    job = facts["job"]
    return f"{job}: {facts['error']}; {job} is started again in {facts['seconds']:g} s"


def live_line(jobs: Iterable[Mapping[str, object]], width: int = 0) -> str:
    """Describe the progress of all jobs in less than ``width`` columns (0: any), least important facts left out first.

    >>> facts = {"rows_per_second": 1250.4, "behind": 12, "batch_seconds": 0.25, "restarts": 2}
    >>> jobs = [{"job": "archive", **facts}, {"job": "verify", **facts, "findings": 1}, {"job": "measure", **facts}]
    >>> for width in (100, 80, 60):
    ...     live_line(jobs, width)
    'archive 1,250/s, 12 behind · verify 1,250/s, 12 behind, 1 finding · measure 1,250/s, 12 behind'
    'archive 12 behind · verify 12 behind, 1 finding · measure 12 behind'
    'archive 12 behind · verify 1 finding · measure 12 behind'
    """
    listed = list(jobs)
    for least in Weight:
        line = " · ".join(progress_line(each, least) for each in listed)
        if not 0 < width <= len(line):
            return line
    # A line that the terminal wraps could not be overwritten.
    return f"{line[: width - 2]}…"


def progress_line(facts: Mapping[str, object], least: Weight = Weight.PACE) -> str:
    """Describe a job's progress: the facts of at least the ``least`` weight, and at least one.

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
    # The error of a job that runs, and has done a micro-batch since, is history.
    why = f": {facts['error']}" if facts.get("error") and heaviest is Weight.STATE else ""
    return f"{facts['job']} {kept}{why}"


def _parts(facts: Mapping[str, object]) -> list[tuple[Weight, str]]:
    """Return the facts about a job in the order to print them, each with its weight."""
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
