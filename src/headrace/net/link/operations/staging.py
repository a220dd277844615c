"""Stages over the link: a query sends rows part by part, and appends all of them at once.

The rules are in :mod:`headrace.hub.publishing.staging`. This module answers the requests and has threads read and write
the rows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from secrets import token_hex
from typing import NamedTuple

from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace.hub.access.accounts import Account, Resource
from headrace.hub.counters import Counters
from headrace.hub.publishing.cover import Cover
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.publishing.query_marks import Marked, token_of
from headrace.hub.publishing.requests import RequestBodies, check_origin
from headrace.hub.publishing.staging import Stage, StagedPiece, covered, loaded, remove_all
from headrace.hub.sequencer import Commit, Published
from headrace.hub.services.publish import ServicePublishing, ServiceUse, uses
from headrace.message import Batch
from headrace.net.link.connection import LinkConnection
from headrace.net.link.operations.background_work import BackgroundWork
from headrace.net.link.operations.rights import LinkRights
from headrace.wire.link import requests as ask
from headrace.wire.link.plain_rows import parse_published


class _AccountBudget(NamedTuple):
    """Charges a client's account for its stages."""

    account: Account

    def take(self, size: int) -> str | None:
        return self.account.take(Resource.STAGED_BYTES, size)

    def give_back(self, size: int) -> None:
        self.account.give_back(Resource.STAGED_BYTES, size)


class LinkStages:
    """The stages of one hub's link."""

    def __init__(
        self,
        intake: PublishIntake,
        changes: ServicePublishing,
        bodies: RequestBodies,
        aside: BackgroundWork,
        counters: Counters,
        rights: LinkRights,
    ) -> None:
        self._staging = intake.staging
        self._commits = intake.commits
        self._changes = changes
        self._bodies = bodies
        self._aside = aside
        self._counters = counters
        self._rights = rights
        self._commits.discard = partial(aside.run, remove_all)

    def tick(self, now: float) -> None:
        """Drop stages whose queries have been silent for too long."""
        if expired := self._staging.expire(now):
            self._counters.add("stages_expired", len(expired))
            self._aside.run(remove_all, expired)

    def stage(self, connection: LinkConnection, request: ask.StageRequest, body: memoryview) -> None:
        """Keep rows until they are committed."""
        rows = self._bodies.published(body, parse_published(body))
        self._rights.check_topics(connection, [rows])
        piece = StagedPiece(rows, held=len(body))
        stage = Stage(request.query, request.batch, _AccountBudget(connection.account))
        # Names must be short: a commit lists all of its stages in one request's head.
        name, number = request.stage or token_hex(8), request.number
        now = asyncio.get_running_loop().time()
        path, removed = self._staging.add(name, number, stage, piece, now)
        if removed:
            self._aside.run(remove_all, removed)
        if path is None:
            piece.sum_up()
            connection.answer(request.id, stage=name)
            return
        connection.uncommitted(len(body))

        def spilled(_: None) -> None:
            connection.uncommitted(-len(body))
            connection.answer(request.id, stage=name)

        def failed() -> None:
            connection.uncommitted(-len(body))
            self._staging.remove_piece(name, number, piece)

        self._aside.answer(connection, request.id, spilled, piece.spill, path, failed=failed)

    def commit(self, connection: LinkConnection, request: ask.CommitRequest, body: memoryview) -> None:
        """Append the rows of some stages, unless they are in the log already."""
        check_origin(request.origin)
        query, batch, names = request.query, request.batch, request.stages

        def again() -> None:
            try:
                self.commit(connection, request, body)
            except HeadraceError as error:
                connection.fail(request.id, error)

        token = token_of(names) if request.token is None else request.token
        terms = Commit(0, token, request.client or connection.owner)
        begun = self._commits.begin(query, batch, names, again, terms)
        if begun is None:
            return
        if isinstance(begun, Published):
            connection.answer(request.id, first=begun.first, last=begun.last, repeated=True, op=begun.op)
            return
        if begun.known is not None:
            self._compare(connection, request, begun.pieces, begun.known, token)
            return

        def reply(result: Published | HeadraceError) -> None:
            if isinstance(result, HeadraceError):
                connection.fail(request.id, result)
            else:
                connection.answer(
                    request.id, first=result.first, last=result.last, repeated=False, op=result.op
                )

        def read(loaded: tuple[list[Batch], dict[str, ServiceUse], Cover]) -> None:
            rows, used, cover = loaded
            batches = [replace(each, origin=request.origin, publisher=query) for each in rows]
            try:
                self._rights.check_services(connection, used)
                self._changes.make_room(used)
            except HeadraceError:
                self._commits.give_up(query)
                raise
            # Submitted after the creations in the same turn, so it is in the same append.
            self._commits.append(query, batch, batches, names, reply, terms._replace(digest=cover.digest))

        give_up = partial(self._commits.give_up, query)
        self._aside.answer(
            connection, request.id, read, _loaded, begun.pieces, request.services, failed=give_up
        )

    def _compare(
        self,
        connection: LinkConnection,
        request: ask.CommitRequest,
        pieces: list[StagedPiece],
        known: Marked,
        token: int,
    ) -> None:
        """Answer a commit of a batch that is in the log already, after comparing its rows."""

        def read(cover: Cover) -> None:
            place = self._commits.compare(request.query, known, cover)
            self._commits.answered(request.query, request.batch, token, request.stages)
            connection.answer(request.id, first=place.first, last=place.last, repeated=True, op=place.op)

        self._aside.answer(connection, request.id, read, covered, pieces)

    def abort(self, connection: LinkConnection, request: ask.AbortRequest, _body: memoryview) -> None:
        """Forget stages."""
        self._rights.check_queries(connection, self._staging.queries(request.stages))
        self._aside.run(remove_all, self._staging.remove(request.stages))
        connection.answer(request.id)


def _loaded(pieces: list[StagedPiece], services: bool) -> tuple[list[Batch], dict[str, ServiceUse], Cover]:
    """Read the rows of pieces, their cover, and their changes of services, if any; runs in a thread."""
    rows = loaded(pieces)
    return rows, uses(each.to_arrow() for each in rows) if services else {}, covered(pieces)
