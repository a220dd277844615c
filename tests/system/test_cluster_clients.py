"""Clients of every kind at a cluster: the node they are at is killed, and they go on at another.

One cluster for all of them at once, and clients as a program has them, given all three nodes. In the end what each
received is held against the log. A program that knows nothing but the original document asks every node as well.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import cbor2
import pytest
from tests.clusterprocess import Trio
from tests.hubprocess import HubProcess
from tests.net.raw import DSC_REQ, SEQ_REQ
from tests.system.observing import PATIENCE_SECONDS, head, status

import headrace
from headrace import exists, where
from headrace.client.spp.client import LiveService
from headrace.message import Message, messages, node_id

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with Trio.start(tmp_path_factory.mktemp("trio")) as nodes:
        yield nodes


class Clients:
    """One client of each kind, all at the same node as long as it is there."""

    def __init__(self, trio: Trio, first: int) -> None:
        self._trio = trio
        self._first = first
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.published: list[int] = []
        """Numbers that the link acknowledged."""
        self.offered = 0
        """How many messages were given to the publisher door, which acknowledges nothing."""
        self.received: dict[str, list[Message]] = {"fyrehose": [], "tube": [], "sdk": []}

    async def __aenter__(self) -> Clients:
        before = head(self._trio.nodes[0])
        self.backbone = await self._open("fyrehose", from_seq=before + 1, repair_timeout=PATIENCE_SECONDS)
        self.link = await self._open("tube", "tube_tcp", reconnect_timeout=PATIENCE_SECONDS)
        self.sdk = await self._open("sdk", from_seq=before + 1)
        await self.sdk.subscribe(where(x=exists()))
        self.spp = await self._open("spp")
        self.publisher = await self._open("publisher")
        self._run(self._receive("fyrehose", self.backbone))
        self._run(self._receive("tube", self.link.follow(before + 1)))
        self._run(self._receive("sdk", self.sdk))
        self._publishing = [self._run(self._publish()), self._run(self._offer())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def stop_publishing(self) -> None:
        for task in self._publishing:
            task.cancel()
        await asyncio.gather(*self._publishing, return_exceptions=True)

    async def receive_more(self) -> None:
        """Wait until everybody has received some more."""
        counts = {kind: len(got) for kind, got in self.received.items()}
        await until(
            "everybody receives",
            lambda: all(len(self.received[kind]) >= count + 20 for kind, count in counts.items()),
            self.check,
        )

    async def check(self) -> None:
        """Nobody has failed."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _open(self, scheme: str, door: str = "", **options: object) -> Any:
        hosts = self._trio.hosts(door or scheme).split(",")
        hosts = hosts[self._first :] + hosts[: self._first]
        client = headrace.connect(f"{scheme}://{','.join(hosts)}", **options)
        return await self._stack.enter_async_context(client)

    def _run(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def _receive(self, kind: str, stream: Any) -> None:
        async for message in stream:
            self.received[kind].append(message)

    async def _publish(self) -> None:
        publisher = self.link.publisher("acknowledged")
        while True:
            number = len(self.published)
            acknowledged = await publisher.publish([b"%d" % number], numbers={"x": float(number)})
            self.published.append(acknowledged.first)
            await asyncio.sleep(0.01)

    async def _offer(self) -> None:
        while True:
            await self.publisher.publish(b"offered %d" % self.offered, attributes={"x": self.offered})
            self.offered += 1
            await asyncio.sleep(0.01)


async def until(what: str, holds: Callable[[], object], meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Wait until ``holds()``, doing something again and again ``meanwhile``."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await meanwhile()
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"waited {PATIENCE_SECONDS:g} s in vain: {what}")


async def test_every_kind_of_client_goes_on_at_another_node(trio: Trio) -> None:
    primary = await asyncio.to_thread(trio.working)
    first = trio.nodes.index(primary)
    before = head(primary)
    async with Clients(trio, first) as clients:
        await clients.spp.publish({"name": "one", "speed": 0}, topic="fleet/1")
        service = await clients.spp.subscribe("fleet/1").open()
        for speed, lost in enumerate((trio.nodes[first], trio.nodes[(first + 1) % 3]), 1):
            await clients.receive_more()
            await lose(lost, clients, service, speed)
            await asyncio.to_thread(lost.restart)
            await asyncio.to_thread(trio.primary)
        await service.close()
        await clients.stop_publishing()
        newest, _ = await clients.link.publish(b"the end", numbers={"x": -1.0})
        await until(
            "all is received",
            lambda: all(got and got[-1].seq >= newest for got in clients.received.values()),
            clients.check,
        )
        rows = [each async for rows in clients.link.read(before + 1, newest) for each in messages(rows)]
    for kind, received in clients.received.items():
        # What was offered last of all may have come behind the end.
        clients.received[kind] = got = [message for message in received if message.seq <= newest]
        # Numbers go up one by one, so there is no repeat, and what is there is what the log has.
        seqs = [message.seq for message in got]
        assert seqs == sorted(set(seqs))
    whole = [message.seq for message in rows]
    assert [message.seq for message in clients.received["tube"]] == whole
    wanted = [message.seq for message in rows if "x" in message.numbers]
    assert [message.seq for message in clients.received["sdk"]] == wanted
    everything = [message.seq for message in clients.received["fyrehose"]]
    assert everything == list(range(before + 1, everything[-1] + 1))
    assert set(clients.published) <= set(wanted)
    payloads = [message.payload for message in rows if message.publisher == "acknowledged"]
    assert payloads[: len(clients.published)] == [b"%d" % number for number in range(len(clients.published))]
    assert len(payloads) == len(set(payloads))


async def lose(lost: HubProcess, clients: Clients, service: LiveService, speed: int) -> None:
    """Kill the node that the clients are at, and wait until each of them goes on."""
    connects = clients.sdk.connects, clients.publisher.connects
    lost.kill9()
    published, offered = len(clients.published), clients.offered

    async def set_speed() -> None:
        # Nothing is acknowledged here: a change that goes down with its node is published again.
        await clients.check()
        await clients.spp.publish({"speed": speed}, topic="fleet/1")

    # A service's object is asked for whole at the new node, and goes on there.
    await until("the change arrives", lambda: service.value.get("speed") == speed, set_speed)
    assert service.value == {"name": "one", "speed": speed}
    await until(
        "publishing goes on",
        lambda: len(clients.published) >= published + 20 and clients.offered >= offered + 20,
        clients.check,
    )
    await clients.receive_more()
    assert clients.sdk.connects > connects[0]
    assert clients.publisher.connects > connects[1]


def ask(node: HubProcess, *parcels: bytes) -> list[dict[str, Any]]:
    """Send parcels as they are, and take an answer to each: a length byte and CBOR, as the document has it."""
    answers = []
    with socket.create_connection(node.address("parcel"), PATIENCE_SECONDS) as sock:
        stream = sock.makefile("rb")
        for parcel in parcels:
            sock.sendall(parcel)
            size = stream.read(1)
            answers.append(cbor2.loads(stream.read(size[0])))
    return answers


def test_one_that_knows_only_the_document_is_answered_by_every_node(trio: Trio) -> None:
    trio.working()
    ids = {f"node{number}": node_id(f"node{number}") for number in range(3)}
    for number, node in enumerate(trio.nodes):
        me = ids[f"node{number}"]
        discovered, sequence, again = ask(node, DSC_REQ, SEQ_REQ.replace(b"\xeb\xec", b"\x12\x34"), DSC_REQ)
        assert {key: discovered[key] for key in ("is_response", "parcel_type", "id")} == {
            "is_response": True,
            "parcel_type": "DscRes",
            "id": me,
        }
        neighbours = discovered["body"]["DscRes"]["neighbours"]
        assert neighbours[0] == {
            "id": me,
            "mode": "WRK",
            "name": f"node{number}",
            "host": node.doors["parcel"],
        }
        # Others it knows of follow, as many as there is room for in a parcel.
        assert {each["name"]: each["id"] for each in neighbours[1:]}.items() <= ids.items()
        assert len(neighbours) > 1
        assert sequence == {
            "is_response": True,
            "parcel_type": "SeqRes",
            "id": me,
            "size": sequence["size"],
            "body": {"SeqRes": {"seq_number": status(node)["head"]}},
        }
        assert again["parcel_type"] == "DscRes"
    # It is nobody of the cluster, and nothing has changed for that.
    assert trio.working() in trio.nodes
