"""A new hub's first message is number 1, whoever looks, with Spark's jobs at work beside it."""

from __future__ import annotations

import json
import socket
import struct
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command
from tests.hubprocess import HubProcess

import headrace
from headrace.wire.fyrehose.stream import Request, serialize

SECONDS = 120.0


def get(hub: HubProcess, path: str) -> Any:
    with urllib.request.urlopen(f"http://{hub.doors['http']}{path}", timeout=10) as answer:
        return json.load(answer)


def wait_for(hub: HubProcess, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, hub.stderr
        time.sleep(0.1)


def have_looked(hub: HubProcess) -> bool:
    """Whether all of the pipeline's jobs have looked for messages."""
    jobs = get(hub, "/api/status").get("pipeline", {}).get("jobs", {})
    return len(jobs) == 3 and all(job.get("batch") is not None for job in jobs.values())


def raw_deliver(hub: HubProcess) -> tuple[int, bytes]:
    """The first message as a client reads it that knows only the document of fyrehose."""
    with socket.create_connection(hub.address("fyrehose"), timeout=10) as sock, sock.makefile("rb") as stream:
        sock.sendall(serialize(Request("0.0.0.0", 0, 1, 1)))
        assert stream.read(1) == b"\x01"
        size, high, low = struct.unpack(">HHI", stream.read(8))
        return high << 32 | low, stream.read(size)


@pytest.mark.spark
@pytest.mark.slow
def test_the_first_message_is_1_everywhere(tmp_path: Path, command: Command) -> None:
    """The pipeline publishes nothing before there is something to tell of, and then after it, without a gap."""
    with HubProcess.start(tmp_path, "pipeline.params.interval=0.5", command="up") as hub:
        wait_for(hub, lambda: have_looked(hub))
        link = ("--url", f"tube://{hub.doors['tube_tcp']}")
        # Bookkeeping before the first message.
        with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as client:
            client.create_service("fleet/42")
        assert get(hub, "/api/status")["head"] == 0
        assert get(hub, "/api/status")["counters"]["entries"] >= 1

        published = command("pub", "hello", "--topic", "greetings", *link)
        assert json.loads(published.stdout) == {"first": 1, "last": 1}

        tailed = command("tail", "--from", "earliest", "--count", 1, *link)
        assert (json.loads(tailed.stdout)["seq"], json.loads(tailed.stdout)["payload"]) == (1, "hello")
        door = f"fyrehose://{hub.doors['fyrehose']}"
        delivered = command("sub", "--from", 1, "--count", 1, "--url", door)
        assert json.loads(delivered.stdout) == {"seq": 1, "payload": "hello"}
        assert raw_deliver(hub) == (1, b"hello")
        assert get(hub, "/api/messages?from=1&count=1")["messages"][0]["seq"] == 1
        assert get(hub, "/api/messages/1")["payload"] == "hello"
        dumped = command("log", "dump", "--data", hub.data, "--to", 1)
        assert json.loads(dumped.stdout)["seq"] == 1

        told = {"verify", "measure/second", "measure/minute", "measure/hour"}
        with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as client:
            wait_for(hub, lambda: {each["id"] for each in client.services()} >= told)
            rows = [seq for batch in client.read(1) for seq in batch["seq"].to_pylist()]
            assert rows == list(range(1, len(rows) + 1))
            assert len(rows) > 1
        hub.terminate()
