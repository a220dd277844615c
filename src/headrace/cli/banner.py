"""What a person sees when a hub has started: where its doors are and where its messages go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.markup import escape

from headrace import __version__
from headrace.cli.output import console, counted
from headrace.net.server.process import Server
from headrace.protocols import SCHEMES

_SCHEMES: Final = {door: scheme for scheme, door in reversed(SCHEMES.items())}
"""The scheme of each door's URL."""


def show_banner(server: Server) -> None:
    """Print it, on stderr."""
    out = console(stderr=True)
    out.print(f"\n[bold]headrace {__version__}[/bold] on node {escape(server.settings.node.name)}\n")
    for name, value in _rows(server):
        out.print(f"  [dim]{name:<10}[/dim] {escape(value)}", soft_wrap=True)
    for door, (wanted, where) in server.moved.items():
        out.print(f"  [yellow]{door:<10}[/yellow] is on {where}: {wanted} is taken", soft_wrap=True)
    out.print("\n  [dim]Ctrl-C stops it.[/dim]\n")


def _rows(server: Server) -> Iterator[tuple[str, str]]:
    for door, address in server.doors.items():
        if door == "http":
            yield "dashboard", f"http://{address}/"
        else:
            yield door, f"{_SCHEMES.get(door, door)}://{address}"
    log, settings = server.hub.log, server.settings
    yield "data", str(settings.node.data)
    yield "log", f"{counted(log.head - log.first + 1, 'message')}, head {log.head}, {log.uuid}"
    yield "fsync", _fsync(log.fsync, settings.log.fsync_interval)


def _fsync(mode: str, seconds: float) -> str:
    return f"{mode}: every {seconds * 1000:g} ms" if mode == "interval" else mode
