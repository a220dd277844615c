"""A hub's parts, made from its settings and connected with each other.

A part that needs the log is made when the log is open. Who numbers messages decides what is connected: this hub itself,
the cluster that it is a node of, or the upstream hub that it is a frontend of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import time
from typing import TYPE_CHECKING, Final

from headrace.cluster.durable_state import STATE_FILE
from headrace.config import Address, Settings
from headrace.errors import ConfigError, UsageError
from headrace.hub.access.access import AccessControl
from headrace.hub.access.accounts import Accounts
from headrace.hub.access.audit import AuditTrail
from headrace.hub.access.authentication import Authentication
from headrace.hub.access.principals import ANONYMOUS, Principals
from headrace.hub.access.used_tokens import UsedTokens
from headrace.hub.publishing.idempotent import IdempotentPublishing
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.sequence import Hub
from headrace.hub.services.entries import ServicePolicy, obey
from headrace.hub.state_parts import StateParts
from headrace.log import Log
from headrace.log.snapshots.start_after import check_original
from headrace.message import node_id
from headrace.net.cluster.node import ClusterNode
from headrace.net.server.accepting.admission import Admission, room_for
from headrace.net.server.accepting.binding import DoorBinder
from headrace.net.server.accepting.door import Door
from headrace.net.server.accepting.entrance import Entrance
from headrace.net.server.accepting.memory_room import MemoryRoom
from headrace.net.server.access.audit_file import AuditFile
from headrace.net.server.access.reloading import Reloading
from headrace.net.server.access.used_token_files import UsedTokenFiles
from headrace.net.server.log.maintenance import GroupCommit, LogMaintenance
from headrace.net.server.log.repeat_comparison import in_threads
from headrace.net.server.machine.clock import machine_clock
from headrace.net.server.machine.log_disk import LogDisk, let_append
from headrace.net.server.machine.reader_threads import ReaderThreads
from headrace.net.server.machine.writer_thread import WriterThread
from headrace.net.server.status.alerts import RefusalRate
from headrace.net.server.status.loop_watch import LoopWatch
from headrace.net.server.status.program_reports import ProgramReports
from headrace.net.upstream.frontend import Upstream, UpstreamStatus, upstream_of
from headrace.tube.fair_turns import FairTurns
from headrace.tube.unfinished import UnfinishedBytes

if TYPE_CHECKING:
    from headrace.archive.past import ArchivedPast

logger = logging.getLogger("headrace")

MAX_UNCOMMITTED: Final = 64 << 20
"""Bytes that may wait for a sync or a majority before publishers are made to wait."""

_DISK_THREADS: Final = 5
"""One each for syncs, sealing or trimming, snapshots, requested seals, and tokens: none waits for another."""

_FOR_THE_ARCHIVE: Final = 5.0
"""Longest time, in seconds, that a starting hub waits for the archive."""


class Assembly:
    """The parts of one hub. :class:`~headrace.net.server.process.Server` opens its doors and runs it."""

    def __init__(self, settings: Settings, *, take_free_ports: bool = False) -> None:
        self.settings = settings
        self.binder = DoorBinder(settings, take_free_ports=take_free_ports)
        self.doors, self.moved = self.binder.doors, self.binder.moved
        self.exposed = self.binder.exposed
        self.started = time()
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
        self._doors: list[Door] = []
        self._disk = ThreadPoolExecutor(_DISK_THREADS, "headrace-disk")
        self._writer = WriterThread()
        self._log_disk: LogDisk | None = None
        """The disk of a hub that numbers messages itself; a cluster node brings its own."""
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
        """The part that makes publishing idempotent."""
        return self._intake.idempotent

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.admission) + self.entrance.unfinished

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
        """Facts of the connection to the upstream hub, if this hub has one."""
        return None if self._upstream is None else self._upstream.facts()

    @property
    def problem(self) -> str | None:
        """Why this hub cannot take messages: its disk, its memory, its cluster, or its upstream hub; else ``None``."""
        above = None if self._cluster is None else self._cluster.problem
        if self._upstream is not None:
            above = self._upstream.refusing
        full = None if self.hub.shortage is None else str(self.hub.shortage)
        silent = None if self._log_disk is None else self._log_disk.problem
        return self.hub.log.failure or full or silent or self.memory.problem or above

    @property
    def problems(self) -> dict[str, str]:
        """What fails now, and why, even if the hub can run without it for a while."""
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

    async def _open_log(self) -> Log:
        """Open the log as the hub's role needs it: a cluster node's, a frontend's copy, or its own."""
        settings = self.settings
        directory = settings.node.data / "log"
        self._upstream = upstream_of(settings)
        if settings.cluster.peers:
            self._cluster = ClusterNode(settings, self._disk)
            return self._cluster.open_log(directory)
        if self._upstream is not None:
            try:
                return await self._upstream.open_log(directory)
            except BaseException:
                await self._upstream.close()
                raise
        check_original(directory)
        if (directory / STATE_FILE).exists():
            raise UsageError(
                f"{directory} is the log of a cluster's node: start it with --peers, or begin in an empty directory"
            )
        return Log.open(directory, fsync=settings.log.fsync, segment_bytes=settings.log.segment_bytes)

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
            # Importing Parquet takes long, so only hubs with an archive do it.
            from headrace.archive.past import ArchivedPast

            self.past = ArchivedPast(log, settings.log.archive, served=hub.counters.counter("from_archive"))
            log.past = self.past
        # The turn is taken after all readable sockets have been read, so that their messages make one batch.
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
        """Look at the archive before anybody needs it; the hub also starts if it cannot be reached."""
        if self.past is None:
            return
        looking = asyncio.get_running_loop().run_in_executor(self.readers.past, self.past.look)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(looking, _FOR_THE_ARCHIVE)

    def _obey_policy(self) -> None:
        """Put the settings' policy on services into the log, unless it is there already."""
        services, limits = self.settings.services, self.settings.limits
        policy = ServicePolicy(services.auto, services.max, limits.state_bytes)
        # A cluster's first entry tells every node the log's identity, so it must not wait for a publisher.
        if policy != self.services.policy or (self._cluster is not None and not self.hub.log.tail_op):
            self.hub.submit(obey(policy))

    def _open_authentication(self) -> Authentication:
        auth = self.settings.auth
        useful = auth.required or ANONYMOUS in self.settings.access
        self._tokens = UsedTokenFiles(self.settings.node.data, self._disk, self.hub.counters)
        if useful:
            self._tokens.open()
        self.authentication = Authentication(
            self.access.keys,
            required=auth.required,
            useful=useful,
            allow_sha1=auth.sha1,
            used=UsedTokens(self._tokens.known, self._tokens),
            signed_after=self._tokens.signed_after,
        )
        return self.authentication

    def _take_settings(self, settings: Settings) -> None:
        """Apply reloaded settings to the parts that keep a copy of theirs."""
        self.settings = settings
        self.accounts.reload(settings)
        self.authentication.useful = settings.auth.required or ANONYMOUS in settings.access

    def _relieved(self) -> None:
        for door in self._doors:
            door.relieved()


def check_roles(settings: Settings) -> None:
    """Raise an error if nobody would number this hub's messages: it lacks the role, and no other hub does it."""
    node = settings.node
    if "sequence" in node.roles or node.upstream or settings.cluster.peers:
        return
    raise ConfigError(
        "node.roles",
        ",".join(node.roles),
        source=settings.source("node.roles"),
        expected="sequence among them, to number messages here, or --upstream URL (node.upstream), the hub that does",
    )
