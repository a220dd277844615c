"""Clients of a hub or a cluster, by several doors: they publish, read, watch, and keep a history of what they are told.

    load = Load(history, random, doors)
    await load.start()
    await load.progress()          # until something that is sent from now on is acknowledged
    await load.finish(head)        # publishers stop, readers come as far as ``head``

Every message is another one: it names its publisher and its count.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar, TypeVar

import aiohttp
from tests.faults.history import History
from tests.system import observing

import headrace
from headrace.client.base import Client
from headrace.client.link.client import LinkClient
from headrace.errors import HeadraceError, RefusedError, UnreachableError
from headrace.message import Message, messages
from headrace.wire.fyrehose.stream import Push, serialize

PATIENCE_SECONDS = 60.0
"""Far longer than anything here takes, so that no test fails on a busy machine."""

until = partial(observing.until, seconds=PATIENCE_SECONDS)

_CERTAIN = frozenset({"fenced", "conflict", "forbidden", "auth"})
"""Refusals that say that nothing was taken."""

_LONGEST = 3000

C = TypeVar("C", bound=Client)


@dataclass(frozen=True)
class Doors:
    """Where clients find a node's doors."""

    WIRED: ClassVar = ("tube_tcp", "tube_ws", "fyrehose", "http", "spp", "publisher", "sdk")
    """Doors that clients reach by wires that can be cut."""

    node: str
    wired: Mapping[str, str]
    """The near ends of the wires, by door."""
    datagrams: tuple[str, int]
    """The fyrehose door itself."""

    @property
    def tube(self) -> str:
        """The door of tubes over TCP."""
        return self.wired["tube_tcp"]


class Load:
    """Publishers and readers of some nodes."""

    pace: ClassVar = 1.0
    """How much longer than usual publishers on the link wait between two publishes."""

    def __init__(self, history: History, random: Random, nodes: Sequence[Doors], before: int = 0) -> None:
        self.history = history
        self.acknowledged = 0
        """Messages that were acknowledged."""
        self.random = random
        self.nodes = nodes
        self._before = before
        self.stopping = False
        self._publishing: list[asyncio.Task[None]] = []
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._newest: dict[str, int] = {}
        self._consumed: set[int] = set()
        self.life = 0
        """How often all was read anew: what was said before an allowed loss binds nobody any more."""

    async def start(self) -> None:
        """Begin to publish and to read."""
        for number, node in enumerate(self.nodes):
            # One that stays with its node, and one that goes to the next when it is lost.
            self.publish_by(self._link_publisher(f"link{number}", node.tube, node.node))
            if len(self.nodes) > 1:
                hosts = ",".join(each.tube for each in (*self.nodes[number:], *self.nodes[:number]))
                self.publish_by(self._link_publisher(f"roaming{number}", hosts, None))
            self.publish_by(self._push(f"push{number}", node))
            self.publish_by(self._watch(node))
        for rival in range(2):
            self.publish_by(self._rival(rival, self.nodes[rival % len(self.nodes)]))
        self.publish_by(self._post(self.nodes[0]))
        self.publish_by(self._send_datagrams(self.nodes[-1]))
        self.read(self._before)

    def read(self, before: int) -> None:
        """Begin to read after a number, with readers that know nothing of what was before."""
        for task in self._reading.values():
            task.cancel()
        self._reading.clear()
        self._newest.clear()
        self._consumed.clear()
        self._before = before
        self.life += 1
        for node in self.nodes:
            self.read_by(f"follow at {node.node}", self._follow(node.tube, before + 1))
            self.read_by(f"fyrehose at {node.node}", self._receive(node.wired["fyrehose"], before + 1))
        # Another one each time: the hub remembers a consumer, and what it has not acknowledged.
        name = f"consumer/{before}/{self.life}"
        self._reading[name] = asyncio.create_task(self._consume(name, self.nodes[-1].tube, before + 1))

    async def progress(self, count: int = 3) -> None:
        """Wait until messages that are sent from now on are acknowledged."""
        begun = {id(task) for task in self._publishing}
        assert begun
        mark = len(self.history)
        target = self.acknowledged + count

        def done() -> bool:
            self._check()
            return self.acknowledged >= target

        await until(f"something is acknowledged after event {mark}", done)

    async def finish(self) -> None:
        """Let publishers come to their end."""
        self.stopping = True
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*self._publishing)

    async def caught_up(self, head: int) -> None:
        """Wait until all readers have come as far as ``head``, and let them go."""
        everything = set(range(self._before + 1, head + 1))

        def done() -> bool:
            self._check()
            return all(each >= head for each in self._newest.values()) and self._consumed >= everything

        try:
            await until(f"readers have come as far as {head}", done)
        except BaseException as error:
            lacking = len(everything - self._consumed)
            error.add_note(f"they are at {self._newest}, and the consumer lacks {lacking}")
            raise
        for name in self._reading:
            self.history.read_all(name, self._before + 1, head)
        await self.cancel()

    async def cancel(self) -> None:
        """End everything at once."""
        tasks = [*self._publishing, *self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def publish_by(self, work: Coroutine[Any, Any, None]) -> None:
        """Have a publisher at work, until :attr:`stopping`."""
        self._publishing.append(asyncio.create_task(work))

    def read_by(self, name: str, given: AsyncIterator[Message]) -> None:
        """Have a reader at work, whose numbers must be whole."""
        name = f"{name} ({self.life})"
        self._newest[name] = 0

        async def take() -> None:
            async for message in given:
                self.history.saw(name, message.seq, message.payload)
                self._newest[name] = message.seq

        self._reading[name] = asyncio.create_task(take())

    def _check(self) -> None:
        for task in (*self._publishing, *self._reading.values()):
            if task.done() and not task.cancelled():
                task.result()

    # Publishers

    def payloads(self, name: str, first: int, count: int) -> list[bytes]:
        """Some messages that nobody else sends."""
        filler = self.random.randbytes(64).hex().encode()
        lengths = (self.random.choice((0, 10, 100, _LONGEST)) for _ in range(count))
        return [
            b"%s/%d/" % (name.encode(), each) + (filler * 24)[:length]
            for each, length in enumerate(lengths, first)
        ]

    async def _link_publisher(self, name: str, hosts: str, node: str | None) -> None:
        count = 0
        async with closing(await _link(hosts)) as link:
            publisher = link.publisher(name)
            while not self.stopping:
                payloads = self.payloads(name, count, self.random.choice((1, 1, 2, 20)))
                count += len(payloads)
                op = self.history.invoked(name, payloads)
                try:
                    answer = await publisher.publish(payloads, topic=f"faults/{name}")
                except RefusedError as error:
                    self.history.failed(op, error.code, refused=error.code in _CERTAIN)
                except HeadraceError as error:
                    self.history.failed(op, str(error))
                else:
                    self.history.acknowledged(op, answer.first, answer.last, node)
                    self.acknowledged += len(payloads)
                await asyncio.sleep(self.random.choice((0.002, 0.01, 0.03)) * self.pace)

    async def _rival(self, number: int, node: Doors) -> None:
        """Publish under a name that another one uses, too: who opens it last fences the other, who opens it again."""
        count = openings = 0
        async with closing(await _link(node.tube)) as link:
            while not self.stopping:
                openings += 1
                label = f"rival{number}.{openings}"
                publisher = link.publisher("rivals")
                fenced = False
                while not self.stopping and not fenced:
                    payloads = self.payloads(label, count, 2)
                    count += len(payloads)
                    op = self.history.invoked(label, payloads)
                    try:
                        answer = await publisher.publish(payloads, topic="faults/rivals")
                    except RefusedError as error:
                        fenced = error.code == "fenced"
                        self.history.failed(op, error.code, refused=error.code in _CERTAIN)
                    except HeadraceError as error:
                        self.history.failed(op, str(error))
                    else:
                        self.history.acknowledged(op, answer.first, answer.last)
                        self.acknowledged += len(payloads)
                    await asyncio.sleep(self.random.choice((0.02, 0.05)) * self.pace)

    async def _post(self, node: Doors) -> None:
        """Publish by HTTP. A post that times out may be taken after the next one, so each is a publisher of its own."""
        count = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session:
            while not self.stopping:
                count += 1
                [payload] = self.payloads("post", count, 1)
                op = self.history.invoked(f"post{count}", [payload])
                body = {"payload": payload.decode(), "topic": "faults/post"}
                try:
                    url = f"http://{node.wired['http']}/api/messages"
                    async with session.post(url, json=body, headers={"X-Headrace": "1"}) as answer:
                        told = await answer.json()
                        if answer.status == 200:
                            self.history.acknowledged(op, told["seq"], told["seq"], node.node)
                            self.acknowledged += 1
                        else:
                            self.history.failed(op, str(told))
                except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
                    self.history.failed(op, repr(error))
                await asyncio.sleep(self.random.choice((0.01, 0.03)))

    async def _push(self, name: str, node: Doors) -> None:
        """Push on one connection until it breaks; nothing is acknowledged, and a new connection may overtake an old."""
        host, _, port = node.wired["fyrehose"].rpartition(":")
        connections = 0
        while not self.stopping:
            connections += 1
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    _, writer = await asyncio.open_connection(host, int(port))
                with contextlib.closing(writer):
                    for count in range(1, 30):
                        [payload] = self.payloads(f"{name}.{connections}", count, 1)
                        self.history.invoked(f"{name}.{connections}", [payload])
                        writer.write(serialize(Push(payload)))
                        async with asyncio.timeout(5):
                            await writer.drain()
                        await asyncio.sleep(0.02)
                        if self.stopping:
                            break
            await asyncio.sleep(0.02)

    async def _send_datagrams(self, node: Doors) -> None:
        """Push by UDP, where each message is on its own."""
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            count = 0
            while not self.stopping:
                count += 1
                [payload] = self.payloads("datagram", count, 1)
                self.history.invoked(f"datagram{count}", [payload])
                with contextlib.suppress(OSError):
                    sock.sendto(serialize(Push(payload)), node.datagrams)
                await asyncio.sleep(0.02)

    async def _watch(self, node: Doors) -> None:
        """Ask where the head is."""
        async with closing(await _link(node.tube)) as link:
            while not self.stopping:
                since, life = len(self.history), self.life
                with contextlib.suppress(HeadraceError):
                    extent = await link.head()
                    if life == self.life:
                        self.history.told("watch", node.node, extent.head, since)
                await asyncio.sleep(0.03)

    # Readers

    async def _follow(self, hosts: str, first: int) -> AsyncIterator[Message]:
        async with closing(await _link(hosts)) as link:
            async for message in link.follow(first):
                yield message

    async def _receive(self, hosts: str, first: int) -> AsyncIterator[Message]:
        url, patience = f"fyrehose://{hosts}", PATIENCE_SECONDS
        async with closing(
            await opened(lambda: headrace.connect(url, from_seq=first, repair_timeout=patience))
        ) as backbone:
            async for message in backbone:
                yield message

    async def _consume(self, name: str, hosts: str, first: int) -> None:
        async with closing(await _link(hosts)) as link:
            while True:
                # A consumer that a hub cannot write down is not there; try again.
                with contextlib.suppress(RefusedError):
                    async with link.consumer(name, from_seq=first) as consumer:
                        async for rows in consumer.batches():
                            for message in messages(rows):
                                self.history.saw(name, message.seq, message.payload, whole=False)
                                # If the ack is refused, it may be in the log all the same: it may not come again.
                                self._consumed.add(message.seq)
                            await consumer.ack(rows)
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def closing(client: C) -> AsyncIterator[C]:
    """Close a client in the end, whatever it still has under way."""
    try:
        yield client
    finally:
        await client.close()


async def _link(hosts: str) -> LinkClient:
    return await opened(lambda: headrace.connect(f"tube://{hosts}", reconnect_timeout=PATIENCE_SECONDS))


async def opened(make: Callable[[], C]) -> C:
    """Open a client; there may be nobody yet."""
    while True:
        with contextlib.suppress(UnreachableError, RefusedError):
            return await make().open()
        await asyncio.sleep(0.02)
