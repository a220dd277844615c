"""Everybody's usual Python client: one publisher and one subscriber of one asyncio program, 128-byte messages.

nats-py, redis-py and Headrace's clients are asyncio libraries. paho-mqtt has a thread, which passes each message to the
event loop. Each client is used as its documentation shows: a call for each message, a callback or an iteration for what
comes. Headrace writes every message to its log; the others write none. Rounds alternate, and figures are medians.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import uvloop

import bench
from bench._peers import Headrace, Mosquitto, Nats, Peer, Redis, available, running, versions
from headrace import FyrehoseClient, LinkClient

Publish = Callable[[bytes], Coroutine[Any, Any, object]]

SIZE = 128
_TURN = 500
"""Messages after which a publisher lets the subscriber of its program have a turn."""


class Client(ABC):
    """A publisher and a subscriber."""

    name: str
    peer: type[Peer]
    module = ""
    package = ""

    def __init__(self) -> None:
        self._count = 0
        self._arrived = asyncio.Event()

    def received(self, *_: object) -> None:
        """Count a message."""
        self._count += 1
        self._arrived.set()

    async def until(self, count: int) -> None:
        """Wait for so many messages in all."""
        while self._count < count:
            self._arrived.clear()
            await self._arrived.wait()

    @abstractmethod
    def connected(self, server: Any) -> contextlib.AbstractAsyncContextManager[Publish]:
        """Connect both; give what publishes a message."""


class OverFyrehose(Client):
    name, peer = "headrace, fyrehose", Headrace

    @contextlib.asynccontextmanager
    async def connected(self, server: Headrace) -> AsyncIterator[Publish]:
        url = f"fyrehose://127.0.0.1:{server.port}"
        async with (
            FyrehoseClient.at(url) as subscriber,
            FyrehoseClient.at(url, subscribe=False) as publisher,
            _task(self._take(subscriber)),
        ):
            yield publisher.publish

    async def _take(self, messages: Any) -> None:
        async for _ in messages:
            self.received()


class OverLink(OverFyrehose):
    name = "headrace, link"

    @contextlib.asynccontextmanager
    async def connected(self, server: Headrace) -> AsyncIterator[Publish]:
        url = f"tube://{server.tube}"
        async with LinkClient.at(url) as subscriber, LinkClient.at(url) as writer:
            follow = subscriber.follow()
            await follow.begun()
            async with _task(self._take(follow)):
                yield writer.publisher().send


class OverNats(Client):
    name, peer, module, package = "nats-py", Nats, "nats", "nats-py"

    @contextlib.asynccontextmanager
    async def connected(self, server: Nats) -> AsyncIterator[Publish]:
        import nats

        url = f"nats://127.0.0.1:{server.port}"
        subscriber, publisher = await nats.connect(url), await nats.connect(url)

        async def take(_: object) -> None:
            self.received()

        await subscriber.subscribe("b", cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await subscriber.flush()
        yield lambda payload: publisher.publish("b", payload)
        await publisher.close()
        await subscriber.close()


class OverRedis(Client):
    name, peer, module, package = "redis-py", Redis, "redis", "redis"

    @contextlib.asynccontextmanager
    async def connected(self, server: Redis) -> AsyncIterator[Publish]:
        import redis.asyncio

        subscriber, publisher = redis.asyncio.Redis(port=server.port), redis.asyncio.Redis(port=server.port)
        channel = subscriber.pubsub(ignore_subscribe_messages=True)
        await channel.subscribe("b")
        async with _task(self._take(channel)):
            # Its subscription is answered before anything that is published later.
            await subscriber.ping()
            yield lambda payload: publisher.publish("b", payload)
        await publisher.aclose()
        await subscriber.aclose()

    async def _take(self, channel: Any) -> None:
        async for _ in channel.listen():
            self.received()


class OverPaho(Client):
    name, peer, module, package = "paho-mqtt", Mosquitto, "paho", "paho-mqtt"

    @contextlib.asynccontextmanager
    async def connected(self, server: Mosquitto) -> AsyncIterator[Publish]:
        from paho.mqtt.client import Client as Paho
        from paho.mqtt.enums import CallbackAPIVersion

        loop = asyncio.get_running_loop()
        subscribed = asyncio.Event()
        subscriber, publisher = (Paho(CallbackAPIVersion.VERSION2) for _ in range(2))
        subscriber.on_message = lambda *_: loop.call_soon_threadsafe(self.received)
        subscriber.on_subscribe = lambda *_: loop.call_soon_threadsafe(subscribed.set)
        for each in (subscriber, publisher):
            each.connect("127.0.0.1", server.port)
            each.loop_start()
        subscriber.subscribe("b")
        await subscribed.wait()

        async def publish(payload: bytes) -> None:
            publisher.publish("b", payload)

        yield publish
        for each in (publisher, subscriber):
            each.disconnect()
            each.loop_stop()


CLIENTS: tuple[type[Client], ...] = (OverFyrehose, OverLink, OverNats, OverRedis, OverPaho)


def main(argv: Sequence[str]) -> int:
    return bench.run("clients", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure Headrace's clients, and those of peers that are installed with their servers."""
    clients = [each for each in CLIENTS if _installed(each)]
    rounds, trips, total = (1, 50, 500) if quick else (5, 2_000, 20_000)

    def once(client: type[Client]) -> tuple[list[float], float]:
        with running(client.peer) as server:
            return uvloop.run(_round(client(), server, trips, total))

    figures = bench.in_turns(clients, once, rounds)
    note = versions(dict.fromkeys(client.peer for client in clients))
    latency = bench.Table(
        "one message at a time, from the call to the callback, µs",
        ("p50", "p99"),
        note=note,
        less_is_better=True,
    )
    rate = bench.Table("a call for each message, until all have come, messages/s", ("messages/s",), note=note)
    for client, found in figures.items():
        base = OverNats.name if OverNats in clients and client.module == "" else None
        key = base is not None
        p50, p99 = (
            statistics.median(sorted(samples)[int(len(samples) * part)] for samples, _ in found) * 1e6
            for part in (0.5, 0.99)
        )
        latency.add(client.name, p50, p99, base=base, key=key)
        rate.add(client.name, statistics.median(each for _, each in found), base=base, key=key)
    return [latency, rate]


async def _round(client: Client, server: Peer, trips: int, total: int) -> tuple[list[float], float]:
    payload, samples = bytes(SIZE), []
    async with client.connected(server) as publish:
        cold = max(trips // 10, 1)
        for number in range(cold + trips):
            begin = time.perf_counter()
            await publish(payload)
            await client.until(number + 1)
            samples.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for number in range(total):
            await publish(payload)
            if number % _TURN == 0:
                await asyncio.sleep(0)
        await client.until(cold + trips + total)
        return samples[cold:], total / (time.perf_counter() - begin)


@contextlib.asynccontextmanager
async def _task(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A task that runs meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _installed(client: type[Client]) -> bool:
    if client.module and importlib.util.find_spec(client.module) is None:
        print(f"SKIPPED {client.name}: it is not installed; pip install {client.package}")
        return False
    return available(client.peer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
