"""``top``: what a hub does, live in the terminal.

The hub sends its status and a sample of its rates each second, as server-sent events; the newest are drawn.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from headrace.cli.hubs.access import HubAccess, remedy_for_refusal
from headrace.cli.terminal.options import (
    ClientId,
    DoorScheme,
    Json,
    count_option,
    default_url,
    find_credentials,
    url_option,
)
from headrace.cli.terminal.output import (
    at_most,
    console,
    counted,
    open_to_everyone,
    plain_table,
    print_json_line,
    size,
    sparkline,
    wants_json,
)
from headrace.errors import RefusedError, UnreachableError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

EXAMPLES: Final = (
    ("The hub here:", "headrace top"),
    ("Another one:", "headrace top --url http://10.0.0.5:8470"),
    ("Ten seconds for a script:", "headrace top --json --count 10 | jq .received"),
)

_SILENCE_SECONDS: Final = 20.0
"""A hub sends something each second; one that is silent for this long is gone."""

_WIDTH: Final = 60
_BESIDE: Final = 46
"""Columns of a terminal for the figures beside the bars."""
_ROWS: Final = 8
"""Consumers and refusals that are shown, the most interesting first: they must fit a terminal."""


class HubSecond(NamedTuple):
    """One second of a hub: its status and its sample."""

    status: dict[str, Any]
    sample: dict[str, Any]


def top(
    url: Annotated[str | None, url_option("http door", "http://127.0.0.1:8470")] = None,
    count: Annotated[int | None, count_option("Stop after this many seconds.")] = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Show a hub's activity, second by second, until Ctrl-C.

    It shows messages in and out by protocol, the head of the sequence, consumers and how far they are behind, refusals,
    the clients that have or want the most, and the disk.

    In a pipe, or with --json, it prints one line of JSON each second instead.
    """
    hub = HubAccess(url or default_url(DoorScheme.HTTP), find_credentials(client_id, url=url))
    seconds = _seconds(hub, count)
    if wants_json(asked=as_json):
        for second in seconds:
            print_json_line(second.sample)
        return
    from rich.live import Live

    past: dict[str, deque[float]] = {"in": deque(maxlen=_WIDTH), "out": deque(maxlen=_WIDTH)}
    # The first comes before the terminal is touched: if no hub answers, the error is one plain line.
    first = list(islice(seconds, 1))
    out = console()
    with Live(console=out, screen=False, auto_refresh=False) as live:
        for second in chain(first, seconds):
            past["in"].append(_total(second.sample["received"]))
            past["out"].append(_total(second.sample["delivered"]))
            live.update(draw(second, past, out.width - _BESIDE), refresh=True)


def draw(second: HubSecond, past: Mapping[str, deque[float]], bars: int = _WIDTH) -> RenderableType:
    """Draw one screen, with at most ``bars`` bars in a line."""
    from rich.console import Group

    status, sample = second
    newest = {name: deque(values, maxlen=max(bars, 1)) for name, values in past.items()}
    parts: list[RenderableType] = [_heading(status), _rates(sample, newest)]
    if consumers := _consumers(status):
        parts += ["", consumers]
    if clients := _clients(status):
        parts += ["", clients]
    if refusals := _refusals(status):
        parts += ["", refusals]
    return Group(*parts)


def _heading(status: dict[str, Any]) -> Text:
    from rich.text import Text

    mode = status["mode"]
    kept = counted(max(status["head"] - status["first"] + 1, 0), "message")
    line = Text()
    line.append(f"{status['node']['name']} ", "bold")
    line.append(f"{mode} ", "green" if mode == "WRK" else "red")
    line.append(f"head {status['head']:,}", "bold")
    line.append(f"   {kept} kept in {size(status['disk']['bytes'])}\n")
    connections = counted(status["connections"], "connection")
    line.append(f"{connections}, up {_span(status['uptime'])}, fsync {status['fsync']}\n", "dim")
    if exposed := status.get("insecure"):
        line.append(f"insecure: {open_to_everyone(exposed)}\n", "red")
    outbox = (status.get("upstream") or {}).get("outbox")
    if outbox and (outbox["storing"] or outbox["aside"]):
        waiting = counted(outbox["messages"], "message")
        used = f"{size(outbox['bytes'])} of {size(outbox['most_bytes'])}"
        line.append(
            f"outbox: {waiting} for the upstream hub, {outbox['aside']:,} set aside, {used}\n", "yellow"
        )
    return line


def _rates(sample: dict[str, Any], past: Mapping[str, deque[float]]) -> Table:
    from rich.markup import escape

    table = plain_table("", ">messages/s", "the last minute", fold=False)
    table.add_column("by", overflow="fold")
    for name, rates in (("in", sample["received"]), ("out", sample["delivered"])):
        shares = "  ".join(f"{each} {rate:,.0f}" for each, rate in rates.items() if rate)
        table.add_row(name, f"{past[name][-1]:,.0f}", f"[cyan]{sparkline(past[name])}[/cyan]", escape(shares))
    for name in ("refused", "repaired", "skipped", "conflated"):
        if sample[name]:
            table.add_row(name, f"[yellow]{sample[name]:,.0f}[/yellow]")
    return table


def _consumers(status: dict[str, Any]) -> Table | None:
    consumers = status.get("consumers", {})
    if not consumers:
        return None
    from rich.markup import escape

    table = plain_table("consumer", ">behind", ">dead", ">lost")
    furthest = sorted(consumers.items(), key=lambda item: -item[1]["behind"])[:_ROWS]
    for name, consumer in furthest:
        behind = at_most(consumer["behind"], exact=consumer["behind_exact"])
        table.add_row(escape(name), behind, f"{consumer['dead']:,}", f"{consumer['lost']:,}")
    return table


def _clients(status: dict[str, Any]) -> Table | None:
    """List clients that had to wait or were refused, and those that have something in the state."""
    accounts = {
        name: account
        for name, account in status.get("accounts", {}).items()
        if account["refused"] or account["paused"] or account["state_bytes"]
    }
    if not accounts:
        return None
    from rich.markup import escape

    table = plain_table("client", ">connections", ">subscriptions", ">in services", ">waited", ">refused")
    for name, account in list(accounts.items())[:_ROWS]:
        numbers = (f"{account[what]:,}" for what in ("connections", "subscriptions"))
        waited, refused = f"{account['paused']:,}", f"{account['refused']:,}"
        table.add_row(escape(name), *numbers, size(account["state_bytes"]), waited, refused)
    return table


def _refusals(status: dict[str, Any]) -> Table | None:
    refused = status["counters"].get("refused", {})
    if not isinstance(refused, dict) or not refused:
        return None
    from rich.markup import escape

    table = plain_table("refused since the start", ">")
    for name, number in sorted(refused.items(), key=lambda item: -item[1])[:_ROWS]:
        table.add_row(escape(name.replace("/", ": ", 1)), f"{number:,}")
    return table


def _seconds(hub: HubAccess, count: int | None) -> Iterator[HubSecond]:
    status: dict[str, Any] = {}
    taken = 0
    for kind, data in _events(hub):
        if kind == "status":
            status = data
        elif kind == "sample" and status:
            yield HubSecond(status, data)
            taken += 1
            if taken == count:
                return
    raise UnreachableError(hub.url, "the hub has stopped")


def _events(hub: HubAccess) -> Iterator[tuple[str, Any]]:
    """Receive server-sent events: kind and content."""
    import ssl
    import urllib.error
    import urllib.parse
    import urllib.request
    from http import HTTPStatus
    from http.client import HTTPException, IncompleteRead, InvalidURL

    from headrace.client.tls import TlsFiles, explain

    url = hub.url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r}: expected http://host:port")
    kind = ""
    try:
        request = urllib.request.Request(f"{url}/api/events")  # noqa: S310 -- the scheme is checked
        if hub.credentials is not None:
            request.add_header("Authorization", hub.credentials.basic)
        trusted = TlsFiles.of({}).context() if url.startswith("https://") else None
        with urllib.request.urlopen(request, timeout=_SILENCE_SECONDS, context=trusted) as answer:  # noqa: S310 -- the same
            for line in answer:
                name, _, value = line.decode().strip().partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.UNAUTHORIZED:
            remedy = remedy_for_refusal(hub.credentials)
            raise RefusedError("auth", f"{url} does not let us in: {remedy}") from None
        raise UnreachableError(url, f"it answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            host = urllib.parse.urlsplit(url).hostname or ""
            raise UnreachableError(url, explain(reason, host)) from None
        if isinstance(reason, ConnectionRefusedError):
            reason = "nobody listens there; is the hub running? `headrace serve` starts one"
        raise UnreachableError(url, str(getattr(reason, "strerror", None) or reason).lower()) from None
    except InvalidURL:
        raise UsageError(f"{url!r}: expected http://host:port") from None
    except HTTPException as error:
        stopped = isinstance(error, IncompleteRead)
        raise UnreachableError(url, "the hub has stopped" if stopped else "it is not an http door") from None


def _total(rates: dict[str, float]) -> float:
    return sum(rates.values())


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
