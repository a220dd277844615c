"""A stream of events as somebody who acts for a principal: it ends when the principal's right is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from headrace.hub.access.access import AccessControl
from headrace.hub.access.connection_facts import CONNECTION_NUMBERS, ConnectionFacts
from headrace.hub.access.principal import Principal
from headrace.web.rights import DOOR, principal_of, set_principal


@contextmanager
def held(access: AccessControl, request: web.Request) -> Iterator[None]:
    """Have the task of this request end if its principal's right goes while the block runs."""
    holder = StreamHolder(request, asyncio.current_task())
    access.join(holder)
    try:
        yield
    finally:
        access.leave(holder)


class StreamHolder:
    """One stream of events, and the task that sends it."""

    def __init__(self, request: web.Request, task: asyncio.Task[Any] | None) -> None:
        self.number = next(CONNECTION_NUMBERS)
        self._request = request
        self._task = task
        self._since = asyncio.get_running_loop().time()

    @property
    def principal(self) -> Principal:
        """Who reads the stream."""
        return principal_of(self._request)

    @principal.setter
    def principal(self, principal: Principal) -> None:
        set_principal(self._request, principal)

    def facts(self, now: float) -> ConnectionFacts:
        """Describe the stream for an operator."""
        peer, seconds = str(self._request.remote), now - self._since
        return ConnectionFacts(
            self.number, DOOR, peer, self.principal.name, seconds, seconds, 0, 0, queued=0, streams=1
        )

    def revoked(self, _detail: str) -> None:
        """End the stream; the page asks again, and is told what it may do then."""
        if self._task is not None:
            self._task.cancel()
