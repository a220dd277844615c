"""One hub process: open the log, open the doors, serve, drain.

Start order: log, hub, doors, ready file. Stop order: stop accepting, take the last turn, let the last sync commit it,
send what is buffered and close, keep a snapshot, close the log; all within ``limits.drain_seconds``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from heapq import nsmallest
from pathlib import Path
from time import time, time_ns
from typing import Final, Protocol

import msgspec

from headrace import __version__
from headrace.config import Settings
from headrace.errors import StorageError
from headrace.hub.authentication import Authentication
from headrace.hub.consumers import Consumers
from headrace.hub.hub import Hub
from headrace.hub.publishers import Publishers
from headrace.hub.services import Policy, Services, obey
from headrace.hub.staging import Queries
from headrace.hub.state import State
from headrace.log import Log
from headrace.message import node_id
from headrace.net.connections import Connections, room_for
from headrace.net.door import Door, House, close_all
from headrace.net.fyrehose import FyrehoseDoor
from headrace.net.link import LinkDoor
from headrace.net.listening import Listening
from headrace.net.spp import SppDoor
from headrace.net.upkeep import GroupCommit, Upkeep
from headrace.wire import kernels

logger = logging.getLogger("headrace")

MAX_UNCOMMITTED: Final = 64 << 20
"""Bytes that may wait for a sync or a majority before publishers are made to wait."""

_DISK_THREADS: Final = 4
"""A sync, sealing or trimming, a snapshot and a seal that somebody asked for: none waits for another, least a sync."""

_CONSUMERS_SHOWN: Final = 64
"""How many durable consumers the status names, those furthest behind first: it must stay a small answer."""

_TICK: Final = 0.25
_FOR_THE_DISK: Final = 0.4
"""The part of the time for draining that is kept for the last sync and the snapshot."""
_FOR_THE_LOG: Final = 0.1
"""The part that is kept for closing the log."""


class HttpDoor(Protocol):
    """What the web room gives for the ``http`` door."""

    async def close(self) -> None:
        """Stop serving."""


StartHttp = Callable[["Server", socket.socket], Awaitable[HttpDoor]]


class Server:
    """A running hub; :meth:`start` it, end it with :meth:`drain`."""

    def __init__(
        self, settings: Settings, *, http: StartHttp | None = None, take_free_ports: bool = False
    ) -> None:
        self.settings = settings
        self.listening = Listening(settings, take_free_ports=take_free_ports)
        self.started = time()
        self.ready = False
        self.hub: Hub
        self.services: Services
        self.upkeep: Upkeep
        self._start_http = http
        self._http: HttpDoor | None = None
        self._doors: list[Door] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._disk = ThreadPoolExecutor(_DISK_THREADS, "headrace-disk")
        self._readers = ThreadPoolExecutor(2, "headrace-read")
        limits = settings.limits
        self._connections = Connections(
            per_address=limits.connections_per_address, total=room_for(limits.connections)
        )
        self._turn_due = False

    @property
    def doors(self) -> dict[str, str]:
        """Where each open door listens, by name."""
        return self.listening.doors

    @property
    def moved(self) -> dict[str, tuple[str, str]]:
        """Doors whose address was taken, and where they went instead (with ``take_free_ports``)."""
        return self.listening.moved

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self) -> None:
        """Open everything; when this returns, every door accepts."""
        settings = self.settings
        kernels.warm()
        log = Log.open(
            settings.node.data / "log", fsync=settings.log.fsync, segment_bytes=settings.log.segment_bytes
        )
        try:
            self._open_hub(log)
            await self._open_doors()
        except BaseException:
            for door in self._doors:
                door.stop()
            await self._close_doors(0)
            log.close()
            self._readers.shutdown()
            self._disk.shutdown()
            raise
        if log.lock is not None:
            log.lock.tell(doors=self.doors)
        for loop in [*self.upkeep.loops(), self._tick]:
            task = asyncio.ensure_future(loop())
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        self.ready = True

    async def drain(self) -> None:
        """Stop accepting, finish what was begun, and close."""
        self.ready = False
        logger.info("stopping")
        loop = asyncio.get_running_loop()
        seconds = self.settings.limits.drain_seconds
        deadline = loop.time() + seconds
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for door in self._doors:
            door.stop()
        self._turn()
        log = self.hub.log
        try:
            async with asyncio.timeout(seconds * _FOR_THE_DISK):
                await self._all_committed()
                await self.upkeep.snapshot()
        except TimeoutError:
            logger.warning("the disk is slow: stopping without its last answer")
        except StorageError as error:
            # Closing the log says whether anything is lost; the doors are closed first, whatever it says.
            logger.error("the disk fails while stopping: %s", error)
        await self._close_doors(max(deadline - loop.time() - _FOR_THE_LOG * seconds, 0))
        closing = loop.run_in_executor(self._disk, log.close)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + _FOR_THE_LOG * seconds)):
                await asyncio.shield(closing)
        except TimeoutError:
            logger.error("the disk is too slow to wait for: what was not synced is as safe as after a crash")
        finally:
            self._readers.shutdown(wait=False)
            self._disk.shutdown(wait=False)

    def status(self) -> dict[str, object]:
        """The facts of ``/api/status``."""
        hub, log = self.hub, self.hub.log
        furthest_behind = nsmallest(_CONSUMERS_SHOWN, self.consumers, key=lambda consumer: consumer.floor)
        subscribers: dict[str, int] = {}
        for door in self._doors:
            subscribers |= door.facts()
        return {
            "version": __version__,
            "log": str(log.uuid),
            "first": log.first,
            "head": log.head,
            "tail": log.tail,
            "node": {"name": self.settings.node.name, "id": hub.node},
            "mode": "WRK",
            "doors": self.doors,
            "counters": hub.counters.as_dict(),
            "uptime": round(time() - self.started, 3),
            "fsync": log.fsync,
            "disk": {"bytes": log.size, "segments": len(log.segments), "last_time": log.last_time},
            "holds": {
                **hub.state.holds,
                **{f"consumer/{consumer.name}": consumer.floor + 1 for consumer in furthest_behind},
            },
            "consumers": {
                consumer.name: {"floor": consumer.floor, "dead": consumer.dead, "lost": consumer.lost}
                for consumer in furthest_behind
            },
            "subscribers": subscribers,
            "connections": self.connections,
        }

    def write_ready_file(self, path: Path) -> None:
        """Say, whole or not at all, that every door accepts and where."""
        content = msgspec.json.encode({"pid": os.getpid(), **self.doors})
        making = path.with_name(path.name + ".making")
        making.write_bytes(content + b"\n")
        making.replace(path)

    def _open_hub(self, log: Log) -> None:
        settings = self.settings
        self.services = Services()
        self.publishers = Publishers()
        self.queries = Queries()
        self.consumers = Consumers()
        state = State(self.publishers, self.queries, self.services, self.consumers)
        hub = Hub(log, node_id(settings.node.name), max_uncommitted=MAX_UNCOMMITTED, state=state)
        if log.torn is not None:
            hub.counters.add("torn_tails")
            where = log.segments[-1].path.name
            logger.warning(
                "cut %d bytes of an unfinished write off %s: %s", log.torn.size, where, log.torn.reason
            )
        for damaged in log.damaged_snapshots:
            hub.counters.add("damaged_snapshots")
            logger.warning("passed over a damaged snapshot: %s", damaged)
        if settings.log.fsync == "always":
            hub.commit_by(GroupCommit(hub, self._disk))
        hub.wake = self._wake
        hub.take_turn = self._turn
        hub.relieved = self._relieved
        self.hub = hub
        self.upkeep = Upkeep(hub, settings, self._disk, holds=self.consumers.holds)
        policy = Policy(settings.services.auto, settings.services.max)
        if policy != self.services.policy:
            hub.submit(obey(policy))
            self._turn()

    async def _open_doors(self) -> None:
        auth = self.settings.auth
        authentication = Authentication(auth.clients, required=auth.required, allow_sha1=auth.sha1)
        house = House(
            self.hub, self.settings, self._connections, self._readers, self.services, authentication
        )
        listen = self.settings.listen
        if listen.fyrehose is not None:
            door = FyrehoseDoor(house, *self.listening.stream_and_datagrams("fyrehose", listen.fyrehose))
            self._add(door)
            await door.open()
        if listen.spp is not None:
            spp = SppDoor(house, self.listening.stream("spp", listen.spp))
            self._add(spp)
            await spp.open()
        if listen.tube_tcp is not None or listen.tube_ws is not None:
            link = LinkDoor(
                house,
                self.status,
                publishers=self.publishers,
                queries=self.queries,
                services=self.services,
                consumers=self.consumers,
            )
            self._add(link)
            if listen.tube_tcp is not None:
                await link.open("tcp", self.listening.stream("tube_tcp", listen.tube_tcp))
            if listen.tube_ws is not None:
                await link.open("websocket", self.listening.stream("tube_ws", listen.tube_ws))
        if listen.http is not None and self._start_http is not None:
            self._http = await self._start_http(self, self.listening.stream("http", listen.http))

    def _add(self, door: Door) -> None:
        # Before it accepts anyone: what is committed from then on must reach it.
        self._doors.append(door)
        self.hub.doors.append(door)

    async def _close_doors(self, seconds: float) -> None:
        closing = [close_all(self._doors, seconds)]
        if self._http is not None:
            closing.append(self._http.close())
        await asyncio.gather(*closing)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A background loop is over: by our own will, or by a fault that must not go unseen."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.ready = False
            self.hub.counters.add("background_failures")
            logger.critical("a background task failed; restart the hub", exc_info=error)

    def _wake(self) -> None:
        # After every socket that is readable now has been read: their messages make one batch.
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.hub.turn(time_ns() // 1000)

    def _relieved(self) -> None:
        for door in self._doors:
            door.relieved()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK)
            for door in self._doors:
                door.tick(loop.time())

    async def _all_committed(self) -> None:
        """Wait for the sync that commits what was appended last (``fsync=always``)."""
        log = self.hub.log
        while log.tail > log.head:
            await asyncio.get_running_loop().run_in_executor(self._disk, log.sync)
