"""The demo for people: a map with the vehicles on it, and beside it what each part of the system does.

:func:`draw` makes one picture of a play for a terminal of a given size. On a small terminal the map shrinks first, then
lists get shorter, and what is lowest is left out.
"""

from __future__ import annotations

from typing import Any, Final, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.run.demo.map import COLOURS, draw_map
from headrace.cli.terminal.output import console, counted, plain_table, sparkline
from headrace.demo.audit import Audit
from headrace.demo.play import Play
from headrace.demo.town import KINDS, VehicleProtocol

_DOES: Final = {
    VehicleProtocol.FYREHOSE: "the backbone",
    VehicleProtocol.SPP: "services",
    VehicleProtocol.ATTRIBUTE: "content routing",
    VehicleProtocol.TUBE: "the bulk link",
}
_BARS: Final = 16
_MAP_WIDTH: Final = (36, 76)
_SIDE: Final = 70
"""Columns beside the map, at least."""
_FRAME: Final = 4
"""Columns of the map's frame."""
_BETWEEN: Final = 4
"""Columns between the three columns of a table."""


class DemoPicture:
    """A live picture on the terminal."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._out = console()
        self._live = Live(console=self._out, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *why: Any) -> None:
        self._live.__exit__(*why)

    def update(self) -> None:
        """Draw the present state."""
        width, height = self._out.size
        self._live.update(draw(self._play, width, height), refresh=True)

    def show_summary(self, audit: Audit) -> None:
        """Print the summary, which stays when the picture is gone."""
        self._out.print(summary(self._play, audit))

    def show_kept(self) -> None:
        """Print that the hub stays."""
        self._out.print(
            f"The hub stays: [bold]{self._play.dashboard}[/bold] [dim]Ctrl-C stops it.[/dim]", soft_wrap=True
        )


def draw(play: Play, width: int, height: int) -> RenderableType:
    """Draw one picture."""
    beside = width >= _MAP_WIDTH[0] + _SIDE
    columns = max(_MAP_WIDTH[0], min(_MAP_WIDTH[1], width - _SIDE if beside else width)) - _FRAME
    rows = max(6, min(columns // 4, height - (14 if beside else 17)))
    town = Panel(draw_map(play, columns, rows), title="the town", border_style="dim", expand=False)
    lists = max(2, height - rows - (8 if beside else 15))
    if not beside:
        return Group(_heading(play, width), town, _protocols(play, width), _alerts(play, lists, width))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=columns + _FRAME)
    side = width - columns - _FRAME - 4
    grid.add_column(width=side)
    grid.add_row(town, Group(_protocols(play, side), "", _watches(play, side)))
    grid.add_row("", "")
    grid.add_row(_alerts(play, lists, columns + _FRAME), _results(play, lists))
    return Group(_heading(play, width), grid)


def summary(play: Play, audit: Audit) -> RenderableType:
    """Draw the summary, and what to try next."""
    total = sum(audit.messages.values())
    title = f"[bold]{counted(total, 'message')} in {play.seconds:g} s through five protocols, one sequence.[/bold]\n"
    table = plain_table("in by", ">messages", "from", fold=False)
    for protocol in VehicleProtocol:
        many = sum(vehicle.protocol is protocol for vehicle in play.fleet.vehicles)
        table.add_row(
            f"[{COLOURS[protocol]}]{protocol}[/]",
            f"{audit.messages[protocol]:,}",
            f"{many} {_plural(KINDS[protocol], many)}",
        )
    if audit.spark:
        table.add_row(
            f"[{COLOURS['spark']}]spark[/]", f"{play.received.get('spark', 0):,}", "its results, as services"
        )
    parts: list[RenderableType] = ["", title, table, ""]
    for finding in audit.findings:
        mark = "[green]✓[/green]" if finding.good else "[red]✗[/red]"
        parts.append(f"{mark} {escape(finding.says)}")
    parts += [f"  {line}" for line in _details(play, audit)]
    parts += ["", "[dim]Try next:[/dim]"]
    for command, what in _NEXT:
        parts.append(f"  {command:<36}[dim]{what}[/dim]")
    return Group(*parts, "")


_NEXT: Final = (
    ("headrace up", "a hub that stays, its dashboard, and the pipeline"),
    ("headrace sub --where 'x=0..10'", "a subscription by content"),
    ("headrace pub 'here' --attr x=5", "a message for it"),
    ("headrace services list", "live objects, such as Spark's results"),
    ("headrace demo --keep", "this again; the hub stays"),
)


def _details(play: Play, audit: Audit) -> list[str]:
    lines = [f"{counted(audit.alerts, 'alert')} from geofences and the workshop"]
    if audit.spark:
        furthest = str(audit.spark["furthest"])
        metres = play.results.vehicles.get(furthest, {}).get("metres", 0)
        lines.append(
            f"Spark found: {audit.spark['metres'] / 1000:,.1f} km in all, {escape(furthest)} furthest with"
            f" {metres:,} m, {audit.spark['top_speed']:.0f} km/h the fastest"
        )
    elif (end := play.spark_end) is not None and end.missing:
        lines.append(f"[yellow]without Spark: {escape(end.why)}[/yellow]")
    return lines


def _heading(play: Play, width: int) -> RenderableType:
    left = max(0.0, play.seconds - play.elapsed)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("headrace demo", "bold")
    line.append(f"  {left:.0f} s left" if play.phase == "driving" else f"  {_PHASES[play.phase]}")
    line.append(f"  head {play.head:,}", "bold")
    line.append(f"  {play.dashboard}", "cyan")
    bar = Table.grid()
    done = min(play.elapsed, play.seconds)
    bar.add_row(ProgressBar(total=play.seconds, completed=done, width=width - 1, complete_style="cyan"))
    return Group(line, bar)


_PHASES: Final = {"starting": "starting", "finishing": "everyone catches up", "over": "over"}


def _protocols(play: Play, width: int) -> Table:
    """List the protocols; the bars get the room that is left, and then the texts are cut."""
    rows = []
    for protocol in VehicleProtocol:
        many = sum(vehicle.protocol is protocol for vehicle in play.fleet.vehicles)
        who = f"{many} {_plural(KINDS[protocol], many)}: {_DOES[protocol]}"
        rows.append((protocol.value, f"{play.received.get(protocol, 0):,}", who))
    rows.append(("parcel", f"{play.neighbour.asked:,}", f"asks how far: {play.neighbour.seq:,}"))
    if play.spark_wanted:
        rows.append(("spark", f"{play.received.get('spark', 0):,}", "results, as services"))
    rates = {name: list(play.rates.get(name, ())) for name, _, _ in rows}
    last = {name: f"{each[-1]:,.0f}" if each else "" for name, each in rates.items()}
    numbers = max(8, *(len(count) for _, count, _ in rows)) + max(2, *map(len, last.values()))
    room = width - 9 - numbers - 4 * 2
    bars = max(0, min(_BARS, room - max(len(who) for _, _, who in rows)))
    table = plain_table("in by", ">messages", ">/s", ">", "who", fold=False)
    table.columns[0].min_width = 9
    for name, count, who in rows:
        colour, drawn = COLOURS[name], sparkline(rates[name][-bars:]) if bars else ""
        table.add_row(
            f"[{colour}]{name}[/]", count, last[name], f"[{colour}]{drawn}[/]", _cut(who, room - bars)
        )
    return table


def _watches(play: Play, width: int) -> Table:
    """List the subscriptions; only the list of who is there is cut, so that every number stays whole."""
    table = plain_table("subscribed by content", ">got", "there now", fold=False)
    rows = []
    for watch in play.watches:
        says = " ".join(_condition(name, each.low, each.high) for name, each in watch.conditions.items())
        rows.append((watch.name, says, f"{watch.received:,}", ", ".join(watch.inside(play.now))))
    taken = max(len(f"{name} {says}") for name, says, _, _ in rows) + max(len(got) for _, _, got, _ in rows)
    room = max(width - taken - _BETWEEN, len("there now"))
    for name, says, got, inside in rows:
        table.add_row(f"{name} [dim]{says}[/dim]", got, _cut(inside, room))
    return table


def _condition(name: str, low: float, high: float) -> str:
    return f"{name}={low:g}.." if high > 1e9 else f"{name}={low:g}..{high:g}"


def _alerts(play: Play, most: int, width: int) -> Table:
    table = plain_table("alerts", "", ">", fold=False)
    newest = play.alerts[-most:]
    numbers = max((len(f"{alert.seconds:5.1f} s#{alert.seq}") for alert in newest), default=0)
    for alert in reversed(newest):
        colour = "red" if alert.watch == "workshop" else "default"
        table.add_row(
            f"[dim]{alert.seconds:5.1f} s[/dim]",
            f"[{colour}]{escape(_cut(alert.text, width - numbers - _BETWEEN))}[/]",
            f"[dim]#{alert.seq}[/dim]",
        )
    return table


def _results(play: Play, most: int) -> RenderableType:
    """Draw what Spark has found."""
    if not play.spark_wanted:
        return ""
    if (end := play.spark_end) is not None:
        return Text(f"without Spark: {end.why}", "yellow")
    failed = [
        Text(f"{name} failed, and is started again: {why}", "red", no_wrap=True, overflow="ellipsis")
        for name, why in play.failed.items()
    ]
    if not play.results.fleet:
        return Group(*failed) if failed else Text("Spark is starting …", "dim")
    heading = f"Spark: {play.results.fleet['messages']:,} messages"
    table = plain_table(heading, ">metres", ">top km/h", ">battery", fold=False)
    known = sorted(play.results.vehicles.items(), key=lambda item: -item[1].get("metres", 0))
    for name, found in known[: most - len(failed)]:
        if found:
            battery = "" if found["battery"] is None else f"{found['battery']:.0f} %"
            table.add_row(
                f"spark/vehicle/{name}", f"{found['metres']:,}", f"{found['top_speed']:.0f}", battery
            )
    return Group(*failed, table)


def _cut(text: str, room: int) -> str:
    """Cut a text, so that the numbers beside it stay whole.

    >>> _cut("taxi-1, bus-2", 13), _cut("taxi-1, bus-2", 9)
    ('taxi-1, bus-2', 'taxi-1, …')
    """
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def _plural(kind: str, many: int) -> str:
    if many == 1:
        return kind
    return kind + ("es" if kind.endswith("s") else "s")
