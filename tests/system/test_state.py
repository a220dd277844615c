"""Durable consumers and publishers after ``kill -9``: nothing that a client was told is forgotten, nothing is made up.

Publishers publish, a member of a consumer acknowledges some of what it gets, the hub is killed at a random moment and
started again. A plain model knows what was acknowledged, and what was asked and not answered: of that alone, the hub
may have kept some or none. After each start the model is compared with what the hub says and with what it delivers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from time import monotonic

import pytest
from tests.conftest import SOAK
from tests.hubprocess import HubProcess

import headrace
from headrace.client.link.client import LinkClient
from headrace.wire.link.requests import PublisherRequest

NAMES = ("left", "right")
CONSUMER = "model"
ROUNDS = 40 if SOAK else 6
MOST_SECONDS = 300 if SOAK else 12
FAST = ("log.segment_bytes=64KiB", "log.segment_seconds=0.05", "log.snapshot_seconds=0.05")
LEFT = 40
"""Messages that stay unacknowledged from one life of the hub to the next."""
MOST_GAPS = 200
"""Messages of a round that are left out: fewer than the gaps at which a hub hands out no more."""


class Model:
    """What clients know."""

    def __init__(self) -> None:
        self.newest = dict.fromkeys(NAMES, -1)
        """The highest number of each publisher that was acknowledged, and the highest that was sent."""
        self.sent = dict.fromkeys(NAMES, -1)
        self.messages: set[int] = set()
        """Every message there is, by the last look."""
        self.acked: set[int] = set()
        """What the consumer is done with, and what it was told so without an answer."""
        self.asked: set[int] = set()
        self.acks = 0

    @property
    def pending(self) -> set[int]:
        """What must come again."""
        return self.messages - self.acked - self.asked


@pytest.mark.slow
def test_a_killed_hub_knows_what_it_acknowledged(tmp_path: Path, random: Random) -> None:
    model = Model()
    deadline = monotonic() + MOST_SECONDS
    with HubProcess.start(tmp_path, *FAST) as hub:
        for _ in range(ROUNDS):
            asyncio.run(_traffic(hub, model, random))
            hub.restart()
            asyncio.run(_compare(hub, model, random))
            if monotonic() > deadline:
                break
        hub.terminate()
    assert model.acks, "nothing was ever acknowledged"
    assert min(model.newest.values()) > 0


async def _traffic(hub: HubProcess, model: Model, random: Random) -> None:
    """Publish and acknowledge, and kill the hub in the middle of it."""
    acks, published = model.acks, sum(model.newest.values())
    async with _link(hub) as link:
        work = [asyncio.create_task(_publish(link, model, name, Random(random.random()))) for name in NAMES]
        work.append(asyncio.create_task(_consume(link, model, Random(random.random()))))
        async with asyncio.timeout(60):
            while model.acks == acks or sum(model.newest.values()) == published:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(random.uniform(0.0, 0.4))
        hub.kill9()
        for task in work:
            task.cancel()
        for ended in await asyncio.gather(*work, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        await link.close()


async def _publish(link: LinkClient, model: Model, name: str, random: Random) -> None:
    publisher = link.publisher(name)
    while True:
        count = random.randint(1, 4)
        number = model.sent[name] + 1
        model.sent[name] += count
        rows = [b"%s %d" % (name.encode(), number + each) for each in range(count)]
        await publisher.publish(rows, topic="state")
        model.newest[name] = number + count - 1


async def _consume(link: LinkClient, model: Model, random: Random) -> None:
    gaps = 0
    async with link.consumer(CONSUMER, from_seq=1) as consumer:
        async for rows in consumer.batches():
            seqs = rows.column("seq").to_pylist()
            # Some now, in any order; some never.
            left = random.randint(0, min(len(seqs), 20, MOST_GAPS - gaps))
            some = set(random.sample(seqs, len(seqs) - left))
            gaps += left
            model.asked |= some
            if await consumer.ack(some):
                model.acked |= some
                model.acks += 1


async def _compare(hub: HubProcess, model: Model, random: Random) -> None:
    """The hub's word and what it delivers against the model, which then knows what became of what it asked."""
    async with _link(hub) as link:
        found: Counter[bytes] = Counter()
        model.messages.clear()
        async for rows in link.read(1, topic="state"):
            found.update(rows.column("payload").to_pylist())
            model.messages.update(rows.column("seq").to_pylist())
        assert set(found.values()) <= {1}, "a message is there twice"
        for name in NAMES:
            answer = await link.ask(lambda n, name=name: PublisherRequest(id=n, publisher=name))
            newest = answer.head["newest"]
            newest = -1 if newest is None else newest
            assert model.newest[name] <= newest <= model.sent[name]
            kept = {b"%s %d" % (name.encode(), number) for number in range(newest + 1)}
            assert {payload for payload in found if payload.startswith(name.encode())} == kept
            model.newest[name] = model.sent[name] = newest

        (end, _) = await link.publish(b"end")
        assert end is not None
        delivered: set[int] = set()
        async with link.consumer(CONSUMER) as consumer:
            async for message in consumer:
                if message.seq == end:
                    break
                delivered.add(message.seq)
            delivered &= model.messages  # Without the ends of earlier rounds.
            assert not delivered & model.acked, "what was acknowledged came again"
            assert delivered >= model.pending, "what was not acknowledged did not come again"

            told = await link.show_consumer(CONSUMER)
            undone = min(delivered, default=end)
            done = max((seq for seq in model.messages if seq < undone), default=0)
            assert done <= told["floor"] < undone
            assert told["lost"] == told["dead"] == 0

            kept_back = set(random.sample(sorted(delivered), min(len(delivered), LEFT)))
            assert await consumer.ack((delivered - kept_back) | {end})
        model.acked = model.messages - kept_back
        model.asked = set()


def _link(hub: HubProcess) -> LinkClient:
    made: LinkClient = headrace.connect(f"tube://{hub.doors['tube_tcp']}", reconnect_timeout=60.0)
    return made
