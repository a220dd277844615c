"""A backbone and its frontends as processes: one sequence at all of them, whoever is killed.

Everybody publishes at every hub by several doors while one hub after the other is killed with SIGKILL and started
again on what it left. In the end the logs are read without a hub: where they overlap they are the same, messages and
entries in one order, and of one uuid. What was acknowledged is there, at the place that was told, and nothing is there
twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conftest import SOAK
from tests.hubprocess import HubProcess
from tests.system.observing import PATIENCE_SECONDS, head, until

import headrace
from headrace.client.link.client import LinkClient
from headrace.errors import HeadraceError
from headrace.log import Log
from headrace.message import Message
from headrace.wire.fyrehose.stream import Push, serialize

ROUNDS = 5 if SOAK else 1
SMALL = ("log.segment_bytes=64KiB", "log.segment_seconds=0.2", "log.snapshot_seconds=0.2")


class Load:
    """Publishers at every hub, and what they were told."""

    def __init__(self, random: Random) -> None:
        self.acknowledged: dict[int, bytes] = {}
        """What a publisher was told stands at a number."""
        self.sent: set[bytes] = set()
        """What is in the log once in the end: its publisher tried until it was told."""
        self.tried: set[bytes] = set()
        """What is in the log once or not at all: its publisher was never told."""
        self.stopping = False
        self._random = random
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, hubs: list[HubProcess]) -> None:
        """Publish at each hub by the link, fyrehose and SPP; by the link also at whichever is there."""
        for number, hub in enumerate(hubs):
            self._run(self._link(f"link{number}", await connected(hub.doors["tube_tcp"])))
            self._run(self._fyrehose(f"push{number}", hub.address("fyrehose")))
            self._run(self._spp(f"spp{number}", f"spp://{hub.doors['spp']}"))
        both = ",".join(hub.doors["tube_tcp"] for hub in hubs[1:])
        self._run(self._link("roaming", await connected(both), both))

    async def stop(self) -> None:
        """Let everybody finish."""
        self.stopping = True
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            await asyncio.gather(*self._tasks)

    async def progress(self, count: int = 20) -> None:
        """Wait until some more is acknowledged."""
        wanted = len(self.acknowledged) + count
        await until("more is acknowledged", lambda: len(self.acknowledged) >= wanted)

    def _run(self, publishing: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(publishing))

    async def _payloads(self, name: str) -> AsyncIterator[list[bytes]]:
        count = 0
        while not self.stopping:
            size = self._random.choice((1, 1, 2, 30))
            yield [f"{name}/{count + each}".encode() for each in range(size)]
            count += size
            await asyncio.sleep(self._random.choice((0.002, 0.02, 0.05)))

    async def _link(self, name: str, link: LinkClient, roaming: str | None = None) -> None:
        """Publish until it is acknowledged, under numbers of one's own: each is there once, at the place told.

        Who is roaming comes back to another hub than before, which may not have followed so far yet.
        """
        try:
            publisher = link.publisher(name)
            async for payloads in self._payloads(name):
                self.sent.update(payloads)
                first, last = await publisher.publish(payloads, topic=f"link/{name}")
                assert (first, last) == (first, (first or 0) + len(payloads) - 1)
                self.acknowledged.update(zip(range(first, last + 1), payloads, strict=True))
                if roaming is not None and self._random.random() < 0.2:
                    await link.close()
                    link = await connected(roaming)
                    publisher = link.publisher(name)
        finally:
            await link.close()

    async def _fyrehose(self, name: str, address: tuple[str, int]) -> None:
        async for payloads in self._payloads(name):
            self.tried.update(payloads)
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*address)
                writer.write(b"".join(serialize(Push(payload)) for payload in payloads))
                await writer.drain()
                writer.close()
                await writer.wait_closed()

    async def _spp(self, name: str, url: str) -> None:
        async for payloads in self._payloads(name):
            self.tried.update(payloads)
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(5), headrace.connect(url, timeout=1.0) as spp:
                    for payload in payloads:
                        await spp.publish(payload, topic=service_of(payload))


def service_of(payload: bytes) -> str:
    """The service that a payload is published to: one of a few that all hubs share, created by whoever is first."""
    return f"service/{int(payload.partition(b'/')[2]) % 8}"


async def connected(hosts: str) -> LinkClient:
    """A client that waits for a hub that is down to come back."""
    link: LinkClient = headrace.connect(f"tube://{hosts}", reconnect_timeout=PATIENCE_SECONDS)
    return await link.open()


async def in_step(backbone: HubProcess, *frontends: HubProcess) -> int:
    """Wait until all hubs have the same head; return it."""

    def same() -> bool:
        return len({head(hub) for hub in (backbone, *frontends)}) == 1

    await until("every hub has the same head", same)
    return head(backbone)


def rows(hub: HubProcess) -> list[Message]:
    """All that a stopped hub's log holds."""
    log = Log.open(hub.data / "log", read_only=True)
    kept = [message for batch in log.scan(log.first) for message in batch]
    log.close()
    return kept


def operations(hub: HubProcess) -> dict[int, Message]:
    """Messages and entries of a stopped hub's log, by position."""
    log = Log.open(hub.data / "log", read_only=True)
    batches = list(log.scan_ops(log.first_op))
    log.close()
    return {op: row for batch in batches for op, row in enumerate(batch, batch.op)}


def uuid(hub: HubProcess) -> str:
    log = Log.open(hub.data / "log", read_only=True)
    log.close()
    return str(log.uuid)


def upstream(backbone: HubProcess) -> tuple[str, ...]:
    return (f"node.upstream=tube://{backbone.doors['tube_tcp']}", "node.upstream_seconds=60")


@pytest.mark.slow
async def test_one_sequence_whoever_is_killed(tmp_path: Path, random: Random) -> None:
    load = Load(random)
    with HubProcess.start(tmp_path / "backbone", *SMALL) as backbone:
        link = headrace.connect(f"tube://{backbone.doors['tube_tcp']}")
        async with link:
            await link.publish([b"before", b"them"])
        with (
            HubProcess.start(tmp_path / "one", *SMALL, *upstream(backbone)) as one,
            # Every commit there waits for the disk.
            HubProcess.start(tmp_path / "two", *SMALL, "log.fsync=always", *upstream(backbone)) as two,
        ):
            await load.start([backbone, one, two])
            for hub in (one, backbone, two, backbone) * ROUNDS:
                await load.progress()
                hub.kill9()
                await asyncio.sleep(random.uniform(0.0, 0.3))
                await asyncio.to_thread(hub.restart)
            # One that comes while all is under way, and one that knows payloads alone.
            by_link, by_push = upstream(backbone), (f"node.upstream=fyrehose://{backbone.doors['fyrehose']}",)
            with (
                await asyncio.to_thread(HubProcess.start, tmp_path / "late", *SMALL, *by_link) as late,
                await asyncio.to_thread(HubProcess.start, tmp_path / "plain", *SMALL, *by_push) as plain,
            ):
                hubs = [backbone, one, two, late, plain]
                await load.progress()
                await load.stop()
                newest = await in_step(*hubs)
                for hub in reversed(hubs):
                    await asyncio.to_thread(hub.terminate)
    everything, every = rows(backbone), operations(backbone)
    assert list(every) == list(range(1, len(every) + 1))
    assert [message.seq for message in everything] == list(range(1, len(everything) + 1))
    for frontend in (one, two, late):
        # What a door still took in while others stopped has not come to all of them.
        copy = rows(frontend)
        assert uuid(frontend) == uuid(backbone)
        assert copy[-1].seq >= newest
        assert copy == everything[copy[0].seq - 1 : copy[-1].seq]
        # With each entry in its place, and none twice.
        copied_ops = operations(frontend)
        assert copied_ops == {op: every[op] for op in range(min(copied_ops), max(copied_ops) + 1)}
        assert any(row.origin == "log" for row in copied_ops.values())
    assert (rows(one)[0].seq, rows(two)[0].seq) == (3, 3)
    assert uuid(plain) != uuid(backbone)
    payloads = [(message.seq, message.payload) for message in everything]
    copied = [(message.seq, message.payload) for message in rows(plain)]
    assert copied[-1][0] >= newest
    assert copied == payloads[: len(copied)]
    by_number = {message.seq: message.payload for message in everything}
    assert {seq: by_number[seq] for seq in load.acknowledged} == load.acknowledged
    counts = Counter(message.payload for message in everything)
    assert {payload for payload, count in counts.items() if count > 1} == set()
    assert load.sent <= set(counts)
    assert set(counts) - {b"before", b"them"} <= load.sent | load.tried
    for door in ("fyrehose", "spp"):
        assert any(message.origin == door for message in everything)
    for message in everything:
        if message.origin == "spp":
            assert message.topic == service_of(message.payload)
