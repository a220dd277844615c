"""Three nodes as processes: one sequence, whoever is killed, stopped, emptied or cut off.

Everybody publishes by several doors at several nodes meanwhile. In the end the nodes' logs are read without a hub:
they are the same, operation by operation, and of one uuid; what was acknowledged is there at the place that was told,
nothing is there twice, and subscribers have received each number once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from tests.clusterprocess import Trio
from tests.conftest import SOAK
from tests.hubprocess import HubProcess
from tests.system.observing import PATIENCE_SECONDS, status, until

import headrace
from headrace.client.link.client import LinkClient
from headrace.errors import HeadraceError, RefusedError
from headrace.log import Log
from headrace.message import Message, messages
from headrace.wire.fyrehose.stream import Push, serialize

ROUNDS = 6 if SOAK else 2
SMALL = ("log.segment_bytes=256KiB", "log.segment_seconds=1", "log.snapshot_seconds=1")
BACK_SECONDS = 10.0
"""How long the cluster may take to be back after it lost a node."""


class Load:
    """Publishers at every node, subscribers, a consumer and a hold that moves, and what they were told."""

    def __init__(self, trio: Trio, random: Random) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.sent: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.received: list[list[int]] = []
        self.consumed: set[int] = set()
        self.before = status(trio.nodes[0])["head"]
        """Where the sequence was before."""
        self._trio = trio
        self._random = random
        self._stopping = False
        self._newest: list[bytes] = []
        """What was acknowledged since somebody last asked for progress."""
        self._publishing: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Publish by the link and by fyrehose; receive by both."""
        tubes = self._trio.hosts("tube_tcp").split(",")
        hoses = self._trio.hosts("fyrehose").split(",")
        for number in range(3):
            link = ",".join(tubes[number:] + tubes[:number])
            hose = ",".join(hoses[number:] + hoses[:number])
            self._publishing.append(asyncio.create_task(self._publish(f"link{number}", link)))
            self._receiving.append(asyncio.create_task(self._receive(hose)))
        self._publishing.append(asyncio.create_task(self._push("push", hoses)))
        self._publishing.append(asyncio.create_task(self._move_hold(",".join(tubes[1:] + tubes[:1]))))
        self._consuming = asyncio.create_task(self._consume(",".join(tubes[2:] + tubes[:2])))
        self._receiving.append(self._consuming)
        self._receiving.append(asyncio.create_task(self._follow(",".join(tubes))))

    async def stop(self, seconds: float = 2 * PATIENCE_SECONDS) -> None:
        """Let the publishers finish."""
        self._stopping = True
        async with asyncio.timeout(seconds):
            await asyncio.gather(*self._publishing)

    async def received_all(self, head: int) -> None:
        """Wait until every subscriber has everything, and let them go."""
        await until("all is received", lambda: all(each and each[-1] >= head for each in self.received))
        everything = set(range(self.before + 1, head + 1))
        await until("all is consumed", lambda: self._consuming.done() or self.consumed >= everything)
        if self._consuming.done():
            self._consuming.result()
        for task in self._receiving:
            task.cancel()
        await asyncio.gather(*self._receiving, return_exceptions=True)

    async def progress(self, count: int = 20) -> float:
        """Wait until some more is acknowledged; return how long it took until something was that is sent from now on.

        What was on its way before may be acknowledged by a node that is no more.
        """
        begun, before, sent = time.monotonic(), len(self.acknowledged), set(self.sent)
        new: list[bytes] = []
        self._newest = new
        await until("something new is acknowledged", lambda: not sent.issuperset(new))
        took = time.monotonic() - begun
        await until("more is acknowledged", lambda: len(self.acknowledged) >= before + count)
        return took

    async def _publish(self, name: str, hosts: str) -> None:
        async with headrace.connect(f"tube://{hosts}", reconnect_timeout=PATIENCE_SECONDS) as link:
            publisher = link.publisher(name)
            count = 0
            while not self._stopping:
                payloads = [
                    f"{name}/{count + each}".encode() for each in range(self._random.choice((1, 2, 30)))
                ]
                count += len(payloads)
                self.sent.update(payloads)
                first, last = await publisher.publish(payloads, topic=f"link/{name}")
                assert first is not None
                assert last == first + len(payloads) - 1
                self.acknowledged.update(zip(range(first, last + 1), payloads, strict=True))
                self._newest += payloads
                await asyncio.sleep(self._random.choice((0.005, 0.02, 0.05)))

    async def _move_hold(self, hosts: str) -> None:
        """Let go of what was acknowledged: each step is an entry."""
        async with headrace.connect(f"tube://{hosts}", reconnect_timeout=PATIENCE_SECONDS) as link:
            while not self._stopping:
                with contextlib.suppress(HeadraceError):
                    await link.hold("moving", max(self.acknowledged, default=1))
                await asyncio.sleep(0.02)
            await link.release("moving")

    async def _consume(self, hosts: str) -> None:
        """Acknowledge every message: each acknowledgement is an entry. One that is refused comes again."""
        name = f"from {self.before}"
        async with headrace.connect(f"tube://{hosts}", reconnect_timeout=PATIENCE_SECONDS) as link:
            while True:
                with contextlib.suppress(RefusedError):
                    async with link.consumer(name, from_seq=self.before + 1) as consumer:
                        async for message in consumer:
                            await consumer.ack(message)
                            self.consumed.add(message.seq)

    async def _push(self, name: str, hosts: list[str]) -> None:
        count = 0
        while not self._stopping:
            host, _, port = self._random.choice(hosts).rpartition(":")
            payload = f"{name}/{count}".encode()
            count += 1
            self.tried.add(payload)
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(serialize(Push(payload)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            await asyncio.sleep(0.05)

    async def _receive(self, hosts: str) -> None:
        numbers: list[int] = []
        self.received.append(numbers)
        async with headrace.connect(
            f"fyrehose://{hosts}", from_seq=self.before + 1, repair_timeout=PATIENCE_SECONDS
        ) as backbone:
            async for message in backbone:
                numbers.append(message.seq)  # noqa: PERF401 -- it never ends

    async def _follow(self, hosts: str) -> None:
        numbers: list[int] = []
        self.received.append(numbers)
        async with headrace.connect(f"tube://{hosts}", reconnect_timeout=PATIENCE_SECONDS) as link:
            async for message in link.follow(self.before + 1):
                numbers.append(message.seq)  # noqa: PERF401 -- it never ends


def operations(node: HubProcess) -> list[tuple[int, Message]]:
    """All that a stopped node's log holds, entries included, and its positions."""
    log = Log.open(node.data / "log", read_only=True)
    found = [
        (batch.op + place, row) for batch in log.scan_ops(log.first_op) for place, row in enumerate(batch)
    ]
    log.close()
    return found


async def ended(trio: Trio, load: Load) -> int:
    """Let the clients finish; check that all nodes and clients have the same, and return where they are."""
    await load.stop()
    primary = await asyncio.to_thread(trio.working)
    async with link_of(primary) as link:
        _, head = await link.publish(b"end")
    load.sent.add(b"end")
    await load.received_all(head)
    await asyncio.to_thread(trio.working)
    uuids = {status(node)["log"] for node in trio.nodes}
    assert len(uuids) == 1
    read, entries = [], []
    for node in trio.nodes:
        async with link_of(node) as link:
            read.append(await kept(link, load.before + 1, head))
            stood = link.entries(load.before, head - 1)
            entries.append([entry async for batch in stood for entry in batch.to_pylist()])
    assert read[0] == read[1] == read[2]
    assert entries[0] == entries[1] == entries[2]
    assert {entry["origin"] for entry in entries[0]} <= {"log"}
    check(load, read[0], head)
    return int(head)


def check(load: Load, everything: list[Message], head: int) -> None:
    """What was told is so."""
    assert [message.seq for message in everything] == list(range(load.before + 1, head + 1))
    by_number = {message.seq: message.payload for message in everything}
    assert {seq: by_number.get(seq) for seq in load.acknowledged} == load.acknowledged
    counts = Counter(message.payload for message in everything)
    assert {payload for payload, count in counts.items() if count > 1} == set()
    assert load.sent <= set(counts)
    assert set(counts) <= load.sent | load.tried
    for numbers in load.received:
        assert numbers[: head - load.before] == list(range(load.before + 1, head + 1))


def link_of(node: HubProcess) -> LinkClient:
    """A client of one node alone, to be opened."""
    link: LinkClient = headrace.connect(f"tube://{node.doors['tube_tcp']}")
    return link


async def kept(link: LinkClient, first: int, last: int | None = None) -> list[Message]:
    """What a node has of the sequence, read by the link."""
    return [message async for batch in link.read(first, last) for message in messages(batch)]


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three nodes; each test leaves them whole."""
    with Trio.start(tmp_path_factory.mktemp("trio"), *SMALL) as nodes:
        yield nodes


@pytest.mark.slow
async def test_the_primary_is_killed_and_killed_again(trio: Trio, random: Random) -> None:
    await asyncio.to_thread(trio.working)
    load = Load(trio, random)
    await load.start()
    await load.progress()
    for _ in range(ROUNDS):
        primary = await asyncio.to_thread(trio.primary)
        primary.kill9()
        assert await load.progress() < BACK_SECONDS
        await asyncio.to_thread(primary.restart)
        await load.progress()
    # Stopped like a machine that hangs: its connections are there, and nothing comes. Then it goes on as ever.
    primary = await asyncio.to_thread(trio.primary)
    os.kill(primary.pid, signal.SIGSTOP)
    try:
        assert await load.progress() < BACK_SECONDS
    finally:
        os.kill(primary.pid, signal.SIGCONT)
    await load.progress()
    # One whose disk is gone.
    emptied = trio.nodes[(trio.nodes.index(primary) + 1) % 3]
    emptied.kill9()
    shutil.rmtree(emptied.data)
    await load.progress()
    await asyncio.to_thread(emptied.restart)
    await load.progress()
    await ended(trio, load)


@pytest.mark.slow
async def test_a_minority_accepts_nothing(trio: Trio) -> None:
    primary = await asyncio.to_thread(trio.working)
    number = trio.nodes.index(primary)
    others = [node for node in trio.nodes if node is not primary]
    link = await link_of(primary).open()
    first, _ = await link.publish(b"before")
    trio.wires.cut_off(number)
    # The old primary may have taken it in, but it can be committed nowhere.
    with pytest.raises(HeadraceError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await link.publish(b"in the minority")
    await until("the minority knows it", lambda: status(primary)["mode"] == "ERR")
    assert "no majority" in status(primary)["cluster"]["problem"]
    with pytest.raises(HeadraceError, match="majority"):
        await link.publish(b"again in the minority")
    assert (await kept(link, first))[0].payload == b"before"
    await link.close()
    async with link_of(others[0]) as elsewhere:
        second, _ = await elsewhere.publish(b"in the majority")
    trio.wires.mend()
    await asyncio.to_thread(trio.working)
    for node in trio.nodes:
        async with link_of(node) as link:
            payloads = [message.payload for message in await kept(link, first)]
        assert b"in the majority" in payloads
        assert not any(b"minority" in payload for payload in payloads)
    assert second > first


@pytest.mark.slow
async def test_wires_that_are_cut_one_way(trio: Trio, random: Random) -> None:
    await asyncio.to_thread(trio.working)
    load = Load(trio, random)
    await load.start()
    await load.progress()
    primary = await asyncio.to_thread(trio.primary)
    number = trio.nodes.index(primary)
    for other in range(3):
        if other != number:
            # It hears everybody, and nobody hears it.
            trio.wires.cut(number, other)
    await until("another one is primary", lambda: primary_of(trio, number) not in (None, f"node{number}"))
    trio.wires.mend()
    await load.progress()
    backup = (trio.nodes.index(await asyncio.to_thread(trio.primary)) + 1) % 3
    for other in range(3):
        if other != backup:
            trio.wires.cut(other, backup)
    await load.progress()
    trio.wires.mend()
    await load.progress()
    await ended(trio, load)


def primary_of(trio: Trio, without: int) -> str | None:
    """Whom the others hold for the primary."""
    found = {status(node)["cluster"]["primary"] for place, node in enumerate(trio.nodes) if place != without}
    return found.pop() if len(found) == 1 else None


@pytest.mark.slow
async def test_the_logs_are_the_same_in_the_end(trio: Trio) -> None:
    primary = await asyncio.to_thread(trio.working)
    head = status(primary)["head"]
    for node in trio.nodes:
        await asyncio.to_thread(node.terminate)
    logs = [operations(node) for node in trio.nodes]
    common = min(len(log) for log in logs)
    for log in logs:
        assert log[:common] == logs[0][:common]
        numbers = [row.seq for _, row in log[:common] if row.origin != "log"]
        assert numbers == list(range(1, head + 1))
    assert [op for op, _ in logs[0]] == list(range(1, len(logs[0]) + 1))
