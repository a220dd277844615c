"""Nodes of a cluster whose disk does not answer: it is told, the others go on, and nobody is caught."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.net.cluster.test_node import Make, Nodes, kept, link_of, until

from headrace import web
from headrace.cluster.membership import SILENCE_SECONDS
from headrace.net.server.machine import log_disk
from headrace.net.server.process import Server


class Disk:
    """A disk that hangs when a test wants it to, for all files below one directory."""

    def __init__(self) -> None:
        self.hung: dict[str, Path] = {}
        """The directory in which each call of the system waits, by the call's name."""
        self._answers = threading.Event()

    def hang(self, directory: Path, *calls: str) -> None:
        self._answers.clear()
        self.hung.update(dict.fromkeys(calls, directory))

    def answer(self) -> None:
        self.hung.clear()
        self._answers.set()

    def waiting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, which waits while the disk hangs."""

        def wait(fd: int, *arguments: Any) -> Any:
            directory = self.hung.get(name)
            if directory is not None and Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(directory):
                self._answers.wait(60)
            return call(fd, *arguments)

        return wait


CALLS = ("fsync", "fdatasync", "pwritev", "pwrite")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(log_disk, "PATIENCE", 0.02)
    played = Disk()
    for name in CALLS:
        monkeypatch.setattr(os, name, played.waiting(name, getattr(os, name)))
    yield played
    played.answer()


@pytest.fixture
async def make(tmp_path: Path, disk: Disk) -> AsyncIterator[Make]:
    """Start three nodes with health checks; they are drained when the disk answers again."""
    running: list[Nodes] = []

    async def begin(*sets: str) -> Nodes:
        nodes = Nodes(tmp_path, "limits.drain_seconds=2", *sets, http=web.start)
        running.append(nodes)
        for number in range(3):
            await nodes.start(number)
        return nodes

    yield begin
    disk.answer()
    for nodes in running:
        await asyncio.gather(*(server.drain() for server in nodes.servers.values()))


async def asked(server: Server, path: str) -> tuple[int, dict[str, Any]]:
    """What a health check answers."""
    where = f"http://{server.doors['http']}{path}"
    async with aiohttp.ClientSession() as session, session.get(where) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("fsync", "first"),
    [("interval", CALLS[:2]), ("always", CALLS[:2]), ("never", CALLS)],
    ids=["a sync hangs, interval", "a sync hangs, always", "an append hangs first"],
)
async def test_a_primary_whose_disk_hangs_is_told_and_gives_way(
    make: Make, disk: Disk, fsync: str, first: tuple[str, ...]
) -> None:
    nodes = await make(f"log.fsync={fsync}")
    primary = await nodes.work()
    number = next(number for number, server in nodes.servers.items() if server is primary)
    others = [server for server in nodes.servers.values() if server is not primary]
    name = primary.settings.node.name
    async with link_of(primary) as link:
        await link.publish(b"before")
    await until("all have it", lambda: all(each.hub.log.head == 1 for each in others))

    disk.hang(nodes.data(number), *first)
    sent = [asyncio.create_task(publish(primary, b"%d" % place)) for place in range(3)]
    await until("it is slow", lambda: primary._cluster._replication._disk.slow)  # type: ignore[union-attr]
    # From here on not even the system's cache takes anything.
    disk.hang(nodes.data(number), *CALLS)
    sent += [asyncio.create_task(publish(primary, b"%d" % place)) for place in range(3, 6)]

    def told() -> bool:
        return "the disk has not answered for" in str(primary.problem)

    await until("it is told", told)
    assert (await asked(primary, "/healthz"))[0] == 200
    status, reason = await asked(primary, "/readyz")
    assert (status, reason["ready"]) == (503, False)
    assert "the disk has not answered for" in reason["reason"]

    def taken_over() -> bool:
        present = {each.status()["cluster"]["primary"] for each in others}  # type: ignore[index]
        return len(present) == 1 and not present & {None, name}

    await until("another takes over", taken_over)
    async with link_of(others[0]) as link:
        await link.publish(b"meanwhile")
    # It is heard all the time: it answers the others' heartbeats.
    since = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < since + SILENCE_SECONDS / 4:
        for each in others:
            heard = [info.name for info in each._cluster.membership.neighbours]  # type: ignore[union-attr]
            assert name in heard
        await asyncio.sleep(0.1)

    disk.answer()
    await asyncio.gather(*sent)
    await nodes.work()
    assert primary.problem is None
    logs = [[row.payload for row in await kept(server)] for server in nodes.servers.values()]
    assert logs[0] == logs[1] == logs[2]
    assert sorted(logs[0]) == sorted([b"before", b"meanwhile", *(b"%d" % place for place in range(6))])


async def publish(server: Server, payload: bytes) -> None:
    """Publish a message, again until it is taken, and once whatever happens."""
    async with link_of(server) as link:
        await link.publisher(f"of {payload.decode()}").publish(payload)


async def test_a_backup_whose_disk_hangs_holds_up_nobody(make: Make, disk: Disk) -> None:
    nodes = await make("log.fsync=always")
    primary = await nodes.work()
    number, backup = next((number, each) for number, each in nodes.servers.items() if each is not primary)
    view = primary.status()["cluster"]["view"]  # type: ignore[index]
    disk.hang(nodes.data(number), *CALLS[:2])
    async with link_of(primary) as link:
        await link.publish([b"one", b"two"])
        await until("it is told", lambda: "the disk has not answered for" in str(backup.problem))
        assert backup.status()["mode"] != "WRK"
        await link.publish([b"three"])
    assert primary.status()["cluster"]["view"] == view  # type: ignore[index]
    disk.answer()
    await nodes.work()
    assert [row.payload for row in await kept(backup)] == [b"one", b"two", b"three"]


async def test_no_node_that_knows_no_primary_shows_wrk(make: Make) -> None:
    shown: set[tuple[str, bool]] = set()
    nodes = await make()

    def seen() -> set[str | None]:
        """Look at every node; return the primaries that they know."""
        known: set[str | None] = set()
        for server in nodes.servers.values():
            facts: Any = server.status()
            primary = facts["cluster"]["primary"]
            known.add(primary)
            for mode in (facts["mode"], facts["cluster"]["nodes"][0]["mode"]):
                shown.add((mode, primary is not None))
        return known

    await until("all know one", lambda: len(known := seen()) == 1 and known != {None})
    primary = await nodes.work()
    name = primary.settings.node.name
    await nodes.stop(next(number for number, server in nodes.servers.items() if server is primary))
    await until("they know another", lambda: len(known := seen()) == 1 and not known & {None, name})
    await until("they work", lambda: (seen(), nodes.servers and ("WRK", True) in shown)[1])
    assert ("WRK", False) not in shown
