"""The link's ``aside``: list messages that the upstream hub refused for good, publish them again, or drop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from msgspec import to_builtins

from headrace.errors import HeadraceError, RefusedError, StorageError
from headrace.net.link.connection import LinkConnection
from headrace.net.server.accepting.door import AsideStore
from headrace.wire.link import requests as ask

logger = logging.getLogger("headrace")

MAX_LISTED: Final = 1000
"""Most requests in one answer, oldest first."""


class LinkAside:
    """The messages set aside at one hub, for its link; only a frontend that stores messages has any."""

    def __init__(self, store: AsideStore | None) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def manage(self, connection: LinkConnection, request: ask.AsideRequest, _body: memoryview) -> None:
        """List the requests, or retry or drop one."""
        if (request.action == "list") is not (request.request is None):
            raise RefusedError("malformed", "retry and drop name a request, list does not")
        requests = [] if self._store is None else self._store.requests
        if request.request is None:
            listed = to_builtins(requests[:MAX_LISTED])
            connection.answer(request.id, requests=listed, more=len(requests) > MAX_LISTED)
        elif self._store is None:
            raise RefusedError("missing", "this hub keeps nothing for an upstream hub")
        else:
            deal = self._retry if request.action == "retry" else self._drop
            self._begin(connection, request.id, deal(self._store, connection, request.id, request.request))

    async def _retry(self, store: AsideStore, connection: LinkConnection, request_id: int, name: str) -> None:
        published = await store.retry(name)
        connection.answer(request_id, last=published.last, kept=published.last is None)

    async def _drop(self, store: AsideStore, connection: LinkConnection, request_id: int, name: str) -> None:
        await store.drop(name)
        connection.answer(request_id)

    def _begin(self, connection: LinkConnection, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        async def answered() -> None:
            try:
                await work
            except HeadraceError as error:
                connection.fail(request_id, error)
            except OSError as error:
                logger.error("what is set aside cannot be dealt with", exc_info=error)
                connection.fail(request_id, StorageError(str(error)))

        task = asyncio.ensure_future(answered())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
