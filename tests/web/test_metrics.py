"""The metrics, read back as Prometheus reads them."""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.net.raw import TcpPeer, push, running_hub, until

from headrace import web
from headrace.hub.routing.subscriptions import (
    subscribe,
)
from headrace.net.server.process import Server
from headrace.web import metric_names, metrics


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_hub(tmp_path, http=web.start) as server:
        yield server


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Series:
    """Every series by its name and labels; none may be there twice."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("headrace_")
        assert family.documentation
        for sample in family.samples:
            # To Prometheus an empty label is none.
            key = (sample.name, labels(**{name: value for name, value in sample.labels.items() if value}))
            assert key not in found
            found[key] = sample.value
    return found


def labels(**pairs: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pairs.items()))


async def test_over_http(server: Server) -> None:
    with await TcpPeer.connect(server) as peer:
        await peer.subscribe()
        await peer.send(push(b"a") + push(b"b"))
        await peer.delivers(1, 2)
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{server.doors['http']}/metrics") as answer,
        ):
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            series = parsed(await answer.text())
    assert series["headrace_head", ()] == 2
    assert series["headrace_tail", ()] == 2
    assert series["headrace_first", ()] == 1
    assert series["headrace_ready", ()] == 1
    assert series["headrace_connections", ()] >= 1
    assert series["headrace_log_segments", ()] == 1
    assert series["headrace_log_bytes", ()] == server.hub.log.size
    assert series["headrace_received_total", labels(origin="fyrehose")] == 2
    assert series["headrace_delivered_total", labels(door="fyrehose", transport="tcp")] == 2


async def test_metrics_and_status_know_the_same_counters(server: Server) -> None:
    with await TcpPeer.connect(server) as peer:
        await peer.send(b"\x00")
        await until(lambda: server.hub.counters.get("refused", door="fyrehose", reason="malformed"))
    series = parsed(metrics.render(server).decode())
    counted = {
        (f"headrace_{name}_total", labels(**pairs)): value for name, pairs, value in server.hub.counters
    }
    assert counted.items() <= series.items()
    assert sum(name.endswith("_total") for name, _ in series) == len(counted)


async def test_what_subscriptions_take(server: Server) -> None:
    field = json.dumps({"use": 1, "strval": "Praha"})
    server.hub.submit(subscribe(b"a" * 12, server.routing.id, {"city": field}))
    await until(lambda: len(server.routing.matching) == 1)
    series = parsed(metrics.render(server).decode())
    assert series["headrace_subscriptions", ()] == series["headrace_subscriptions_here", ()] == 1
    assert series["headrace_subscription_bytes", ()] == server.routing.matching.matcher.memory().total > 0


async def test_labels_that_need_escaping(server: Server) -> None:
    server.hub.counters.add("odd", value='quote " backslash \\ newline \n')
    series = parsed(metrics.render(server).decode())
    assert series["headrace_odd_total", labels(value='quote " backslash \\ newline \n')] == 1


async def test_counters_of_one_name_with_different_labels(server: Server) -> None:
    counters = server.hub.counters
    counters.add("mixed", 1)
    counters.add("mixed", 2, door="spp")
    counters.add("mixed", 3, reason="slow")
    counters.add("mixed", 4, reason="late")
    series = parsed(metrics.render(server).decode())
    values = sorted(value for (name, _), value in series.items() if name == "headrace_mixed_total")
    assert values == [1, 2, 3, 4]


ROOT = Path(__file__).parents[2]
COUNTING = ("add", "counter", "report")


def counted_in(tree: ast.AST) -> dict[str, set[str]]:
    """The names of the counters that a module adds to, and their labels."""
    found: dict[str, set[str]] = {}
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
            continue
        named = call.args[0]
        if (
            call.func.attr in COUNTING
            and ast.unparse(call.func.value).endswith("counters")
            and isinstance(named, ast.Constant)
        ):
            labels = {word.arg for word in call.keywords if word.arg not in (None, "at_will")}
            found.setdefault(str(named.value), set()).update(filter(None, labels))
    return found


def test_every_name_in_the_code_has_its_meaning_and_its_labels() -> None:
    found: dict[str, set[str]] = {"refused": {"door", "reason"}}  # That has a method of its own.
    for path in (ROOT / "src").rglob("*.py"):
        for name, given in counted_in(ast.parse(path.read_text())).items():
            found.setdefault(name, set()).update(given)
    assert found == {name: set(labels) for name, (labels, _) in metric_names.COUNTS.items()}


def test_the_documentation_has_every_name() -> None:
    assert metric_names.reference() in (ROOT / "docs" / "deploy.md").read_text()
    assert metric_names._plain("A b.") == "a b"
