"""What ``cluster status`` prints, and how ``cluster replace`` sets a log aside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from headrace.cli import live
from headrace.cli.access import Access
from headrace.cli.output import console, print_json, wants_json
from headrace.cli.stderr import speak_briefly
from headrace.errors import UsageError
from headrace.log.files import translating
from headrace.log.start_after_snapshot import is_log


def show(hub: Access, *, as_json: bool) -> None:
    """Print the nodes of a cluster."""
    speak_briefly()
    status = asyncio.run(_status(hub))
    facts = status.get("cluster")
    if facts is None:
        raise UsageError(f"the hub at {hub.url} is in no cluster (mode {status.get('mode')})")
    if wants_json(asked=as_json):
        print_json(facts)
        return
    out = console()
    out.print(_table(facts))
    if facts.get("problem"):
        out.print(f"[yellow]{escape(str(facts['problem']))}[/yellow]")


def set_aside(directory: Path) -> Path:
    """Rename a log that nobody has open; return what it is called now."""
    hub = live.find(directory)
    if hub is not None:
        raise UsageError(f"{hub} has {directory} open: stop it first")
    if not is_log(directory):
        raise UsageError(f"{directory} holds no log; name the node's data directory with --data")
    number = 1
    while (aside := directory.with_name(f"{directory.name}.replaced-{number}")).exists():
        number += 1
    with translating(directory):
        directory.rename(aside)
    return aside


async def _status(hub: Access) -> dict[str, Any]:
    async with hub.link("headrace cluster") as link:
        status: dict[str, Any] = await link.status()
        return status


def _table(facts: dict[str, Any]) -> Table:
    primary = facts.get("primary") or "none"
    table = Table(
        title=f"{facts.get('name')}: view {facts.get('view')}, primary {primary}", title_justify="left"
    )
    for name in ("node", "address", "mode", "role"):
        table.add_column(name)
    for name in ("head", "heard"):
        table.add_column(name, justify="right")
    for node in facts["nodes"]:
        age = "never" if node["age"] is None else f"{node['age']:.1f} s ago"
        words = (node["name"], node["host"], node["mode"], node["role"], node["head"], age)
        table.add_row(*("" if word is None else escape(str(word)) for word in words))
    return table
