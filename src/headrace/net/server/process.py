"""One hub process: open the log, open the doors, serve, drain.

Start order: log, hub, doors, ready file. Stop order: stop accepting, take the last turn, let the last sync commit it,
send what is buffered and close, keep a snapshot, close the log; all within ``limits.drain_seconds``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from headrace.cluster.durable_state import STATE_FILE
from headrace.config import Address, Settings
from headrace.config.key_files import keys_of
from headrace.errors import ConfigError, StorageError, UsageError
from headrace.hub.access.access import AccessControl
from headrace.hub.access.accounts import Accounts
from headrace.hub.access.audit import AuditTrail
from headrace.hub.access.authentication import Authentication
from headrace.hub.access.principals import ANONYMOUS, Principals
from headrace.hub.access.used_tokens import UsedTokens
from headrace.hub.publishing.idempotent import IdempotentPublishing
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.sequence import CommitReceiver, Hub
from headrace.hub.services.objects import ServicePolicy, obey
from headrace.hub.state_parts import StateParts
from headrace.log import Log
from headrace.log.files import write_whole
from headrace.log.snapshots.start_after import check_original
from headrace.message import node_id
from headrace.net.cluster.node import ClusterNode
from headrace.net.routing.roles import Routing
from headrace.net.server.accepting.admission import Admission, room_for
from headrace.net.server.accepting.binding import DoorBinder
from headrace.net.server.accepting.door import Door, DoorContext, close_all
from headrace.net.server.accepting.entrance import Entrance
from headrace.net.server.accepting.memory_room import MemoryRoom
from headrace.net.server.access.audit_file import AuditFile
from headrace.net.server.access.reloading import Reloading
from headrace.net.server.access.used_token_files import UsedTokenFiles
from headrace.net.server.doors import DoorOpener
from headrace.net.server.log.maintenance import GroupCommit, LogMaintenance
from headrace.net.server.log.repeat_comparison import in_threads
from headrace.net.server.machine.clock import machine_clock
from headrace.net.server.machine.log_disk import LogDisk, let_append
from headrace.net.server.machine.reader_threads import ReaderThreads
from headrace.net.server.machine.writer_thread import WriterThread
from headrace.net.server.status.alerts import Alert, RefusalRate, alerts_from
from headrace.net.server.status.loop_watch import LoopWatch
from headrace.net.server.status.program_reports import ProgramReports
from headrace.net.server.status.report import facts_of
from headrace.net.server.status.stand_in import StandIn
from headrace.net.upstream.frontend import Upstream, UpstreamStatus, upstream_of
from headrace.tube.fair_turns import FairTurns
from headrace.tube.unfinished import UnfinishedBytes
from headrace.wire.numba_kernels import never_wait

if TYPE_CHECKING:
    from headrace.archive.past import ArchivedPast

logger = logging.getLogger("headrace")

MAX_UNCOMMITTED: Final = 64 << 20
"""Bytes that may wait for a sync or a majority before publishers are made to wait."""

_DISK_THREADS: Final = 5
"""One each for syncs, sealing or trimming, snapshots, a requested seal and tokens, so that none waits for another."""

_FOR_THE_ARCHIVE: Final = 5.0
"""Seconds that a start waits for the archive."""

_TICK: Final = 0.25
_LOOK_SECONDS: Final = 0.01
_FOR_THE_DISK: Final = 0.4
"""The part of the draining time for the last sync and the snapshot."""
_FOR_THE_UPSTREAM: Final = 0.2
"""The part of that in which the upstream hub may still answer."""
_FOR_THE_LOG: Final = 0.1
"""The part for closing the log."""


class HttpDoor(Protocol):
    """The ``http`` door, which :mod:`headrace.web` provides."""

    async def close(self) -> None:
        """Stop serving."""


StartHttp = Callable[["Server", socket.socket], Awaitable[HttpDoor]]


class Server:
    """A running hub; :meth:`start` it, end it with :meth:`drain`."""

    def __init__(
        self, settings: Settings, *, http: StartHttp | None = None, take_free_ports: bool = False
    ) -> None:
        self.settings = settings
        self.binder = DoorBinder(settings, take_free_ports=take_free_ports)
        self.doors, self.moved = self.binder.doors, self.binder.moved
        self.exposed = self.binder.exposed
        self.started = time()
        self.ready = False
        self.hub: Hub
        self.access: AccessControl
        self.authentication: Authentication
        self._tokens: UsedTokenFiles | None = None
        self._principals: Principals
        self._audit: AuditFile
        self.reloading: Reloading
        self._intake: PublishIntake
        self.parts = StateParts()
        self.services = self.parts.services
        self.consumers = self.parts.consumers
        self.subscriptions = self.parts.subscriptions
        self.routing: Routing
        self.entrance: Entrance
        self.maintenance: LogMaintenance
        self.past: ArchivedPast | None = None
        """The archive, if the log has one."""
        self.watch: LoopWatch
        self.memory: MemoryRoom
        self._upstream: Upstream | None = None
        self._cluster: ClusterNode | None = None
        self._parcel: socket.socket | None = None
        self._peers: tuple[Address, ...] = ()
        self._following: asyncio.Task[None] | None = None
        self._start_http = http
        self._http: HttpDoor | None = None
        self._doors: list[Door] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._disk = ThreadPoolExecutor(_DISK_THREADS, "headrace-disk")
        self._writer = WriterThread()
        self._log_disk: LogDisk | None = None
        """The disk of a hub that numbers messages itself; a cluster's node has its own."""
        self.readers = ReaderThreads()
        limits = settings.limits
        self.admission = Admission(
            per_address=limits.connections_per_address, total=room_for(limits.connections)
        )
        self.accounts = Accounts(settings)
        self.unfinished = UnfinishedBytes(max(limits.unfinished_bytes, limits.message_bytes))
        self.turns = FairTurns()
        self._clock = machine_clock()
        self.reports = ProgramReports()
        self.refusals = RefusalRate()

    @property
    def publishing(self) -> IdempotentPublishing:
        """The rules by which nothing is published twice."""
        return self._intake.idempotent

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.admission) + self.entrance.unfinished

    async def start(self) -> None:
        """Open everything; when this returns, every door accepts."""
        settings = self.settings
        _check_roles(settings)
        self._principals = Principals(settings, keys_of(settings))
        never_wait()
        self.unfinished.call_soon = self.turns.call_soon = asyncio.get_running_loop().call_soon
        directory = settings.node.data / "log"
        self._upstream = upstream_of(settings)
        if settings.cluster.peers:
            self._cluster = ClusterNode(settings, self._disk)
            log = self._cluster.open_log(directory)
        elif self._upstream is not None:
            try:
                log = await self._upstream.open_log(directory)
            except BaseException:
                await self._upstream.close()
                raise
        else:
            check_original(directory)
            if (directory / STATE_FILE).exists():
                raise UsageError(
                    f"{directory} is the log of a cluster's node: start it with --peers, or begin in an empty directory"
                )
            log = Log.open(directory, fsync=settings.log.fsync, segment_bytes=settings.log.segment_bytes)
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
        """Stop accepting, finish work under way, and close; a second call does nothing."""
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
            logger.warning("%s: stopping without its last answer", what)
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
        """Set when this hub must be drained and its :meth:`successor` started in its place."""
        return None if self._cluster is None else self._cluster.beginning_anew

    def successor(self) -> Server:
        """Make the hub that takes this drained one's place: from a snapshot, at the same addresses."""
        if self._cluster is None:
            raise UsageError("only a node of a cluster starts over")
        self._cluster.begin_anew(self.settings.node.data / "log")
        same = {f"listen.{door}": where for door, where in self.doors.items()}
        settings = self.settings.override(same, source="where the node was before")
        return Server(settings, http=self._start_http)

    def vouch(self) -> None:
        """Let this node of a cluster continue with what it has, as an operator decided."""
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

    @property
    def mode(self) -> str:
        """The hub's mode: its mode as a node of a cluster, ``WRK`` if it numbers messages itself, else ``FRONTEND``."""
        if self._cluster is not None:
            return self._cluster.mode.value
        return "WRK" if self._upstream is None else "FRONTEND"

    @property
    def cluster(self) -> dict[str, object] | None:
        """Facts of the cluster that this hub is a node of, if any."""
        return None if self._cluster is None else self._cluster.facts()

    @property
    def upstream(self) -> UpstreamStatus | None:
        """The facts about the hub above this one, if there is one."""
        return None if self._upstream is None else self._upstream.facts()

    @property
    def problem(self) -> str | None:
        """The reason why this hub cannot take messages, if any: its disk, its cluster, or its upstream hub."""
        above = None if self._cluster is None else self._cluster.problem
        if self._upstream is not None:
            above = self._upstream.refusing
        full = None if self.hub.shortage is None else str(self.hub.shortage)
        silent = None if self._log_disk is None else self._log_disk.problem
        return self.hub.log.failure or full or silent or self.memory.problem or above

    @property
    def problems(self) -> dict[str, str]:
        """Everything that fails now, and why, by what it concerns; the hub can run without it for a while."""
        above = self._upstream if self._cluster is None else self._cluster
        told = self.maintenance.told()
        if self.hub.log.failure is not None:
            told["sync"] = self.hub.log.failure
        if self._log_disk is not None and self._log_disk.problem is not None:
            told["disk"] = self._log_disk.problem
        if above is not None and above.problem is not None:
            told["cluster" if self._cluster is not None else "upstream"] = above.problem
        if self.memory.problem is not None:
            told["memory"] = self.memory.problem
        return told

    def write_ready_file(self, path: Path) -> None:
        """Write the addresses of all doors, atomically: every door accepts."""
        write_whole(path, msgspec.json.encode({"pid": os.getpid(), **self.doors}), b"\n", sync=False)

    def _open_hub(self, log: Log) -> None:
        settings = self.settings
        hub = Hub(log, node_id(settings.node.name), max_uncommitted=MAX_UNCOMMITTED, state=self.parts.state())
        if log.torn is not None:
            hub.counters.add("torn_tails")
            where = log.segments[-1].path.name
            logger.warning(
                "cut %d bytes of an unfinished write off %s: %s", log.torn.size, where, log.torn.reason
            )
        for damaged in log.damaged_snapshots:
            hub.counters.add("damaged_snapshots")
            logger.warning("passed over a damaged snapshot: %s", damaged)
        if settings.log.fsync == "always" and self._cluster is None:
            hub.commit_by(GroupCommit(hub, self._disk))
        if settings.log.archive is not None:
            # Hubs without an archive do not wait for Parquet's modules.
            from headrace.archive.past import ArchivedPast

            self.past = ArchivedPast(log, settings.log.archive, served=hub.counters.counter("from_archive"))
            log.past = self.past
        # After all readable sockets have been read, so that their messages make one batch.
        hub.wake = partial(asyncio.get_running_loop().call_soon, hub.take_turn)
        hub.now = self._clock.now
        hub.relieved = self._relieved
        self.hub = hub
        self.watch = LoopWatch(hub.counters)
        self.memory = MemoryRoom(hub, self.admission, settings.limits.memory)
        self.entrance = Entrance(settings, hub.counters)
        self._audit = AuditFile(settings.node.data, self._disk, hub.counters)
        self.access = AccessControl(self._principals, hub.counters, AuditTrail(self._audit, time))
        self.reloading = Reloading(settings, self.access, self._take_settings, self.binder.check)
        self.access.load_again = lambda: self.reloading.reload().facts()
        self._intake = PublishIntake(
            hub,
            self.parts.publishers,
            self.parts.queries,
            settings.node.data / "stages",
            in_threads(self.readers.bulk),
        )
        self.maintenance = LogMaintenance(
            hub,
            settings,
            self._disk,
            holds=self.consumers.holds,
            consumers=self.consumers,
            clock=self._clock,
            sync_failed=None if self._cluster is None else self._cluster.sync_failed,
            past=self.past,
            past_threads=self.readers.past,
        )
        if self._upstream is not None:
            # The upstream hub puts the policy into the log.
            self._log_disk = LogDisk(log, self._disk, self._writer, alone=True)
            self._upstream.attach(hub, self._log_disk, self.parts.publishers)
            return
        if self._cluster is not None:
            wanted = settings.listen.parcel
            if wanted is not None:
                self._parcel = self.binder.stream("parcel", wanted)
                wanted = Address.parse(self.doors["parcel"])
            self._peers = self._cluster.attach(hub, self._intake, wanted)
            self._cluster.became_primary = self._obey_policy
            return
        self._log_disk = LogDisk(log, self._disk, self._writer, alone=True)
        let_append(hub, self._log_disk)
        self._obey_policy()
        self.hub.take_turn()

    async def _find_past(self) -> None:
        """Look at the archive before anybody needs it; a hub starts without it, too."""
        if self.past is None:
            return
        looking = asyncio.get_running_loop().run_in_executor(self.readers.past, self.past.look)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(looking, _FOR_THE_ARCHIVE)

    def _obey_policy(self) -> None:
        """Put the settings' policy on services into the log, if it is not there."""
        services, limits = self.settings.services, self.settings.limits
        policy = ServicePolicy(services.auto, services.max, limits.state_bytes)
        # A cluster's first entry tells every node which log it is: it must not wait for a publisher.
        if policy != self.services.policy or (self._cluster is not None and not self.hub.log.tail_op):
            self.hub.submit(obey(policy))

    async def _open_doors(self) -> None:
        auth, cluster = self.settings.auth, self._cluster
        useful = auth.required or ANONYMOUS in self.settings.access
        self._tokens = UsedTokenFiles(self.settings.node.data, self._disk, self.hub.counters)
        if useful:
            self._tokens.open()
        self.authentication = authentication = Authentication(
            self.access.keys,
            required=auth.required,
            useful=useful,
            allow_sha1=auth.sha1,
            used=UsedTokens(self._tokens.known, self._tokens),
            signed_after=self._tokens.signed_after,
        )
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

    def _take_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.accounts.reload(settings)
        self.authentication.useful = settings.auth.required or ANONYMOUS in settings.access

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

    def _relieved(self) -> None:
        for door in self._doors:
            door.relieved()

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
                logger.warning("stopping without the last answers to messages passed on: %s", above.problem)

    async def _all_committed(self) -> None:
        """Wait for the append under way, and for the sync that commits it (``fsync=always``)."""
        log = self.hub.log
        while self._cluster is None and self.hub.paused:  # noqa: ASYNC110 -- at the end of a hub's life
            await asyncio.sleep(_LOOK_SECONDS)
        while self._cluster is not None and log.tail_op > log.head_op:  # noqa: ASYNC110 -- at the end of a hub's life
            await asyncio.sleep(_LOOK_SECONDS)
        while log.tail_op > log.head_op:
            await asyncio.get_running_loop().run_in_executor(self._disk, log.sync)


def _check_roles(settings: Settings) -> None:
    """Refuse to number messages if the settings do not ask for it: they would reach nobody else."""
    node = settings.node
    if "sequence" in node.roles or node.upstream or settings.cluster.peers:
        return
    raise ConfigError(
        "node.roles",
        ",".join(node.roles),
        source=settings.source("node.roles"),
        expected="sequence among them, to number messages here, or --upstream URL (node.upstream), the hub that does",
    )
