"""Services after ``kill -9`` are what the log says, and what a subscriber was told is in it.

Changes flow, the hub is killed at a random moment and started again on what it left, with other settings. Each time the
log is read without a hub and followed by a plain model; the hub that comes back must offer the same services with the
same objects.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conftest import SOAK
from tests.hub.service_model import Model, merged
from tests.hubprocess import HubProcess
from tests.net.spp_peer import publish, string, subscribe
from tests.system.observing import eventually

from headrace.log import Log

IDS = ["fleet/1", "fleet/2", "fleet/3", "text"]
ROUNDS = 40 if SOAK else 5
FAST = ("log.segment_bytes=64KiB", "log.segment_seconds=0.05", "log.snapshot_seconds=0.05")


@pytest.mark.slow
def test_a_killed_hub_comes_back_with_what_its_log_says(tmp_path: Path, random: Random) -> None:
    with HubProcess.start(tmp_path, *FAST) as hub:
        for _ in range(ROUNDS):
            seen = _traffic(hub, random)
            model, values = _follow(hub.data / "log")
            for name, value in seen.items():
                assert value in values[name], f"{name} was told what the log does not know"
            hub.restart(
                f"services.auto={random.choice(('true', 'false'))}", f"services.max={random.choice((3, 9))}"
            )
            assert _offered(hub) == {name: value for name, (_, value) in model.services.items()}
        hub.terminate()


def _traffic(hub: HubProcess, random: Random) -> dict[str, Any]:
    """Change services, kill the hub; give what a subscriber knew of each at the end."""
    address = hub.address("spp")
    publishing = threading.Thread(target=_publish, args=(address, Random(random.random())))
    objects: dict[str, Any] = {}
    subscribing = threading.Thread(target=_subscriber, args=(address, objects))
    publishing.start()
    subscribing.start()
    try:
        eventually("changes flow", lambda: objects)
        time.sleep(random.uniform(0.01, 0.4))
        hub.kill9()
    finally:
        publishing.join(10)
        subscribing.join(10)
    return objects


def _publish(address: tuple[str, int], random: Random) -> None:
    with contextlib.suppress(ConnectionError), socket.create_connection(address) as sock:
        for number in range(1_000_000):
            # The first value of each decides its kind.
            name = IDS[number] if number < len(IDS) else random.choice(IDS)
            value: Any = {
                random.choice("abc"): random.choice((number, None, {"x": number}, {"x": None}, [number]))
            }
            if name == "text" or (number >= len(IDS) and random.random() < 0.1):
                value = f"no object {number}"
            sock.sendall(publish(name, json.dumps(value).encode()))
            if not number % 20:
                time.sleep(0.001)


def _subscriber(address: tuple[str, int], objects: dict[str, Any]) -> None:
    """Subscribe everything that is offered, and keep each object current until the hub is gone."""
    with contextlib.suppress(ConnectionError), socket.create_connection(address) as sock:
        for msgtype, name, message in _packets(sock):
            if msgtype == 1:
                sock.sendall(subscribe(name))
            elif isinstance(objects.get(name), dict):
                objects[name] = merged(objects[name], json.loads(message))
            else:
                objects[name] = _value(message)


def _offered(hub: HubProcess) -> dict[str, Any]:
    """Every service that the hub offers, with its object."""
    objects: dict[str, Any] = {}
    with socket.create_connection(hub.address("spp"), 30) as sock:
        # Who subscribes nothing and sends no more is offered what there is, and that is all.
        sock.shutdown(socket.SHUT_WR)
        names = [name for msgtype, name, _ in _packets(sock) if msgtype == 1]
    with socket.create_connection(hub.address("spp"), 30) as sock:
        sock.sendall(b"".join(subscribe(name) for name in names))
        for msgtype, name, message in _packets(sock):
            if msgtype == 16:
                objects[name] = _value(message)
                if len(objects) == len(names):
                    break
    return objects


def _follow(directory: Path) -> tuple[Model, dict[str, list[Any]]]:
    """The model at the end of a log, and every value that each service has had."""
    model = Model()
    values: dict[str, list[Any]] = {name: [] for name in IDS}
    log = Log.open(directory, read_only=True)
    for batch in log.scan_ops(log.first_op):
        for entry in batch:
            model.follow(entry)
            name = entry.topic.removeprefix("service/") if entry.origin == "log" else entry.topic
            if name in model.services:
                values[name].append(model.services[name][1])
    log.close()
    return model, values


def _packets(sock: socket.socket) -> Iterator[tuple[int, str, bytes]]:
    with sock.makefile("rb") as stream:
        while len(header := stream.read(8)) == 8:
            length = int.from_bytes(header[4:])
            data = stream.read(length)
            if len(data) < length:
                return
            size = 4 + int.from_bytes(data[:4])
            assert data[:size] == string(data[4:size])
            yield int.from_bytes(header[:4]), data[4:size].decode(), data[size + 4 :]


def _value(message: bytes) -> Any:
    try:
        value = json.loads(message)
    except ValueError:
        return message
    return value if isinstance(value, dict) else message
