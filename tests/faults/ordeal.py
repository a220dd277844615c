"""Faults at seeded moments under load, for one hub or for three nodes, and what must be true in the end.

    ordeal = Ordeal(nodes, wires, seed, fsync="always")
    await ordeal.run(faults_of(seed, 5, FAULTS))

The seed chooses the moments, the nodes and the details. After each fault it waits until publishes are acknowledged
again: service resumes by itself. In the end everything is read from every node and by every door, and the checker
judges. If it finds something, or anything else fails, the history is kept in a file and the error names it, the seed
and the faults.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest
from tests.clusterprocess import Wires
from tests.faults.checker import violations
from tests.faults.history import History
from tests.faults.load import Doors, Load, until
from tests.faults.machine import Order, files_under
from tests.faults.processes import FaultyHub
from tests.system.observing import status

import headrace
from headrace.errors import HeadraceError
from headrace.log import Log
from headrace.log.damage.findings import Problem
from headrace.log.damage.verify import verify
from headrace.message import messages

KEPT = Path(os.environ.get("HEADRACE_HISTORIES", "/tmp"))
"""Where the histories of failed ordeals are kept."""

DAY = 25 * 3600 * 1_000_000
"""Microseconds of a clock's step: more than a day."""

BESIDE: tuple[tuple[Order | None, int], ...] = (
    (None, 0),
    (None, 0),
    (None, 0),
    (Order.WRITE_SHORT, 1),
    (Order.WRITE_SLOW, 3_000),
    (Order.SYNC_SLOW, 50_000),
)
"""What else may be wrong with a machine while a fault comes over it. Not its clock: a hub that starts meanwhile has
nothing to compare it with, and believes it."""

_SHOWN = 10


class Ordeal:
    """One seed's faults for some nodes; ``before`` is where the sequence was before it."""

    def __init__(
        self,
        nodes: Sequence[FaultyHub],
        wires: Wires,
        seed: int,
        *,
        fsync: str,
        before: int = 0,
        load: type[Load] = Load,
    ) -> None:
        self.random = Random(f"{seed} {len(nodes)}")
        self.seed = seed
        self.nodes = nodes
        self.wires = wires
        self.fsync = fsync
        self.history = History()
        self.suffered: list[str] = []
        """The faults so far."""
        self._before = before
        self._doors = [self._wired(number, node) for number, node in enumerate(nodes)]
        self.load = load(self.history, Random(self.random.random()), self._doors, before)

    @property
    def alone(self) -> bool:
        """Whether there is one hub, and no cluster."""
        return len(self.nodes) == 1

    async def run(self, faults: Sequence[str]) -> None:
        """Start clients, let faults come over the nodes, one after the other, and judge."""
        try:
            await self.load.start()
            await self.load.progress()
            for name in faults:
                await self.suffer(name)
            await self.judge()
        except BaseException as error:
            path = KEPT / f"headrace-history-{self.seed}-{len(self.nodes)}.jsonl"
            self.history.save(path)
            for node in self.nodes:
                # Their files too, and the traces of what they did to them.
                kept = path.with_suffix("") / node.directory.name
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(node.directory, kept)
            error.add_note(
                f"seed {self.seed}, fsync={self.fsync}: {', '.join(self.suffered)}; history in {path}"
            )
            raise
        finally:
            await self.load.cancel()

    async def suffer(self, name: str) -> None:
        """Let a fault come over a node that the seed chooses, and wait until service has resumed."""
        number = self.random.randrange(len(self.nodes))
        # Faults seldom come alone.
        beside, value = self.random.choice(BESIDE)
        self.suffered.append(f"{name} at {number}" + (f" beside {beside.name}" if beside else ""))
        machine = self.nodes[number].machine
        if beside is not None:
            machine.set(beside, value)
        await ALL_FAULTS[name](self, number)
        if beside is not None:
            machine.set(beside, 0)
        await self.load.progress()

    async def judge(self) -> None:
        """Let everybody come to the end, read everything, and have the checker find what cannot be."""
        await self.load.finish()
        await asyncio.to_thread(self._heal)
        head = await self._last_word()
        await self.load.caught_up(head)
        for node in self.nodes:
            await self._read_everything(node, head)
        found = list(violations(self.history))
        if found:
            pytest.fail("\n".join(map(str, found[:_SHOWN])), pytrace=False)

    def judge_logs(self) -> None:
        """Stop the nodes, and compare what is in their files with what was told."""
        for node in self.nodes:
            node.terminate()
            # An index of topics is made of the messages, not synced, and made again if it is wrong.
            found = (each for each in verify(node.data / "log") if isinstance(each, Problem))
            problems = [str(each) for each in found if not each.harmless]
            assert not problems, "\n".join(problems)
            log = Log.open(node.data / "log", read_only=True)
            try:
                name = f"files of {node.directory.name}"
                times = []
                for batch in log.scan(max(self._before + 1, log.first)):
                    for message in batch:
                        self.history.saw(name, message.seq, message.payload)
                        times.append(message.time)
                self.history.read_all(name, max(self._before + 1, log.first), log.head)
            finally:
                log.close()
            assert times == sorted(times)
            assert times[-1] <= (time.time() + 60) * 1e6, (
                "a clock that was wrong for a moment has moved time for good"
            )
        assert [str(each) for each in violations(self.history)] == []

    def restart(self, number: int) -> None:
        """Start a node again, which may have lost power; it comes back by itself."""
        self.nodes[number].restart()

    async def lose_power(self, number: int) -> None:
        """Cut a node's power, and start it again."""
        node = self.nodes[number]
        await self.spare_majority(number)
        certain = await asyncio.to_thread(node.lose_power, self.random)
        node.machine.heal()
        if not self.alone or self.fsync == "always":
            await asyncio.to_thread(node.restart)
            return
        # The setting allows it to have lost what was not synced. What was synced must be there. Looked at before the
        # hub runs: clients publish as soon as it does.
        kept, synced = _head_of(files_under(node.data), node), _head_of(certain, node)
        await asyncio.to_thread(node.restart)
        assert kept >= synced, f"messages {kept + 1} to {synced} were synced and are lost"
        self.history.forgot(kept)
        self.load.read(self._before)

    async def spare_majority(self, number: int) -> None:
        """Wait until the other nodes work, before one loses what it has not synced.

        If a majority had lost something, an operator would have to say what to do.
        """
        if not self.alone and self.fsync != "always":
            others = [node for place, node in enumerate(self.nodes) if place != number]
            await until("the others work", lambda: all(status(each)["mode"] == "WRK" for each in others))

    def ready(self, number: int) -> tuple[int, str]:
        """What ``/readyz`` says."""
        try:
            with urllib.request.urlopen(
                f"http://{self.nodes[number].doors['http']}/readyz", timeout=30
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def client_wires(self, number: int) -> list[tuple[str, str]]:
        """The wires between clients and a node."""
        return [("clients", f"{door}{number}") for door in Doors.WIRED if door in self.nodes[number].doors]

    def _wired(self, number: int, node: FaultyHub) -> Doors:
        wired = {
            door: self.wires.add("clients", f"{door}{number}", node.address(door))
            for door in Doors.WIRED
            if door in node.doors
        }
        return Doors(node.directory.name, wired, node.address("fyrehose"))

    def _heal(self) -> None:
        self.wires.mend()
        for node in self.nodes:
            node.machine.heal()
            if not node.running:
                node.restart()

    async def _last_word(self) -> int:
        """Publish a last message at each node; return its number."""
        head = 0
        for node in self.nodes:
            payload = f"last word at {node.directory.name} of {self.seed}".encode()
            op = self.history.invoked(f"end at {node.directory.name}", [payload])
            url = f"tube://{node.doors['tube_tcp']}"
            async with asyncio.timeout(60), headrace.connect(url) as link:
                publisher = link.publisher(f"end at {node.directory.name} {self.seed}")
                while True:
                    try:
                        answer = await publisher.publish(payload)
                        break
                    except HeadraceError:
                        await asyncio.sleep(0.05)
            self.history.acknowledged(op, answer.first, answer.last)
            head = max(head, answer.last or 0)
        for node in self.nodes:
            await until(f"{node.directory.name} has come to {head}", lambda: status(node)["head"] >= head)  # noqa: B023
        return head

    async def _read_everything(self, node: FaultyHub, head: int) -> None:
        name = f"read at {node.directory.name}"
        async with headrace.connect(f"tube://{node.doors['tube_tcp']}") as link:
            first = max(self._before + 1, (await link.head()).first)
            async for rows in link.read(first, head):
                for message in messages(rows):
                    self.history.saw(name, message.seq, message.payload)
        self.history.read_all(name, first, head)


Fault: TypeAlias = Callable[[Ordeal, int], Awaitable[None]]


async def _while(
    ordeal: Ordeal, number: int, orders: dict[Order, int], until_counted: Order | None = None
) -> None:
    """Give orders to a node's machine for a moment, or until it has counted something."""
    machine = ordeal.nodes[number].machine
    before = machine.count(until_counted) if until_counted is not None else 0
    for order, value in orders.items():
        machine.set(order, value)
    try:
        if until_counted is not None:
            await until(f"{until_counted.name} rises", lambda: machine.count(until_counted) > before)
        await asyncio.sleep(ordeal.random.uniform(0.05, 0.4))
    finally:
        for order in orders:
            machine.set(order, 0)


async def killed(ordeal: Ordeal, number: int) -> None:
    """Kill it, and start it again."""
    ordeal.nodes[number].kill9()
    await asyncio.sleep(ordeal.random.choice((0.0, 0.3)))
    await asyncio.to_thread(ordeal.restart, number)


async def power_lost(ordeal: Ordeal, number: int) -> None:
    """Lose power."""
    await ordeal.lose_power(number)


async def writes_fail(ordeal: Ordeal, number: int) -> None:
    """Fail all writes with EIO."""
    await _while(ordeal, number, {Order.WRITE_ERROR: errno.EIO}, Order.FAILED_WRITES)


async def disk_full(ordeal: Ordeal, number: int) -> None:
    """Fill the disk but for some bytes."""
    room = ordeal.random.choice((0, 100, 5000))
    await _while(ordeal, number, {Order.ROOM: room, Order.FULL: 1}, Order.FAILED_WRITES)


async def writes_short(ordeal: Ordeal, number: int) -> None:
    """Let writes take a part of what they are given."""
    await _while(ordeal, number, {Order.WRITE_SHORT: 1}, Order.SHORT_WRITES)


async def disk_slow(ordeal: Ordeal, number: int) -> None:
    """Let every write and sync take its time."""
    await _while(ordeal, number, {Order.WRITE_SLOW: 20_000, Order.SYNC_SLOW: 100_000})


async def disk_hangs(ordeal: Ordeal, number: int) -> None:
    """Let a sync hang until the disk comes back."""
    await _while(ordeal, number, {Order.SYNC_SLOW: 600_000_000})


async def sync_fails(ordeal: Ordeal, number: int) -> None:
    """Fail a sync once; the hub must not be trusted again before it is restarted, which power does."""
    await ordeal.spare_majority(number)
    machine = ordeal.nodes[number].machine
    before = machine.count(Order.FAILED_SYNCS)
    machine.set(Order.SYNC_ERROR, errno.EIO)
    await until("a sync fails", lambda: machine.count(Order.FAILED_SYNCS) > before)
    machine.heal()
    told: list[str] = []

    async def says_so() -> None:
        code, text = 200, ""
        while code == 200:
            code, text = await asyncio.to_thread(ordeal.ready, number)
        told.append(text)

    if ordeal.alone:
        # A snapshot or a seal may have met it, which is tried again and promises nothing to anybody.
        async with asyncio.timeout(60):
            telling = asyncio.create_task(says_so())
            tail = asyncio.create_task(_sync_of_the_log_failed(ordeal, number))
            done, pending = await asyncio.wait({telling, tail}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            for task in done:
                task.result()
    await ordeal.lose_power(number)


async def _sync_of_the_log_failed(ordeal: Ordeal, number: int) -> None:
    """Return when the hub goes on acknowledging, as it may if the log itself was not what failed to sync."""
    target = ordeal.load.acknowledged + 50
    await until("more is acknowledged", lambda: ordeal.load.acknowledged >= target)
    assert "sync" not in status(ordeal.nodes[number])["problems"], "acknowledged after a failed sync"


async def clock_steps(ordeal: Ordeal, number: int) -> None:
    """Set the clock wrong by more than a day for a moment."""
    await _while(ordeal, number, {Order.CLOCK_STEP: ordeal.random.choice((DAY, -DAY))})


async def hangs(ordeal: Ordeal, number: int) -> None:
    """Stop the process for a moment, in a cluster for long enough to lose its place."""
    with ordeal.nodes[number].stopped():
        await asyncio.sleep(ordeal.random.choice((0.2, 0.5) if ordeal.alone else (0.5, 4.0)))


async def starved(ordeal: Ordeal, number: int) -> None:
    """Let the process run for a tenth of the time."""
    await asyncio.to_thread(ordeal.nodes[number].starve, ordeal.random.uniform(0.2, 0.6), 0.1)


async def clients_cut_off(ordeal: Ordeal, number: int) -> None:
    """Hold back what clients and a node say to each other."""
    for source, target in ordeal.client_wires(number):
        if ordeal.random.random() < 0.7:
            ordeal.wires.cut(source, target)
        if ordeal.random.random() < 0.7:
            ordeal.wires.cut(target, source)
    await asyncio.sleep(ordeal.random.uniform(0.1, 0.5))
    ordeal.wires.mend()


async def connections_dropped(ordeal: Ordeal, number: int) -> None:
    """Close the clients' connections, some more than once."""
    for _ in range(ordeal.random.randint(1, 3)):
        for source, target in ordeal.client_wires(number):
            ordeal.wires.drop(source, target)
        await asyncio.sleep(ordeal.random.uniform(0.01, 0.2))


async def network_slow(ordeal: Ordeal, number: int) -> None:
    """Let everything take 20 ms more, each way."""
    others = [(number, other) for other in range(len(ordeal.nodes)) if other != number]
    for source, target in (*ordeal.client_wires(number), *others):
        ordeal.wires.slow(source, target, 0.02)
        ordeal.wires.slow(target, source, 0.02)
    await asyncio.sleep(ordeal.random.uniform(0.2, 0.5))
    ordeal.wires.mend()


async def node_cut_off(ordeal: Ordeal, number: int) -> None:
    """Cut a node off from the others, for less or more than it takes them to go on without it."""
    ordeal.wires.cut_off(number)
    await asyncio.sleep(ordeal.random.choice((0.3, 4.0)))
    ordeal.wires.mend()


async def cut_one_way(ordeal: Ordeal, number: int) -> None:
    """Hold back what a node says to the others, or what they say to it."""
    said = ordeal.random.random() < 0.5
    for other in range(len(ordeal.nodes)):
        if other != number:
            ordeal.wires.cut(*((number, other) if said else (other, number)))
    await asyncio.sleep(ordeal.random.choice((0.3, 4.0)))
    ordeal.wires.mend()


async def power_lost_everywhere(ordeal: Ordeal, number: int) -> None:
    """Lose power at all nodes at once, if they sync everything, and at one if not: then no majority may lose it."""
    if ordeal.fsync != "always":
        await ordeal.lose_power(number)
        return
    for node in ordeal.nodes:
        await asyncio.to_thread(node.lose_power, ordeal.random)
    await asyncio.gather(*(asyncio.to_thread(node.restart) for node in ordeal.nodes))


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        killed, power_lost, writes_fail, disk_full, writes_short, disk_slow, disk_hangs, sync_fails, clock_steps,
        hangs, starved, clients_cut_off, connections_dropped, network_slow,
    )
}  # fmt: skip
"""Faults of a hub or of a node, by name."""

CLUSTER_FAULTS: dict[str, Fault] = {
    fault.__name__: fault for fault in (node_cut_off, cut_one_way, power_lost_everywhere)
}

ALL_FAULTS = {**FAULTS, **CLUSTER_FAULTS}


def faults_of(seed: int, count: int, names: Iterable[str]) -> list[str]:
    """The faults of a seed: each comes once within some consecutive seeds, in an order by chance."""
    known = sorted(names)
    due = [known[(seed * count + place) % len(known)] for place in range(count)]
    Random(seed).shuffle(due)
    return due


def _head_of(files: dict[str, bytes], node: FaultyHub) -> int:
    """The last message in some files of a node, read from a copy."""
    copy = node.directory / "copy"
    for path, content in files.items():
        there = copy / Path(path).relative_to(node.data)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content)
    try:
        if not (copy / "log").exists():
            return 0
        log = Log.open(copy / "log")
        try:
            return log.tail
        finally:
            log.close()
    finally:
        shutil.rmtree(copy, ignore_errors=True)
