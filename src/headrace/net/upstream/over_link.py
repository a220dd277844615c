"""An upstream hub over the link.

One tube at a time. On each new one the two logs are compared (:mod:`~headrace.net.upstream.log_alignment`); then this
hub copies the other log from its own tail on, messages and entries as they come, and sends the requests that are due of
:class:`~headrace.hub.publishing.relaying.publishes.PublishRelay`; others are :mod:`~headrace.net.upstream.calls`. The
relay and the hub decide; this module moves the bytes.

The upstream hub is asked for its head every second. One that holds the connection and gives no answer counts as lost,
at the beginning too, so that the next of several hosts has its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from time import time
from typing import Any, Final
from uuid import UUID, uuid4

from headrace.client.identity import signer
from headrace.client.link.connection import LinkDialer, Sign, link_plan
from headrace.client.link.requests import Inbox, LinkSession, LostTubeError, check
from headrace.client.reconnect import dial_hosts, redial
from headrace.config import Address, Settings
from headrace.config.key_files import key_of_client
from headrace.errors import (
    ConfigError,
    HeadraceError,
    LimitError,
    PeerError,
    StorageError,
    TrimmedError,
    UnexpectedError,
    UnreachableError,
    UsageError,
)
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.relaying.backlog import silence_of
from headrace.hub.publishing.relaying.passed import pack_passed
from headrace.hub.publishing.relaying.publishes import PublishRelay
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Published
from headrace.log import Log
from headrace.log.snapshots.start_after import begin, begin_anew, is_log, note_copy
from headrace.message import Batch, merge
from headrace.net.server.accepting.tls import HubTls
from headrace.net.server.machine.log_disk import LogDisk
from headrace.net.upstream.aside_disk import AsideDisk
from headrace.net.upstream.calls import UpstreamCalls, published_of
from headrace.net.upstream.frontend import START_SECONDS, UpstreamStatus, first_contact
from headrace.net.upstream.log_alignment import (
    CREDIT,
    fetch_snapshot,
    head_of,
    meet,
    received_operations,
)
from headrace.net.upstream.outbox_disk import OutboxDisk, has_outbox
from headrace.wire.link import requests as ask
from headrace.wire.link.message import MAX_HEAD, MAX_MESSAGE, PUBLISHED, Buffer, LinkMessage, body_of

logger = logging.getLogger("headrace")

MAX_WAITING: Final = 64 << 20
"""Bytes on their way upstream before publishers have to wait."""

_ATTEMPT_SECONDS: Final = 5.0
_DISK_SECONDS: Final = 0.25
"""Seconds until an append that the disk refused is tried again."""
_CROWDED_SECONDS: Final = 0.005
_LOOK_SECONDS: Final = 1.0
"""Seconds between questions for the upstream hub's head."""


class TubeUpstream:
    """The upstream hub, at the other end of a tube."""

    def __init__(self, settings: Settings) -> None:
        self.problem: str | None = "the upstream hub was not reached yet"
        self._settings = settings
        self._urls = settings.node.upstream
        self._silence = silence_of(settings.node.upstream_seconds)
        """For how many seconds it may say nothing while it is connected."""
        hosts = [Address.parse(url.partition("://")[2]) for url in self._urls]
        tls = HubTls(settings).dials_url(self._urls[0])
        self._dialer = LinkDialer(hosts, f"frontend {settings.node.name}", self._sign(), tls=tls)
        self._plan = link_plan(hosts, Random())
        self._hub: Hub
        self._disk: LogDisk
        self._passing: PublishRelay
        self._outbox: OutboxDisk | None = None
        self._away_since: float | None = time()
        """When the connection was lost, in seconds since 1970."""
        self._failed = False
        self._session: LinkSession | None = None
        """The tube for requests: the logs were compared on it."""
        self._spare: LinkSession | None = None
        """The tube that was opened at the start, until :meth:`run` takes it."""
        self._calls = UpstreamCalls(",".join(self._urls), settings.node.upstream_seconds)
        self._head = 0

    # Called by the server

    async def open_log(self, directory: Path) -> Log:
        """Open this hub's log; if there is none, or it is too old, begin one after the upstream hub's snapshot."""
        if not is_log(directory):
            self._spare = await first_contact(self._plan, self._dialer.dial, START_SECONDS)
            await self._begin(directory, begin)
            return self._open(directory)
        log = self._open(directory)
        try:
            self._spare = await dial_hosts(self._plan, self._dialer.dial, _ATTEMPT_SECONDS)
            goes_on = await meet(self._spare, log, self._silence)
        except (UnreachableError, LostTubeError) as error:
            logger.warning("starting with what is here, up to message %d: %s", log.tail, error or "lost")
            spare, self._spare = self._spare, None
            if spare is not None:
                spare.tube.abort()
            return log
        except BaseException:
            log.close()
            raise
        if goes_on:
            return log
        tail = log.tail
        log.close()
        await self._begin(directory, begin_anew)
        logger.warning("the upstream hub no longer keeps what follows message %d", tail)
        return self._open(directory)

    def attach(self, hub: Hub, disk: LogDisk, publishers: PublisherNumbers) -> None:
        """Become the hub's sequencer."""
        self._hub, self._disk = hub, disk
        if has_outbox(self._settings):
            self._outbox = OutboxDisk(self._settings, hub, publishers, most_waiting=MAX_WAITING)
            self._passing = self._outbox.relay
        else:
            self._passing = PublishRelay(
                hub,
                name=lambda: uuid4().hex,
                patience=self._settings.node.upstream_seconds,
                most=MAX_WAITING,
                now=asyncio.get_running_loop().time(),
            )
        self._passing.unreachable = self._calls.unreachable
        self._passing.wake = self._send_due
        self._passing.send_commit = self._calls.commit
        self._passing.ask_newest = self._calls.newest
        self._passing.ask_to_open = self._calls.open
        hub.sequencer = self._passing

    async def run(self) -> None:
        """Follow, on one tube after another."""
        loop = asyncio.get_running_loop()
        self._plan.on_failure = lambda error: self._lose(str(error))
        try:
            while True:
                session, self._spare = self._spare, None
                try:
                    if session is None or session.lost:
                        session = await redial(self._plan, self._dialer.dial)
                    await self._follow_on(session)
                except UnreachableError as error:
                    # It took the connection and says nothing: the next host may.
                    self._plan.failed(error)
                    self._plan.failures += 1
                except (PeerError, StorageError) as error:
                    if isinstance(error, TrimmedError):
                        raise UsageError(
                            f"the upstream hub no longer keeps what follows message {self._hub.log.tail}:"
                            " restart this hub, and it begins anew after a snapshot"
                        ) from None
                    self._lose(str(error))
                    self._plan.failures += 1
                else:
                    self._plan.lost(loop.time())
        except UsageError as error:
            self._lose(str(error))
            self._failed = True
            self._passing.fail(str(error))
            raise

    def tick(self, now: float) -> None:
        """Enforce deadlines."""
        if self._outbox is not None:
            self._outbox.tick(now)
        self._passing.tick(now)

    @property
    def refusing(self) -> str | None:
        """Why publishers are refused, or made to wait, if so."""
        if self._outbox is None or not self._settings.upstream.store or self._failed:
            return self.problem
        return self._outbox.refusing

    @property
    def aside(self) -> AsideDisk | None:
        """What the upstream hub refused for good."""
        return None if self._outbox is None else self._outbox.aside

    async def flush(self) -> None:
        """Wait until nothing is under way."""
        while self._passing.unfinished or self._calls.unfinished:  # noqa: ASYNC110 -- at the end of a hub's life
            await asyncio.sleep(_CROWDED_SECONDS)

    async def close(self) -> None:
        """End the connection."""
        self._calls.cancel()
        for session in (self._session, self._spare):
            if session is not None:
                await session.tube.close()
        if self._outbox is not None:
            await self._outbox.close()

    def facts(self) -> UpstreamStatus:
        """Describe the upstream hub for the status."""
        head = self._hub.log.head
        return {
            "url": ",".join(self._urls),
            "connected": self._session is not None,
            "peer": None if self._session is None else str(self._session.tube.peer),
            "head": max(self._head, head),
            "lag": max(0, self._head - head),
            "waiting_bytes": self._passing.size,
            "problem": self.problem,
            "away_since": self._away_since,
            "outbox": None if self._outbox is None else self._outbox.facts(),
        }

    # Following

    async def _follow_on(self, session: LinkSession) -> None:
        try:
            log = self._hub.log
            if not await meet(session, log, self._silence):
                raise TrimmedError(log.tail + 1, log.tail + 1, log.tail + 2)
            # Only after the comparison: an original that was started with the wrong option must stay one.
            note_copy(log.directory, self._describe(log.uuid))
            tail = log.tail_op
            inbox = session.stream(
                lambda n: ask.ReplicateRequest(id=n, from_op=tail + 1, credit=CREDIT), CREDIT
            )
            self._session, self.problem, self._away_since = session, None, None
            longest = session.hub.get("message_bytes")
            self._passing.longest = longest if type(longest) is int else None
            self._calls.connected(session)
            logger.info("following %s from message %d", session.tube.peer, log.tail + 1)
            self._passing.connected()
            looking = asyncio.ensure_future(self._look(session, inbox))
            try:
                await self._follow(inbox)
            finally:
                looking.cancel()
        except LostTubeError:
            self._lose(f"the connection to {session.tube.peer} is lost")
        finally:
            session.tube.abort()

    async def _follow(self, inbox: Inbox) -> None:
        hub = self._hub
        while True:
            message = await inbox.get()
            if message is None:
                raise UnexpectedError("link", "replicate", "its end", "it has none")
            if message.head.get("event") != "ops":
                continue
            batches = received_operations(message, hub.log)
            if not batches or batches[0].op != hub.log.tail_op + 1:
                raise UnexpectedError("link", "first", message.head.get("first"), f"{hub.log.tail_op + 1}")
            while not await self._append(batches):  # noqa: ASYNC110 -- a disk gives no notice when it has room
                await asyncio.sleep(_DISK_SECONDS)
            while hub.crowded:  # noqa: ASYNC110 -- the commit rule gives no notice; this is rare
                await asyncio.sleep(_CROWDED_SECONDS)

    async def _append(self, batches: Sequence[Batch]) -> bool:
        try:
            await self._disk.appended(batches)
        except StorageError as error:
            self.problem = f"the disk does not take what comes from the upstream hub: {error}"
            self._hub.counters.refuse("upstream", "storage", "", error)
            return False
        except UsageError as error:
            raise UnexpectedError("link", "ops", str(error), "must follow the log's tail") from error
        self._hub.followed(batches)
        self.problem = None
        self._head = max(self._head, self._hub.log.tail)
        return True

    async def _look(self, session: LinkSession, inbox: Inbox) -> None:
        """Ask regularly for the upstream hub's head; one that no longer tells it is lost."""
        log = self._hub.log
        while True:
            before = log.tail_op
            try:
                head = (await head_of(session, self._silence)).head.get("head")
                self._head = head if type(head) is int else self._head
            except LostTubeError:
                return
            except UnreachableError as error:
                # On a slow line the answer is behind what comes of the log.
                if log.tail_op == before:
                    inbox.lose(error)
                    return
            except HeadraceError:
                pass  # A hub that does not know its head for now is there.
            await asyncio.sleep(_LOOK_SECONDS)

    def _lose(self, why: str) -> None:
        if self._session is not None or self.problem is None:
            logger.warning("the upstream hub is lost: %s", why)
        self._session = None
        self._away_since = time() if self._away_since is None else self._away_since
        self.problem = f"the upstream hub is lost: {why}"
        self._calls.lost(self.problem)
        self._passing.lost(asyncio.get_running_loop().time())

    def _sign(self) -> Sign | None:
        client_id = self._settings.node.upstream_client
        if not client_id:
            return None
        key = key_of_client(self._settings, client_id)
        if key is None:
            raise ConfigError(
                "node.upstream_client",
                client_id,
                source=self._settings.source("node.upstream_client"),
                expected="one of auth.clients, or the client_id of a principal",
            )
        return signer(client_id, key.reveal())

    async def _begin(self, directory: Path, how: Any) -> None:
        if self._spare is None:
            raise UnreachableError(",".join(self._urls), "the connection was lost at once")
        try:
            snapshot = await fetch_snapshot(self._spare, self._silence)
        except LostTubeError:
            raise UnreachableError(",".join(self._urls), "the connection was lost at once") from None
        how(directory, snapshot, sync=self._settings.log.fsync != "never")
        note_copy(directory, self._describe(snapshot.uuid))
        logger.info("a new copy of log %s begins after message %d", snapshot.uuid, snapshot.seq)

    def _open(self, directory: Path) -> Log:
        options = self._settings.log
        return Log.open(directory, fsync=options.fsync, segment_bytes=options.segment_bytes)

    def _describe(self, uuid: UUID) -> str:
        return f"log {uuid} of {','.join(self._urls)}"

    # Relaying publishes

    def _send_due(self) -> None:
        session = self._session
        if session is None or session.lost:
            return
        for request in self._passing.due():
            try:
                body = _body(request, self._hub.log.uuid)
            except LimitError as error:
                self._passing.unfit(request, error)
                continue
            answer = session.call(partial(_asked, request), body)
            answer.add_done_callback(partial(self._answered, session, request))

    def _answered(
        self, session: LinkSession, request: RelayRequest, done: asyncio.Future[LinkMessage]
    ) -> None:
        if done.cancelled() or done.exception() is not None or session is not self._session:
            return  # Lost with its tube: it is sent again over the next one.
        try:
            check(done.result())
            result: Published | HeadraceError = published_of(done.result())
        except LostTubeError:
            # It is stopping: unanswered requests go to the next tube.
            session.tube.abort()
            return
        except HeadraceError as error:
            result = error
        self._passing.answered(request, result)


def _asked(request: RelayRequest, request_id: int) -> ask.PassRequest | ask.PublishRequest:
    if request.passed:
        rows = sum(len(batch) for batch in request.rows)
        return ask.PassRequest(
            id=request_id,
            frontend=request.publisher,
            number=request.number,
            rows=rows,
            retry=request.claim.retry,
        )
    return ask.PublishRequest(
        id=request_id,
        publisher=request.publisher,
        number=request.number,
        follows=request.follows,
        origin=request.rows[0].origin,
        **request.claim._asdict(),
    )


def _body(request: RelayRequest, uuid: UUID) -> Buffer:
    if request.passed:
        body: Buffer = pack_passed(uuid, request.rows)
    else:
        body = body_of(merge(request.rows).select(PUBLISHED.names))
    if len(body) > MAX_MESSAGE - MAX_HEAD:
        raise LimitError("link", "rows passed on", len(body), MAX_MESSAGE - MAX_HEAD)
    return body
