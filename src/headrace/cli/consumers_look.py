"""What ``consumers list`` and ``consumers show`` print."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from headrace.cli.access import Access
from headrace.cli.output import console, print_json, wants_json
from headrace.cli.rendering import visible
from headrace.cli.stderr import speak_briefly

_COUNTS: Final = ("floor", "behind", "members", "dead", "lost")


def show_all(hub: Access, *, as_json: bool) -> None:
    """Print the durable consumers there are."""
    speak_briefly()
    found = asyncio.run(_all(hub))
    if wants_json(asked=as_json):
        print_json(found)
    elif found:
        console().print(_table(found))
    else:
        print("there are no consumers")


def show(hub: Access, name: str, *, as_json: bool) -> None:
    """Print what is known of one."""
    speak_briefly()
    facts = asyncio.run(_one(hub, name))
    if wants_json(asked=as_json):
        print_json(facts)
        return
    out = console()
    terms = facts.pop("terms", {})
    for key, value in (*facts.items(), *terms.items()):
        if value is not None:
            out.print(f"[dim]{escape(key):<12}[/dim] {escape(_shown(value))}", soft_wrap=True)


async def _all(hub: Access) -> list[dict[str, Any]]:
    async with hub.link("headrace consumers") as link:
        return await link.consumers()


async def _one(hub: Access, name: str) -> dict[str, Any]:
    async with hub.link("headrace consumers") as link:
        return await link.show_consumer(name)


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("consumer", overflow="fold")
    for heading in _COUNTS:
        table.add_column(heading, justify="right", no_wrap=True)
    for consumer in found:
        name = escape(visible(consumer["consumer"].encode()))
        table.add_row(name, *(f"{consumer[each]}" for each in _COUNTS))
    return table


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return visible(text.encode())
