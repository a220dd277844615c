"""Dispatches the link's requests to the modules of this folder, and answers the simplest ones.

Each operation takes a request, and its connection answers it, now or later. Publishing is judged in the hub
(:mod:`headrace.hub.publishing.requests`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from headrace.errors import ConfigError, LimitError, RefusedError, TrimmedError
from headrace.hub.holds import MAX_HOLDS, hold
from headrace.hub.publishing.requests import PublishRequests, RequestBodies
from headrace.hub.services.entries import POLICY
from headrace.hub.services.publish import ServicePublishing
from headrace.hub.state import entry
from headrace.message import Batch
from headrace.net.link.connection import LinkConnection
from headrace.net.link.operations.aside import LinkAside
from headrace.net.link.operations.background_work import BackgroundWork
from headrace.net.link.operations.consumers import LinkConsumers
from headrace.net.link.operations.held_requests import HeldRequests
from headrace.net.link.operations.lost_ranges import LinkLostRanges
from headrace.net.link.operations.reading import LinkReading
from headrace.net.link.operations.rights import LinkRights
from headrace.net.link.operations.services import LinkServices
from headrace.net.link.operations.staging import LinkStages
from headrace.net.link.streams.row_bodies import RowCache
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.status.program_reports import ProgramReports
from headrace.net.server.status.shown_facts import shown_to
from headrace.wire.link import requests as ask


class LinkOperations:
    """The operations of one hub's link."""

    def __init__(
        self,
        context: DoorContext,
        cache: RowCache,
        consumers: LinkConsumers,
        status: Callable[[], dict[str, object]],
        reports: ProgramReports,
    ) -> None:
        hub, parts = context.hub, context.parts
        self._hub = hub
        self._log = hub.log
        self._status = status
        self._reports = reports
        self._access = context.access
        self.rights = rights = LinkRights(context.access, lambda name: parts.publishers.holder(name).client)
        self.held = HeldRequests(hub, context.settings.cluster.publish_seconds, self.perform)
        changes = ServicePublishing(hub, parts.services)
        bodies = RequestBodies(
            hub.log,
            context.settings.limits.message_bytes,
            context.settings.limits.attributes,
            reserved=(POLICY,),
        )
        aside = BackgroundWork(context.readers)
        reading = LinkReading(hub, context.readers, cache, aside, consumers, parts.subscriptions, rights)
        self.waiting = reading.waiting
        self.publishing = publishing = PublishRequests(context.intake.idempotent, bodies)
        self._stages = LinkStages(context.intake, changes, bodies, aside, hub.counters, rights)
        self.table: dict[type[ask.Request], Callable[[LinkConnection, Any, memoryview], None]] = {
            ask.HeadRequest: reading.head,
            ask.StatusRequest: self._tell_status,
            ask.ReadRequest: reading.read,
            ask.FollowRequest: reading.follow,
            ask.EntriesRequest: reading.entries,
            ask.ReplicateRequest: reading.replicate,
            ask.PublisherRequest: publishing.newest,
            ask.HoldsRequest: self._holds,
            ask.StageRequest: self._stages.stage,
            ask.CommitRequest: self._stages.commit,
            ask.AbortRequest: self._stages.abort,
            ask.SnapshotRequest: reading.snapshot,
            ask.ChainRequest: reading.chain,
            ask.ReportRequest: self._report,
            ask.ReloadRequest: self._reload,
            ask.AsideRequest: LinkAside(context.aside).manage,
            ask.LostRequest: LinkLostRanges(hub, parts.losses).lost,
            ask.SubscriptionsRequest: reading.subscriptions,
            ask.AckRequest: consumers.ack,
            ask.ConsumersRequest: consumers.manage,
            ask.ServicesRequest: LinkServices(parts.services).manage,
        }

    def perform(self, connection: LinkConnection, request: ask.Request, body: memoryview) -> None:
        """Perform a request if the client may make it; an error raised here is its answer."""
        # Check rights, and report changes to the audit log, once: by the rules in force when the request is performed.
        if not self.held.hold(connection, request):
            self.rights.check(connection, request)
            self.table[type(request)](connection, request, body)

    def tick(self, now: float) -> None:
        """Forget stages that were not committed in time, and perform requests that were held."""
        self._stages.tick(now)
        self.held.tick(now)

    def _tell_status(self, connection: LinkConnection, request: ask.StatusRequest, _body: memoryview) -> None:
        connection.answer(request.id, status=shown_to(connection.principal, self._status()))

    def _report(self, connection: LinkConnection, request: ask.ReportRequest, _body: memoryview) -> None:
        self._reports.take(request.name, request.facts, monotonic())
        connection.answer(request.id)

    def _reload(self, connection: LinkConnection, request: ask.ReloadRequest, _body: memoryview) -> None:
        try:
            connection.answer(request.id, reloaded=self._access.load_again())
        except ConfigError as error:
            # An error in the settings is the operator's fault, not the client's.
            raise RefusedError("settings", str(error)) from None

    def _holds(self, connection: LinkConnection, request: ask.HoldsRequest, _body: memoryview) -> None:
        holds = self._hub.state.holds
        name = request.name
        if name is None:
            if request.seq is not None or request.release:
                raise RefusedError("malformed", "a hold has a name")
            connection.answer(request.id, holds=dict(holds))
            return
        if request.release == (request.seq is not None):
            raise RefusedError("malformed", "a hold is set with seq or removed with release")
        if request.release and name not in holds:
            raise RefusedError("missing", f"there is no hold {name!r}")
        if not request.release and name not in holds and len(holds) >= MAX_HOLDS:
            raise LimitError("link", "holds", len(holds) + 1, MAX_HOLDS)
        if request.seq is not None and request.seq < self._log.first:
            raise TrimmedError(request.seq, self._log.first - 1, self._log.first)

        def done(_: Batch) -> None:
            held = holds.get(name)
            if held is None and request.seq is not None and len(holds) >= MAX_HOLDS:
                # Other holds were committed first.
                raise LimitError("link", "holds", len(holds) + 1, MAX_HOLDS)
            connection.answer(request.id, holds={} if held is None else {name: held})

        connection.submit(request.id, entry(holds.name, name, hold(request.seq)), done)
