"""Clients at every door, for a soak: what :class:`~tests.faults.load.Load` has, and the rest of the protocols.

Doors that acknowledge nothing (SPP, publisher, fyrehose) may lose what is on its way when a connection breaks. What
comes through is judged as everything else: once, unchanged, under one number. A message of such a door counts as a
publisher of its own, since a new connection may overtake what an old one has sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import ClassVar

from tests.faults.load import PATIENCE_SECONDS, Doors, Load, closing, opened

import headrace
from headrace.errors import HeadraceError
from headrace.message import Message

_PAUSE = 0.1
_SERVICE = "soak/service"


class EveryDoor(Load):
    """Publishers and readers at every door of every node."""

    pace: ClassVar = 4.0  # The histories of a long soak must fit in memory.

    async def start(self) -> None:
        """Begin to publish and to read."""
        await super().start()
        for number, node in enumerate(self.nodes):
            if "tube_ws" in node.wired:
                self.publish_by(self._publish_by_websocket(f"ws{number}", node))
            self.publish_by(self._change_service(number, node))
            self.publish_by(self._watch_service(node))
            self.publish_by(self._publish_attributes(number, node))
            self.publish_by(self._route(number, node))

    def read(self, before: int) -> None:
        """Begin to read after a number."""
        super().read(before)
        for node in self.nodes:
            self.read_by(f"datagrams at {node.node}", self._receive_datagrams(node, before + 1))
            if "tube_ws" in node.wired:
                self.read_by(f"websocket at {node.node}", self._follow_websocket(node, before + 1))

    async def _publish_by_websocket(self, name: str, node: Doors) -> None:
        count = 0
        url = f"ws://{node.wired['tube_ws']}"
        async with closing(
            await opened(lambda: headrace.connect(url, reconnect_timeout=PATIENCE_SECONDS))
        ) as link:
            publisher = link.publisher(name)
            while not self.stopping:
                payloads = self.payloads(name, count, 3)
                count += len(payloads)
                op = self.history.invoked(name, payloads)
                try:
                    answer = await publisher.publish(payloads, topic=f"faults/{name}")
                except HeadraceError as error:
                    self.history.failed(op, str(error))
                else:
                    self.history.acknowledged(op, answer.first, answer.last)
                    self.acknowledged += len(payloads)
                await asyncio.sleep(_PAUSE)

    async def _change_service(self, number: int, node: Doors) -> None:
        """Change a service by SPP; its object counts the changes of each node."""
        count = 0
        url = f"spp://{node.wired['spp']}"
        async with closing(await opened(lambda: headrace.connect(url))) as client:
            while not self.stopping:
                count += 1
                payload = json.dumps({f"node{number}": count}).encode()
                self.history.invoked(f"spp{number}.{count}", [payload])
                with contextlib.suppress(HeadraceError, TimeoutError):
                    async with asyncio.timeout(1):
                        await client.publish(payload, topic=_SERVICE)
                await asyncio.sleep(_PAUSE)

    async def _watch_service(self, node: Doors) -> None:
        """Read the service by SPP: no count in it goes back."""
        url = f"spp://{node.wired['spp']}"
        newest: dict[str, int] = {}
        life = self.life
        while not self.stopping:
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with closing(headrace.connect(url)) as client:
                    await client.open()
                    async with asyncio.timeout(5), client.subscribe(_SERVICE) as service:
                        value = service.value if isinstance(service.value, dict) else {}
                        if life != (life := self.life):
                            newest.clear()
                        for name, count in value.items():
                            assert count >= newest.get(name, 0), f"service went back: {value} after {newest}"
                        newest.update(value)
            await asyncio.sleep(_PAUSE)

    async def _publish_attributes(self, number: int, node: Doors) -> None:
        count = 0
        url = f"publisher://{node.wired['publisher']}"
        async with closing(await opened(lambda: headrace.connect(url))) as client:
            while not self.stopping:
                count += 1
                payload = f"attributes{number}/{count}".encode()
                self.history.invoked(f"attributes{number}.{count}", [payload])
                with contextlib.suppress(HeadraceError, TimeoutError):
                    async with asyncio.timeout(1):
                        await client.publish(payload, attributes={"soak": "yes"})
                await asyncio.sleep(_PAUSE)

    async def _route(self, number: int, node: Doors) -> None:
        """Receive by content; after a break the client goes on where it was, and gets nothing twice."""
        url, name, newest = f"sdk://{node.wired['sdk']}", f"sdk at {node.node}", 0
        async with closing(await opened(lambda: headrace.connect(url))) as client:
            while not self.stopping:
                with contextlib.suppress(HeadraceError):
                    await client.subscribe(headrace.where(soak="yes"))
                    break
            while not self.stopping:
                try:
                    async with asyncio.timeout(1):
                        message = await anext(client)
                except (TimeoutError, HeadraceError):
                    continue
                assert message.seq > newest, f"{name} was given {message.seq} after {newest}"
                newest = message.seq
                self.history.saw(name, message.seq, message.payload, whole=False)

    async def _follow_websocket(self, node: Doors, first: int) -> AsyncIterator[Message]:
        url = f"ws://{node.wired['tube_ws']}"
        async with closing(
            await opened(lambda: headrace.connect(url, reconnect_timeout=PATIENCE_SECONDS))
        ) as link:
            async for message in link.follow(first):
                yield message

    async def _receive_datagrams(self, node: Doors, first: int) -> AsyncIterator[Message]:
        url = "fyrehose+udp://{}:{}".format(*node.datagrams)
        async with closing(
            await opened(lambda: headrace.connect(url, from_seq=first, repair_timeout=PATIENCE_SECONDS))
        ) as backbone:
            async for message in backbone:
                yield message
