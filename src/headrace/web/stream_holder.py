"""A stream of events that acts for a principal, and ends when the principal loses the right to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from aiohttp import web

from headrace.hub.access.access import AccessControl
from headrace.hub.access.connection_facts import CONNECTION_NUMBERS, ConnectionFacts
from headrace.hub.access.principal import Principal
from headrace.hub.access.principals import Principals
from headrace.net.server.process import Server
from headrace.web.access.identification import Identification
from headrace.web.access.rights import DOOR, principal_of, set_principal
from headrace.web.events import EventStream, event_response, streaming

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HeldStreams:
    """The streams of events under way; pages would keep them open for ever, so :meth:`stop` ends them."""

    def __init__(self, server: Server, identification: Identification) -> None:
        self._server = server
        self._identification = identification
        self._tasks: set[asyncio.Task[Any]] = set()

    def held(self, handler: Callable[[web.Request, web.StreamResponse], Awaitable[None]]) -> Handler:
        """Wrap a handler that sends events: it ends with its principal's right, and with the door."""

        async def run(request: web.Request) -> web.StreamResponse:
            response = event_response()
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
            try:
                with held(self._server.access, request):
                    await handler(request, response)
            finally:
                self._tasks.discard(task)
            return response

        return run

    def sending(
        self, request: web.Request, response: web.StreamResponse
    ) -> AbstractAsyncContextManager[EventStream]:
        """Answer a request with events for as long as the block runs."""
        server = self._server
        return streaming(
            request,
            response,
            server.settings.limits.slow_seconds,
            lambda: server.accounts.of(principal_of(request), str(request.remote)),
            lambda: self._identification.has_left(request),
        )

    async def stop(self, _app: web.Application) -> None:
        """End all of them."""
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


@contextmanager
def held(access: AccessControl, request: web.Request) -> Iterator[None]:
    """End the task of this request if its principal loses the right while the block runs."""
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

    def known_as(self, principals: Principals) -> Principal | None:
        """Return who reads the stream among the hub's new principals."""
        return principals.named(self.principal.name)

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
