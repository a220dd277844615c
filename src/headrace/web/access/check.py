"""The rules of access to the http door.

- Health checks, ``/metrics`` and the dashboard's own files are open to everyone who reaches the door.
- Under ``auth.required`` everything else needs a known principal (:mod:`~headrace.web.access.identification`): by a
  session of the login page, a bearer token, HTTP Basic with a client id and its key, or a certificate. (The old
  clients' ``/sdk/sub/preauth`` has its own rule.)
- A request that changes something needs the header ``X-Headrace``, which a foreign web page cannot send. Under
  ``/v1/``, where a public protocol is spoken, :mod:`headrace.web.access.cross_origin` says which pages may.
- What a client reads counts towards what is sent to it a second; above that rate it is told when to ask again.
- A door on the loopback interface answers only requests to a loopback name: a foreign page whose name resolves to it
  (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from math import ceil
from typing import Final

from aiohttp import hdrs, web

from headrace.hub.access.exposure import is_loopback
from headrace.net.server.process import Server
from headrace.web.access.cross_origin import answer_headers, answer_preflight, check_origin
from headrace.web.access.identification import Identification
from headrace.web.access.rights import check_path, set_principal
from headrace.web.refusals import refusal

OURS: Final = "X-Headrace"
"""A header that browsers let only our own pages send: requests that change something must carry it."""

STREAMS: Final = "/v1/"
"""Where any client may write without our header: the protocol there is a public one."""

GUARDED: Final = ("/api/", STREAMS)

OPEN: Final = ("/healthz", "/readyz", "/metrics", "/sdk/sub/preauth")

_SAFE: Final = ("GET", "HEAD", "OPTIONS")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Server": "Headrace",
}


_SANDBOX: Final = {"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'"}
"""For what publishers chose, bytes and content type: were it a page, it must not act as one of ours."""


def stream_headers(origin: str | None, origins: Collection[str]) -> dict[str, str]:
    """Return the additional headers of answers under ``/v1/``; ``origin`` is that of the page that asks, if any."""
    return {**_SANDBOX, **answer_headers(origin, origins)}


class AccessCheck:
    """Checks every request before a handler sees it."""

    def __init__(self, server: Server, identification: Identification) -> None:
        self._server = server
        self._identification = identification

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers of every answer."""
        response.headers.update(HEADERS)
        if request.path.startswith(STREAMS):
            origin = request.headers.get(hdrs.ORIGIN)
            response.headers.update(stream_headers(origin, self._server.settings.auth.origins))

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, or refuse it with the reason."""
        try:
            named = is_own_name(request.transport, request.url.host or "")
        except ValueError as error:
            raise refusal(web.HTTPBadRequest, f"the header Host is no address: {error}") from None
        if not named:
            raise refusal(web.HTTPMisdirectedRequest, f"{request.host} is not a name of this hub")
        if request.path.startswith(STREAMS) and not _is_text(request):
            raise refusal(web.HTTPBadRequest, "a header is not UTF-8")
        if request.path.startswith(STREAMS) and request.method == hdrs.METH_OPTIONS:
            return answer_preflight(request)
        if request.method not in _SAFE:
            self._check_origin(request)
        principal = self._identification.principal_of(request)
        if self._guarded(request.path) and not principal.known:
            self._server.access.turned_away("http", str(request.remote), principal.name, "unknown")
            self._server.hub.counters.refuse("http", "unauthenticated", str(request.remote), request.path)
            why = "auth.required is on: give a client id and its key, or a bearer token, or log in at /login"
            # A script of our page sends people to the login page; a browser would ask them with a box of its own.
            by_script = request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
            scheme = "Bearer" if by_script else "Basic"
            asks: dict[str, str] = {hdrs.WWW_AUTHENTICATE: f'{scheme} realm="Headrace", charset="UTF-8"'}
            raise refusal(web.HTTPUnauthorized, why, asks)
        set_principal(request, principal)
        check_path(self._server.access, request)
        if not request.path.startswith(GUARDED):
            return await handler(request)
        account = self._server.accounts.of(principal, str(request.remote))
        now = asyncio.get_running_loop().time
        if request.method == hdrs.METH_GET and (pause := account.wait_to_send(now())) > 0:
            account.paused += 1
            why = "above what is sent to this client a second: ask again later"
            raise refusal(web.HTTPTooManyRequests, why, {hdrs.RETRY_AFTER: str(ceil(pause))})
        response = await handler(request)
        # What is sent as it comes has no length; whoever sends it counts it.
        account.send(response.content_length or 0, now())
        return response

    def _guarded(self, path: str) -> bool:
        return self._server.settings.auth.required and path.startswith(GUARDED) and path not in OPEN

    def _check_origin(self, request: web.Request) -> None:
        """Refuse a request that a foreign web page made a browser send."""
        if not request.path.startswith(STREAMS):
            if OURS not in request.headers:
                raise refusal(
                    web.HTTPForbidden, f"send the header {OURS}: 1 with requests that change something"
                )
            return
        check_origin(request, self._server.settings.auth.origins)


def is_own_name(transport: asyncio.BaseTransport | None, name: str) -> bool:
    """Whether a name may stand for the hub at the address that a connection came to."""
    here = None if transport is None else transport.get_extra_info("sockname")
    if here is None or not is_loopback(here[0]):
        return True
    try:
        return is_loopback(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _is_text(request: web.Request) -> bool:
    """Whether every header is text, so that it can be kept and quoted."""
    try:
        for _, value in request.raw_headers:
            value.decode()
    except UnicodeDecodeError:
        return False
    return True
