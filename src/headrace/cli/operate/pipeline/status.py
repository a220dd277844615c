"""``pipeline status``: the progress of a hub's pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer

from headrace.cli.hubs.access import HubAccess
from headrace.cli.operate.pipeline.progress import progress_line
from headrace.cli.operate.pipeline.run import Servers, default_servers
from headrace.cli.terminal.exits import FAILED, JOB_FAILED
from headrace.cli.terminal.options import ClientId, Json, find_credentials
from headrace.cli.terminal.output import console, open_to_everyone, print_json, wants_json

EXAMPLES: Final = (
    ("For people:", "headrace pipeline status"),
    ("For a script:", "headrace pipeline status --json | jq .jobs.archive.behind"),
    ("Is all well?", "headrace pipeline status > /dev/null || echo 'see to it'"),
)

STALE_SECONDS: Final = 10.0
"""A pipeline reports each second; one that has not for this long is not running, or cannot reach the hub."""


def status(servers: Servers = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show what the pipeline of a hub is doing: each job's speed, the length of its micro-batches, and how far it is
    behind the newest message.

    The exit code is 0 if all jobs run or have ended normally; 3 if one has failed or is being restarted after a
    failure; 1 if no pipeline has reported, or none for ten seconds.
    """
    # Help must not wait for what the hub's own code imports.
    from headrace.net.server.status.alerts import has_failed

    where = servers or default_servers()
    url = where if "://" in where else f"tube://{where}"
    hub = HubAccess(url, find_credentials(client_id, url=servers))
    found = hub.ask("headrace pipeline", lambda link: link.status())
    facts = found.get("pipeline")
    if facts is None:
        facts = {"state": "none", "jobs": {}}
    elif facts["age"] > STALE_SECONDS and facts["state"] not in ("stopped", "failed"):
        facts["state"] = "silent"
    if wants_json(asked=as_json):
        print_json(facts)
    else:
        _show(facts)
        if exposed := found.get("insecure"):
            console().print(f"[red]insecure: {open_to_everyone(exposed)}[/red]")
    if facts["state"] in ("none", "silent"):
        raise typer.Exit(FAILED)
    if facts["state"] == "failed" or any(map(has_failed, facts["jobs"].values())):
        raise typer.Exit(JOB_FAILED)


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
    """Describe when a pipeline ended, and when it began.

    >>> _ended({"since": "2026-01-31T12:00:00+00:00", "until": "2026-01-31T13:00:00+00:00", "master": "local[2]"})
    ' at 2026-01-31T13:00:00+00:00; it was started at 2026-01-31T12:00:00+00:00 on local[2]'
    """
    when = f" at {facts['until']}" if facts.get("until") else ""
    return f"{when}; it was started at {facts['since']} on {facts['master']}"
