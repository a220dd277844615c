"""What ``pipeline status`` and ``pipeline jobs`` print."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import typer

from headrace.cli.access import Access
from headrace.cli.exits import FAILED, UNWELL
from headrace.cli.output import console, print_json, wants_json
from headrace.cli.pipeline_run import progress_line
from headrace.cli.stderr import speak_briefly
from headrace.spark.jobs.job import JOBS, Parameter, find

STALE_SECONDS = 10.0
"""A pipeline reports each second; one that has not for so long does not run, or cannot reach the hub."""


def status(hub: Access, *, as_json: bool) -> None:
    """What the hub was last told by its pipeline."""
    speak_briefly()
    facts = asyncio.run(_ask(hub))
    if facts is None:
        facts = {"state": "none", "jobs": {}}
    elif facts["age"] > STALE_SECONDS and facts["state"] not in ("stopped", "failed"):
        facts["state"] = "silent"
    if wants_json(asked=as_json):
        print_json(facts)
    else:
        _show(facts)
    if facts["state"] in ("none", "silent"):
        raise typer.Exit(FAILED)
    if facts["state"] == "failed" or any(map(is_unwell, facts["jobs"].values())):
        raise typer.Exit(UNWELL)


def is_unwell(job: Mapping[str, Any]) -> bool:
    """Whether a job has failed and has not done anything since; what it failed with before that is history.

    >>> [is_unwell({"state": state, "error": "no room"}) for state in ("restarting", "starting", "running", "failed")]
    [True, True, True, True]
    >>> is_unwell({"state": "running", "error": "no room", "batch": 7}), is_unwell({"state": "starting"})
    (False, False)
    """
    match job["state"]:
        case "restarting" | "failed":
            return True
        case "starting" | "running":
            # One that fails again and again looks as if it ran between two failures: a micro-batch tells.
            return bool(job.get("error")) and job.get("batch") is None
        case _:
            return False


def jobs(*, as_json: bool) -> None:
    """Every job and its parameters."""
    found = {name: find(name) for name in JOBS}
    if wants_json(asked=as_json):
        print_json(
            {
                name: {
                    "about": job.ABOUT,
                    "parameters": {
                        each: {"meaning": known.doc, "default": default_of(name, each, known) or None}
                        for each, known in job.PARAMETERS.items()
                    },
                }
                for name, job in found.items()
            }
        )
        return
    out = console()
    for name, job in found.items():
        out.print(f"[bold]{name}[/bold]: {job.ABOUT}")
        for each, known in job.PARAMETERS.items():
            default = f" ({usual})" if (usual := default_of(name, each, known)) else ""
            out.print(f"  {each:<18} {known.doc}{default}", soft_wrap=True, markup=False)


def default_of(job: str, name: str, known: Parameter) -> str:
    """What a job takes where it is not told.

    >>> default_of("verify", "path", Parameter("where it writes")), default_of("match", "most", Parameter("", "9"))
    ('pipeline/verify in the data directory', '9')
    """
    # A folder, which the runner knows the place of.
    return f"pipeline/{known.default or job} in the data directory" if name == "path" else known.default


async def _ask(hub: Access) -> dict[str, Any] | None:
    async with hub.link("headrace pipeline") as client:
        found = (await client.status()).get("pipeline")
        return dict(found) if found is not None else None


def _show(facts: dict[str, Any]) -> None:
    match facts["state"]:
        case "none":
            print("no pipeline has reported to this hub")
        case "failed":
            print(f"failed{_ended(facts)}")
        case "stopped":
            print(f"stopped{_ended(facts)}")
        case "silent":
            print(f"the pipeline (process {facts['pid']}) has been silent for {facts['age']:.0f} s")
        case state:
            where = f"; Spark's pages: {facts['ui']}" if facts.get("ui") and state == "running" else ""
            print(f"{state} since {facts['since']} on {facts['master']}{where}")
    for job in facts["jobs"].values():
        print(f"  {progress_line(job)}")


def _ended(facts: Mapping[str, Any]) -> str:
    """When, and when it had begun.

    >>> _ended({"since": "2026-01-31T12:00:00+00:00", "until": "2026-01-31T13:00:00+00:00", "master": "local[2]"})
    ' at 2026-01-31T13:00:00+00:00; it was started at 2026-01-31T12:00:00+00:00 on local[2]'
    """
    when = f" at {facts['until']}" if facts.get("until") else ""
    return f"{when}; it was started at {facts['since']} on {facts['master']}"
