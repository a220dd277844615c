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
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from headrace.config import Settings
from headrace.config.key_files import keys_of
from headrace.errors import StorageError, UsageError
from headrace.hub.access.principals import Principals
from headrace.hub.sequence import CommitReceiver
from headrace.log.files import write_whole
from headrace.net.routing.roles import Routing
from headrace.net.server.accepting.door import Door, DoorContext, close_all
from headrace.net.server.assembly import Assembly, check_roles
from headrace.net.server.doors import DoorOpener
from headrace.net.server.status.alerts import Alert, alerts_from
from headrace.net.server.status.report import facts_of
from headrace.net.server.status.stand_in import StandIn
from headrace.wire.numba_kernels import never_wait

logger = logging.getLogger("headrace")

_TICK: Final = 0.25
_LOOK_SECONDS: Final = 0.01
_FOR_THE_DISK: Final = 0.4
"""Share of the draining time for the last sync and the snapshot."""
_FOR_THE_UPSTREAM: Final = 0.2
"""Share of the draining time in which the upstream hub may still answer."""
_FOR_THE_LOG: Final = 0.1
"""Share of the draining time for closing the log."""


class HttpDoor(Protocol):
    """The ``http`` door, which :mod:`headrace.web` provides."""

    async def close(self) -> None:
        """Stop serving."""


StartHttp = Callable[["Server", socket.socket], Awaitable[HttpDoor]]


class Server(Assembly):
    """A running hub; :meth:`start` it, end it with :meth:`drain`."""

    def __init__(
        self, settings: Settings, *, http: StartHttp | None = None, take_free_ports: bool = False
    ) -> None:
        super().__init__(settings, take_free_ports=take_free_ports)
        self.ready = False
        self.routing: Routing
        self._start_http = http
        self._http: HttpDoor | None = None
        self._following: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open everything; when this returns, every door accepts."""
        settings = self.settings
        check_roles(settings)
        self._principals = Principals(settings, keys_of(settings))
        never_wait()
        self.unfinished.call_soon = self.turns.call_soon = asyncio.get_running_loop().call_soon
        log = await self._open_log()
        try:
            self._open_hub(log)
            await self._find_past()
            await self._open_doors()
        except BaseException:
            for door in self._doors:
                door.stop()
            await self._close_doors(0)
            if self._upstream is not None:
                await self._upstream.close()
            self.binder.close()
            if self._tokens is not None:
                self._tokens.close()
            log.close()
            self.readers.shutdown()
            self._disk.shutdown()
            self._writer.shutdown()
            raise
        if log.lock is not None:
            log.lock.tell(doors=self.doors, **self.entrance.tls.told(self.doors))
        for loop in [*self.maintenance.loops(), self.reloading.watch, self._tick]:
            task = asyncio.ensure_future(loop())
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        if self._upstream is not None:
            # Not among the tasks: it runs while the doors close, so that open publishes are still answered.
            self._following = asyncio.ensure_future(self._upstream.run())
            self._following.add_done_callback(self._ended)
        if self._cluster is not None:
            self._cluster.start()
        self.watch.start()
        self.ready = True

    async def drain(self) -> None:
        """Stop accepting, finish open work, and close; a second call does nothing."""
        if not self.hub.log.segments:
            return
        self.ready = False
        logger.info("stopping")
        loop = asyncio.get_running_loop()
        seconds = self.settings.limits.drain_seconds
        deadline = loop.time() + seconds
        self.watch.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for door in self._doors:
            door.stop()
        self.hub.take_turn()
        log = self.hub.log
        try:
            async with asyncio.timeout(seconds * _FOR_THE_DISK):
                await self._flush_upstream(seconds * _FOR_THE_UPSTREAM)
                await self._all_committed()
                await self.maintenance.snapshot()
        except TimeoutError:
            what = "the disk is slow" if self._cluster is None or self.problem is None else self.problem
            logger.warning("%s: stopping without waiting any longer", what)
        except StorageError as error:
            # Closing the log will report any loss; the doors are closed first in any case.
            logger.error("the disk fails while stopping: %s", error)
        await self._close_doors(max(deadline - loop.time() - _FOR_THE_LOG * seconds, 0))
        if self._cluster is not None:
            self._cluster.close()
        if self._upstream is not None and self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            await self._upstream.close()
        if self._tokens is not None:
            await loop.run_in_executor(self._disk, self._tokens.close)
        self.access.audit.close()
        await loop.run_in_executor(self._disk, self._audit.close)
        closing = loop.run_in_executor(self._disk, log.close)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + _FOR_THE_LOG * seconds)):
                await asyncio.shield(closing)
        except TimeoutError:
            logger.error("the disk is too slow to wait for: unsynced messages are as safe as after a crash")
        finally:
            self.readers.shutdown(wait=False)
            self._disk.shutdown(wait=False)
            self._writer.shutdown(wait=False)

    @property
    def beginning_anew(self) -> asyncio.Event | None:
        """The event that is set when this hub must be drained and its :meth:`successor` started; ``None`` if never."""
        return None if self._cluster is None else self._cluster.beginning_anew

    def successor(self) -> Server:
        """Make the hub that replaces this drained one: it starts from a snapshot, at the same addresses."""
        if self._cluster is None:
            raise UsageError("only a node of a cluster starts over")
        self._cluster.begin_anew(self.settings.node.data / "log")
        same = {f"listen.{door}": where for door, where in self.doors.items()}
        settings = self.settings.override(same, source="where the node was before")
        return Server(settings, http=self._start_http)

    def vouch(self) -> None:
        """Let this cluster node continue with the log it has; an operator decides that."""
        if self._cluster is None:
            raise UsageError("this hub is in no cluster")
        self._cluster.vouch()

    def alerts(self) -> list[Alert]:
        """Return the current problems, the gravest first."""
        return list(alerts_from(facts_of(self), self.refusals.lately()))

    def status(self) -> dict[str, object]:
        """Return the facts of ``/api/status``."""
        facts = facts_of(self)
        facts["alerts"] = [alert._asdict() for alert in alerts_from(facts, self.refusals.lately())]
        return facts

    @property
    def subscribers(self) -> dict[str, int]:
        """Numbers of subscribers and connections by door."""
        found: dict[str, int] = {}
        for door in self._doors:
            found |= door.facts()
        return found

    def write_ready_file(self, path: Path) -> None:
        """Write the addresses of all doors to a file, atomically; call it once every door accepts."""
        write_whole(path, msgspec.json.encode({"pid": os.getpid(), **self.doors}), b"\n", sync=False)

    async def _open_doors(self) -> None:
        authentication, cluster = self._open_authentication(), self._cluster
        context = DoorContext(
            self.hub,
            self.settings,
            self.admission,
            self.readers,
            self.parts,
            self._intake,
            authentication,
            self.access,
            self.unfinished,
            self.turns,
            self.accounts,
            self.entrance,
            None if self._upstream is None else self._upstream.aside,
        )
        opener = DoorOpener(context, self.binder, self._add)
        await opener.backbone()
        await opener.services()
        self.routing = await opener.routing()
        if cluster is not None and self._parcel is not None:
            await opener.nodes(cluster, self._parcel, self._peers)
        else:
            await opener.lone_node()
        await opener.link(self.status, self.reports, cluster)
        http = self.settings.listen.http
        if http is not None and self._start_http is not None:
            listening = self.binder.stream("http", http)
            tls = self.entrance.tls.accepts("http")
            stand_in = StandIn(listening, lambda: None if tls is None else tls.latest)
            self.watch.meanwhile = partial(stand_in.serve_if, lambda: self.hub.log.writing)
            self._http = await self._start_http(self, listening)

    def _add(self, door: Door) -> None:
        self._doors.append(door)
        if isinstance(door, CommitReceiver):
            self.hub.doors.append(door)

    async def _close_doors(self, seconds: float) -> None:
        closing = [close_all(self._doors, seconds)]
        if self._http is not None:
            closing.append(self._http.close())
        await asyncio.gather(*closing)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a background loop that failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.ready = False
            self.hub.counters.add("background_failures")
            logger.critical("a background task failed; restart the hub", exc_info=error)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK)
            self.unfinished.tick()
            self.memory.look(loop.time())
            if self._log_disk is not None:
                self._log_disk.look(loop.time())
            for door in self._doors:
                door.tick(loop.time())
            self.refusals.sample(loop.time(), self.hub.counters)
            self.entrance.tls.tick(loop.time())
            if self._upstream is not None:
                self._upstream.tick(loop.time())
            self.access.audit.tick()
            self._audit.tick()

    async def _flush_upstream(self, seconds: float) -> None:
        above = self._upstream if self._cluster is None else self._cluster
        if above is not None:
            try:
                async with asyncio.timeout(seconds):
                    await above.flush()
            except TimeoutError:
                logger.warning("stopping before all relayed messages were answered: %s", above.problem)

    async def _all_committed(self) -> None:
        """Wait for the current append, and for the sync that commits it (``fsync=always``)."""
        log = self.hub.log
        while self._cluster is None and self.hub.paused:  # noqa: ASYNC110 -- at the end of a hub's life
            await asyncio.sleep(_LOOK_SECONDS)
        while self._cluster is not None and log.tail_op > log.head_op:  # noqa: ASYNC110 -- at the end of a hub's life
            await asyncio.sleep(_LOOK_SECONDS)
        while log.tail_op > log.head_op:
            await asyncio.get_running_loop().run_in_executor(self._disk, log.sync)
