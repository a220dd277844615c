"""The matcher fleet in a Spark of its own, before a dispatcher and connectors that are processes of their own.

Its Python workers, the dispatcher, a connector, the hub and the whole fleet are killed in turn while messages flow. In
the end each client has got exactly what was for it, in order, none twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from tests.hubprocess import HubProcess
from tests.system.observing import counter, eventually, status
from tests.system.test_routing import Client, logged, publish, send

from headrace.spark.runtime import python_workers

SECONDS = 90.0
"""A JVM starts in ten, on a machine that has nothing else to do."""


class Fleet:
    """``headrace pipeline run match`` with everything it starts, in a process group of its own."""

    def __init__(self, hub: HubProcess, dispatcher: HubProcess, directory: Path) -> None:
        line = [sys.executable, "-m", "headrace", "pipeline", "run", "match", "--master", "local[2]"]
        line += [
            "--servers",
            hub.doors["tube_tcp"],
            "--param",
            f"dispatchers={dispatcher.doors['dispatcher']}",
        ]
        line += ["--param", f"path={directory / 'match'}", "--memory", "512m", "--json"]
        self._out = directory / "fleet.txt"
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=directory, start_new_session=True
            )

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that do tasks: those that plan are started by Spark's own daemon."""
        everything = psutil.Process(self._process.pid).children(recursive=True)
        return [worker for daemon in everything if _has_workers(daemon) for worker in daemon.children()]

    def kill_workers_at_work(self, bring: Callable[[], None]) -> None:
        """Kill those who do tasks, at their tasks: Spark starts others, and has the tasks done again."""
        while "Lost task" not in self._out.read_text():
            workers = self.workers
            assert workers
            for worker in workers:
                worker.suspend()
            bring()
            eventually("there is work", lambda: self._stages_under_way, SECONDS)
            for worker in workers:
                worker.kill()
            # None is lost if they are killed before they get it.
            eventually("others do it", lambda: not self._stages_under_way, SECONDS)

    @property
    def _stages_under_way(self) -> Any:
        """Those that Spark's pages tell of."""
        [started] = (line for line in self._out.read_text().splitlines() if '"event":"started"' in line)
        api = f"{json.loads(started)['ui']}/api/v1/applications"
        [application] = _get(api)
        return _get(f"{api}/{application['id']}/stages?status=active")

    def kill9(self) -> None:
        """Kill all of it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def running(self) -> bool:
        return self._process.poll() is None


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return json.load(answer)


def _has_workers(process: psutil.Process) -> bool:
    try:
        # The JVM's command line has the module, too, among its settings.
        return process.cmdline()[1:3] == ["-m", python_workers.__name__]
    except psutil.NoSuchProcess:
        return False  # Or a zombie.


@pytest.mark.slow
@pytest.mark.spark
def test_whatever_is_killed_every_client_gets_its_messages_once(tmp_path: Path, random: Random) -> None:
    with ExitStack() as stack:

        def run(name: str, roles: str, *sets: str) -> HubProcess:
            named = (f"node.name={name}", f"node.roles={roles}", "matching.engine=spark")
            return stack.enter_context(HubProcess.start(tmp_path / name, *named, *sets))

        hub = run("hub", "sequence,publisher,tube,connector")
        up = f"node.upstream={hub.url('tube_tcp').replace('tube_tcp', 'tube')}"
        east = run("east", "connector", up)
        connectors = [hub, east]
        routers = ",".join(connector.doors["router"] for connector in connectors)
        dispatcher = run("dispatcher", "dispatcher", up, f"dispatcher.connectors={routers}")
        clients = []
        for number in range(6):
            low = random.randrange(60)
            client = Client(connectors[number % 2], number, low, low + 30, tmp_path)
            stack.callback(client.end)
            clients.append(client)
        everyone = len(clients)
        eventually("all subscribe", lambda: status(hub)["subscribers"]["subscriptions"] == everyone)

        fleet = Fleet(hub, dispatcher, tmp_path)
        stack.callback(fleet.kill9)

        def all_live() -> bool:
            """Whether every client is here, and pushed to by the fleet instead of fed from the log."""
            assert fleet.running, (tmp_path / "fleet.txt").read_text()[-2000:]
            found = [status(connector)["subscribers"] for connector in connectors]
            return sum(f["sdk"] for f in found) == everyone and not any(f["sdk_behind"] for f in found)

        sent = 0

        def burst(count: int) -> None:
            nonlocal sent
            send(hub, *(publish(random.randrange(100), b"m%d" % (sent + each)) for each in range(count)))
            sent += count

        def flow() -> None:
            """See that all is well, and then bring more than can be pushed before the next thing happens."""
            eventually("the fleet's pushes reach all", all_live, SECONDS)
            pushed = counter(dispatcher, "dispatched")
            burst(200)
            eventually("they are pushed", lambda: counter(dispatcher, "dispatched") > pushed + 50, SECONDS)
            burst(1000)

        flow()
        fleet.kill_workers_at_work(lambda: burst(200))
        flow()
        for process in random.sample([dispatcher, east, hub], 3):
            process.kill9()
            process.restart()
            flow()
        # What it has not pushed is in the log.
        fleet.kill9()
        send(hub, *(publish(x, b"the end") for x in range(0, 100, 10)))
        eventually("the end is logged", lambda: [text for *_, text in logged(hub)][-10:] == ["the end"] * 10)

        messages = list(logged(hub))
        for client in clients:
            # From wherever the fleet and the log have it.
            expected = [(seq, text) for seq, x, text in messages if client.low <= x <= client.high]
            most = len(expected)
            eventually("it gets all", lambda client=client, most=most: len(client.got) >= most, SECONDS)
            assert client.got == expected
