"""Stages over the link: rows that a query brings part by part, and appends all at once.

The rules are in :mod:`headrace.hub.publishing.staging`; here rows go to disk and come back aside, and requests are
answered.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from secrets import token_hex

from headrace.errors import HeadraceError
from headrace.hub.counters import Counters
from headrace.hub.publishing.staging import (
    SECONDS,
    Commits,
    Load,
    Repeated,
    Stage,
    Staging,
    Wait,
    loaded,
    remove_all,
)
from headrace.hub.services.publish import ServicePublishing, ServiceUse, uses
from headrace.message import Batch
from headrace.net.link.background_work import BackgroundWork
from headrace.net.link.connection import LinkConnection
from headrace.net.link.request_rows import Bodies, check_origin
from headrace.wire.link import requests as ask


class LinkStages:
    """The stages of one hub's link."""

    def __init__(
        self,
        staging: Staging,
        commits: Commits,
        changes: ServicePublishing,
        bodies: Bodies,
        aside: BackgroundWork,
        counters: Counters,
    ) -> None:
        self._staging = staging
        self._commits = commits
        self._changes = changes
        self._bodies = bodies
        self._aside = aside
        self._counters = counters

    def tick(self, now: float) -> None:
        """Forget stages that nobody committed."""
        if expired := self._staging.expire(now):
            self._counters.add("stages_expired", len(expired))
            self._aside.run(remove_all, expired)

    def stage(self, connection: LinkConnection, request: ask.Stage, body: memoryview) -> None:
        """Keep rows until they are committed."""
        rows = self._bodies.published(body)
        deadline = asyncio.get_running_loop().time() + SECONDS
        stage = Stage(request.query, request.batch, request.part, rows, deadline, held=len(body))
        # Short: a commit names all of its stages in one request's head.
        name = token_hex(8)
        path = self._staging.add(name, stage)
        if path is None:
            stage.sum_up()
            connection.answer(request.id, None, stage=name)
            return
        connection.uncommitted(len(body))

        def spilled(_: None) -> None:
            connection.uncommitted(-len(body))
            connection.answer(request.id, None, stage=name)

        def failed() -> None:
            connection.uncommitted(-len(body))
            self._staging.remove([name])

        self._aside.answer(connection, request.id, spilled, stage.spill, path, failed=failed)

    def commit(self, connection: LinkConnection, request: ask.Commit, body: memoryview) -> None:
        """Append the rows of some stages, unless they are in the log."""
        check_origin(request.origin)
        query, batch, names = request.query, request.batch, request.stages

        def again() -> None:
            try:
                self.commit(connection, request, body)
            except HeadraceError as error:
                connection.fail(request.id, error)

        match self._commits.begin(query, batch, names, again):
            case Wait():
                return
            case Repeated(first, last):
                connection.answer(request.id, None, first=first, last=last, repeated=True)
                return
            case Load(stages):
                pass

        def told(result: tuple[int | None, int | None] | HeadraceError) -> None:
            if isinstance(result, HeadraceError):
                connection.fail(request.id, result)
            else:
                connection.answer(request.id, None, first=result[0], last=result[1], repeated=False)

        def read(rows: tuple[list[Batch], dict[str, ServiceUse]]) -> None:
            made = [replace(each, origin=request.origin, publisher=query) for each in rows[0]]
            try:
                self._changes.make_room(rows[1])
            except HeadraceError:
                self._commits.give_up(query)
                raise
            # Behind the creations, in the same turn, so in the same append.
            self._commits.append(query, batch, made, names, told)

        give_up = partial(self._commits.give_up, query)
        self._aside.answer(connection, request.id, read, _loaded, stages, request.services, failed=give_up)

    def abort(self, connection: LinkConnection, request: ask.Abort, _body: memoryview) -> None:
        """Forget stages."""
        self._aside.run(remove_all, self._staging.remove(request.stages))
        connection.answer(request.id)


def _loaded(stages: list[Stage], services: bool) -> tuple[list[Batch], dict[str, ServiceUse]]:
    """The rows of stages, and how they use services if they are changes to those; for a thread."""
    rows = loaded(stages)
    return rows, uses(each.to_arrow() for each in rows) if services else {}
