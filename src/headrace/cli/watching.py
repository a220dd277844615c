"""What ``top`` does: take the hub's events as they come, and draw the newest."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPException, IncompleteRead, InvalidURL
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace.cli.access import Access, Client, unknown
from headrace.cli.output import console, counted, size, wants_json
from headrace.errors import RefusedError, UnreachableError, UsageError

_SECONDS: Final = 20.0
"""A hub sends something each second; one that is silent for so long has gone."""

_SPARKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 60
_BESIDE: Final = 46
"""Columns of a terminal that the bars leave to the figures beside them."""
_ROWS: Final = 8
"""Consumers and refusals that are shown, the most interesting first: it must fit a terminal."""


class Second(NamedTuple):
    """What one second brought: the hub's status and its sample."""

    status: dict[str, Any]
    sample: dict[str, Any]


def watch(hub: Access, *, count: int | None, as_json: bool) -> None:
    """Show each second until told to stop, or until ``count`` have passed."""
    seconds = _seconds(hub, count)
    if wants_json(asked=as_json):
        for second in seconds:
            sys.stdout.write(json.dumps(second.sample, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        return
    past: dict[str, deque[float]] = {"in": deque(maxlen=_WIDTH), "out": deque(maxlen=_WIDTH)}
    # The first comes before the terminal is touched: that nobody answers is one plain line.
    beginning = list(islice(seconds, 1))
    out = console()
    with Live(console=out, screen=False, auto_refresh=False) as live:
        for second in chain(beginning, seconds):
            past["in"].append(_total(second.sample["received"], but="log"))
            past["out"].append(_total(second.sample["delivered"]))
            live.update(draw(second, past, out.width - _BESIDE), refresh=True)


def draw(second: Second, past: Mapping[str, deque[float]], bars: int = _WIDTH) -> RenderableType:
    """One screen; ``bars`` is how many fit into a line."""
    status, sample = second
    newest = {name: deque(values, maxlen=max(bars, 1)) for name, values in past.items()}
    parts: list[RenderableType] = [_heading(status), _rates(sample, newest)]
    if consumers := _consumers(status):
        parts += ["", consumers]
    if refusals := _refusals(status):
        parts += ["", refusals]
    return Group(*parts)


def spark(values: deque[float]) -> str:
    """Values as a line of bars, the largest the highest.

    >>> spark(deque([0, 1, 2, 4]))
    '▁▃▅█'
    """
    most = max(values, default=0)
    if most <= 0:
        return _SPARKS[0] * len(values)
    return "".join(_SPARKS[round(value / most * (len(_SPARKS) - 1))] for value in values)


def _heading(status: dict[str, Any]) -> Text:
    mode = status["mode"]
    kept = counted(max(status["head"] - status["first"] + 1, 0), "message")
    line = Text()
    line.append(f"{status['node']['name']} ", "bold")
    line.append(f"{mode} ", "green" if mode == "WRK" else "red")
    line.append(f"head {status['head']:,}", "bold")
    line.append(f"   {kept} kept in {size(status['disk']['bytes'])}\n")
    connections = counted(status["connections"], "connection")
    line.append(f"{connections}, up {_span(status['uptime'])}, fsync {status['fsync']}\n", "dim")
    return line


def _rates(sample: dict[str, Any], past: Mapping[str, deque[float]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("messages/s", justify="right", no_wrap=True)
    table.add_column("the last minute", no_wrap=True)
    table.add_column("by", overflow="fold")
    for name, rates in (("in", sample["received"]), ("out", sample["delivered"])):
        shares = "  ".join(f"{each} {rate:,.0f}" for each, rate in rates.items() if rate and each != "log")
        table.add_row(name, f"{past[name][-1]:,.0f}", f"[cyan]{spark(past[name])}[/cyan]", escape(shares))
    for name in ("refused", "repaired", "skipped", "conflated"):
        if sample[name]:
            table.add_row(name, f"[yellow]{sample[name]:,.0f}[/yellow]")
    return table


def _consumers(status: dict[str, Any]) -> Table | None:
    consumers = status.get("consumers", {})
    if not consumers:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("consumer", overflow="fold")
    for heading in ("behind", "dead", "lost"):
        table.add_column(heading, justify="right", no_wrap=True)
    furthest = sorted(consumers.items(), key=lambda item: item[1]["floor"])[:_ROWS]
    for name, consumer in furthest:
        behind = status["head"] - consumer["floor"]
        table.add_row(escape(name), f"{behind:,}", f"{consumer['dead']:,}", f"{consumer['lost']:,}")
    return table


def _refusals(status: dict[str, Any]) -> Table | None:
    refused = status["counters"].get("refused", {})
    if not isinstance(refused, dict) or not refused:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("refused since the start", overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    for name, number in sorted(refused.items(), key=lambda item: -item[1])[:_ROWS]:
        table.add_row(escape(name.replace("/", ": ", 1)), f"{number:,}")
    return table


def _seconds(hub: Access, count: int | None) -> Iterator[Second]:
    status: dict[str, Any] = {}
    taken = 0
    for kind, data in _events(hub.url.rstrip("/"), hub.client):
        if kind == "status":
            status = data
        elif kind == "sample" and status:
            yield Second(status, data)
            taken += 1
            if taken == count:
                return
    raise UnreachableError(hub.url, "the hub has stopped")


def _events(url: str, client: Client | None) -> Iterator[tuple[str, Any]]:
    """Server-sent events: kind and content."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r}: expected http://host:port")
    kind = ""
    try:
        request = urllib.request.Request(f"{url}/api/events")  # noqa: S310 -- the scheme is checked
        if client is not None:
            request.add_header("Authorization", client.basic)
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 -- the same
            for line in answer:
                name, _, value = line.decode().strip().partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise RefusedError("auth", f"{url} does not let us in: {unknown(client)}") from None
        raise UnreachableError(url, f"it answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionRefusedError):
            reason = "nobody listens there; is the hub running? `headrace serve` starts one"
        raise UnreachableError(url, str(getattr(reason, "strerror", None) or reason).lower()) from None
    except InvalidURL:
        raise UsageError(f"{url!r}: expected http://host:port") from None
    except HTTPException as error:
        stopped = isinstance(error, IncompleteRead)
        raise UnreachableError(url, "the hub has stopped" if stopped else "it is no http door") from None


def _total(rates: dict[str, float], but: str = "") -> float:
    return sum(rate for name, rate in rates.items() if name != but)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
