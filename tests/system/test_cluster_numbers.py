"""Three nodes that write down a lot about themselves: only messages have numbers, at every node and by every door.

Publishers at each node, consumers that acknowledge, holds that move and services that change: all but the first of
these write entries. A subscriber that knows only the fyrehose document receives 1, 2, 3, … at every node, and no empty
message among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack

import pytest
from tests.clusterprocess import Trio
from tests.hubprocess import HubProcess
from tests.system.observing import PATIENCE_SECONDS, eventually, head, status
from tests.system.rawclient import Publisher, Subscriber

import headrace
from headrace.client.link.client import LinkClient
from headrace.log import Log
from headrace.message import Message, messages

pytestmark = pytest.mark.slow

ROUNDS = 20
"""How often each publisher publishes, and each hold moves."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three nodes that have had nothing yet, and seal what they get every second."""
    with Trio.start(
        tmp_path_factory.mktemp("trio"), "log.segment_seconds=1", "log.snapshot_seconds=1"
    ) as nodes:
        yield nodes


class Busy:
    """What goes on at one node; ``sent`` counts the messages that were published there."""

    def __init__(self, node: HubProcess, number: int) -> None:
        self._node = node
        self._number = number
        self.sent = 0
        self.acknowledged: set[int] = set()

    async def run(self, stack: AsyncExitStack) -> None:
        link: LinkClient = await stack.enter_async_context(
            headrace.connect(f"tube://{self._node.doors['tube_tcp']}")
        )
        spp = await stack.enter_async_context(headrace.connect(f"spp://{self._node.doors['spp']}"))
        consuming = asyncio.create_task(self._consume(link))
        stack.callback(consuming.cancel)
        publisher = link.publisher(f"of node {self._number}")
        with Publisher(self._node.address("fyrehose")) as push:
            for count in range(ROUNDS):
                first, last = await publisher.publish([b"by link %d" % count] * 3)
                assert first is not None
                assert last == first + 2
                await link.publish(b"alone %d" % count)
                push.push([b"pushed %d" % count])
                await link.hold(f"hold {self._number}", last)
                await spp.publish({"count": count}, topic=f"service/{self._number}/{count % 5}")
                self.sent += 6
                consuming.done() and consuming.result()
            await asyncio.to_thread(push.finish)

    async def _consume(self, link: LinkClient) -> None:
        """Acknowledge every message, one at a time."""
        async with link.consumer(f"consumer {self._number}", from_seq=1) as consumer:
            async for message in consumer:
                assert await consumer.ack(message)
                self.acknowledged.add(message.seq)


async def read(node: HubProcess, last: int) -> list[Message]:
    async with headrace.connect(f"tube://{node.doors['tube_tcp']}") as link:
        return [message async for batch in link.read(1, last) for message in messages(batch)]


async def test_fyrehose_subscribers_at_every_node_see_each_number_once_and_nothing_empty(trio: Trio) -> None:
    await asyncio.to_thread(trio.working)
    with ExitStack() as subscribers:
        listening = [subscribers.enter_context(Subscriber(node.address("fyrehose"))) for node in trio.nodes]
        for each in listening:
            assert each.subscribed.wait(PATIENCE_SECONDS)
        assert [head(node) for node in trio.nodes] == [0, 0, 0], "nothing is published yet"
        busy = [Busy(node, number) for number, node in enumerate(trio.nodes)]
        async with AsyncExitStack() as clients:
            await asyncio.gather(*(each.run(clients) for each in busy))
            sent = sum(each.sent for each in busy)
            everything = set(range(1, sent + 1))
            await asyncio.to_thread(
                eventually,
                "every consumer is done",
                lambda: all(each.acknowledged == everything for each in busy),
            )
        await asyncio.to_thread(
            eventually, "everything is delivered", lambda: all(each.last >= sent for each in listening)
        )
        assert [head(node) for node in trio.nodes] == [sent] * 3
    rows = [await read(node, sent) for node in trio.nodes]
    assert rows[0] == rows[1] == rows[2]
    assert [row.seq for row in rows[0]] == list(range(1, sent + 1))
    for each in listening:
        assert each.breaks == []
        delivered = [
            (int(seq), payload) for run in each.runs for seq, payload in zip(run.seqs, run.run, strict=True)
        ]
        assert delivered == [(row.seq, row.payload) for row in rows[0]]
        assert all(payload for _, payload in delivered)


def test_nothing_is_left_behind_when_all_is_acknowledged(trio: Trio) -> None:
    trio.working()
    for node in trio.nodes:
        facts = status(node)
        assert {name: each["behind"] for name, each in facts["consumers"].items()} == {
            f"consumer {number}": 0 for number in range(3)
        }
        assert facts["head"] == facts["tail"] == 3 * 6 * ROUNDS


def test_the_logs_have_the_same_entries_at_the_same_places(trio: Trio) -> None:
    trio.working()
    for node in trio.nodes:
        node.terminate()
    logs = []
    for node in trio.nodes:
        log = Log.open(node.data / "log", read_only=True)
        logs.append([
            (batch.op + place, batch.is_entries, row)
            for batch in log.scan_ops(log.first_op)
            for place, row in enumerate(batch)
        ])  # fmt: skip
        log.close()
    common = min(map(len, logs))
    assert logs[0][:common] == logs[1][:common] == logs[2][:common]
    newest = 0
    for place, (op, is_entry, row) in enumerate(logs[0], 1):
        newest += not is_entry
        assert (op, row.seq) == (place, newest)
    topics = {row.topic.partition("/")[0] for _, is_entry, row in logs[0] if is_entry}
    assert topics >= {"hold", "consumer", "service", "frontend"}
