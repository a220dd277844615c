"""``headrace top``: what a hub does, second by second."""

from __future__ import annotations

import doctest
import json
import socket
from collections import deque
from io import StringIO
from threading import Thread
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import Command, Run
from tests.cli.pseudo_terminal import Terminal
from tests.hubprocess import HubProcess

import headrace
from headrace.cli.run import top
from headrace.cli.terminal.output import sparkline

STATUS: dict[str, Any] = {
    "node": {"name": "mill"},
    "mode": "WRK",
    "head": 1234,
    "first": 1,
    "disk": {"bytes": 2048},
    "fsync": "interval",
    "connections": 1,
    "uptime": 61.0,
    "consumers": {
        "near": {"floor": 1200, "behind": 7, "behind_exact": True, "dead": 0, "lost": 0},
        "far": {"floor": 10, "behind": 1224, "behind_exact": False, "dead": 2, "lost": 3},
    },
    "counters": {"refused": {"spp/malformed": 7}},
}
SAMPLE: dict[str, Any] = {
    "received": {"fyrehose": 1500.0},
    "delivered": {"spp": 20.0},
    "refused": 2.0,
    "repaired": 0.0,
    "skipped": 0.0,
    "conflated": 0.0,
}


def drawn() -> str:
    out = StringIO()
    past = {"in": deque([0.0, 1500.0]), "out": deque([20.0])}
    Console(file=out, width=160).print(top.draw(top.HubSecond(STATUS, SAMPLE), past))
    return out.getvalue()


def test_one_screen() -> None:
    screen = drawn()
    assert "mill WRK head 1,234" in screen
    assert "fyrehose 1,500" in screen
    assert screen.index("far") < screen.index("near")
    assert "≤1,224" in screen
    assert "spp: malformed" in screen


def test_clients_that_have_or_want_much() -> None:
    few = {"connections": 1, "subscriptions": 2, "state_bytes": 0, "paused": 0, "refused": 0}
    accounts = {
        "10.0.0.7": {**few, "state_bytes": 3 << 20},
        "gateway": {**few, "refused": 9},
        "10.0.0.8": few,
    }
    out = StringIO()
    past = {"in": deque([0.0]), "out": deque([0.0])}
    second = top.HubSecond({**STATUS, "accounts": accounts}, SAMPLE)
    Console(file=out, width=160).print(top.draw(second, past))
    screen = out.getvalue()
    assert "10.0.0.7" in screen
    assert "gateway" in screen
    assert "10.0.0.8" not in screen


def test_a_narrow_terminal_shows_the_newest() -> None:
    out = StringIO()
    past = {"in": deque([9.0] * 30 + [1.0, 8.0]), "out": deque([20.0])}
    console = Console(file=out, width=80)
    console.print(top.draw(top.HubSecond(STATUS, SAMPLE), past, 12))
    assert "█" * 10 + "▂▇" in out.getvalue()
    assert "█" * 11 not in out.getvalue()
    assert "…" not in out.getvalue()


def test_bars() -> None:
    assert doctest.testmod(top).failed == 0
    assert sparkline(deque()) == ""
    assert sparkline(deque([0.0, 0.0])) == "▁▁"


def test_json_lines_in_a_pipe(hub: HubProcess, command: Command) -> None:
    done = command("top", "--url", f"http://{hub.doors['http']}", "--count", "2")
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert second["time"] > first["time"]
    assert second["head"] >= first["head"]


def test_on_a_terminal(hub: HubProcess) -> None:
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        link.publish(b"x")
    with Terminal("top", "--url", f"http://{hub.doors['http']}") as terminal:
        terminal.read_until("messages/s")
        terminal.interrupt()
        assert terminal.wait() == 130


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://127.0.0.1"])
def test_nobody_there(run: Run, url: str) -> None:
    result = run("top", "--url", url)
    assert result.exit_code in (1, 2)
    assert result.output.count("\n") == 1
    assert ("`headrace serve` starts one" in result.output) == url.startswith("http")


def test_a_door_that_is_no_http_door(hub: HubProcess, run: Run) -> None:
    result = run("top", "--url", f"http://{hub.doors['http']}/nothing")
    assert (result.exit_code, "404" in result.output) == (1, True)


def test_a_url_that_is_none(run: Run) -> None:
    result = run("top", "--url", "http://127.0.0.1:abc")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "expected http://host:port" in result.stderr


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\x07\0 hello\n", "it is not an http door"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nevent", "the hub has stopped"),
    ],
)
def test_an_answer_that_is_none(run: Run, said: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30.0)

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(said)

        answering = Thread(target=answer)
        answering.start()
        result = run("top", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}")
        answering.join()
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert reason in result.stderr
