"""The rules of access to the http door.

- Health checks, ``/metrics`` and the dashboard's own files are open to everyone who reaches the door.
- Under ``auth.required`` everything else needs HTTP Basic authentication: a client id of ``auth.clients`` and its key.
  (The old clients' ``/sdk/sub/preauth`` has its own rule.)
- A request that changes something needs the header ``X-Headrace``, which a foreign web page cannot send.
- A door on the loopback interface answers only requests to a loopback name: a foreign page whose name resolves to it
  (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Final

from aiohttp import hdrs, web

from headrace.hub.access.principal import Principal
from headrace.net.server.process import Server
from headrace.net.server.tls import certificate_names
from headrace.web.refusals import refusal
from headrace.web.rights import check_path, set_principal

OURS: Final = "X-Headrace"
"""A header that browsers let only our own pages send: requests that change something must carry it."""

OPEN: Final = ("/healthz", "/readyz", "/metrics", "/sdk/sub/preauth")

_SAFE: Final = ("GET", "HEAD", "OPTIONS")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class AccessCheck:
    """Checks every request before a handler sees it."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, or refuse it with the reason."""
        try:
            named = self._called_by_its_name(request)
        except ValueError as error:
            raise refusal(web.HTTPBadRequest, f"the header Host is no address: {error}") from None
        if not named:
            raise refusal(web.HTTPMisdirectedRequest, f"{request.host} is not a name of this hub")
        if request.method not in _SAFE and OURS not in request.headers:
            raise refusal(web.HTTPForbidden, f"send the header {OURS}: 1 with requests that change something")
        principal = self._principal_of(request)
        if self._guarded(request.path) and not principal.known:
            self._server.access.turned_away("http", str(request.remote), principal.name, "unknown")
            self._server.hub.counters.refuse("http", "unauthenticated", str(request.remote), request.path)
            refused = refusal(
                web.HTTPUnauthorized, "auth.required is on: give a client id of auth.clients and its key"
            )
            refused.headers[hdrs.WWW_AUTHENTICATE] = 'Basic realm="Headrace", charset="UTF-8"'
            raise refused
        set_principal(request, principal)
        check_path(self._server.access, request)
        response = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _guarded(self, path: str) -> bool:
        return self._server.settings.auth.required and path.startswith("/api/") and path not in OPEN

    def _principal_of(self, request: web.Request) -> Principal:
        """Return who makes a request: by its bearer token, its client id and key, or its certificate."""
        principals = self._server.access.principals
        given = request.headers.get(hdrs.AUTHORIZATION, "")
        scheme, _, token = given.partition(" ")
        if scheme.lower() == "bearer":
            return principals.of_token(token.strip()) or principals.anonymous
        if (client := self._client_of(given)) is not None:
            return principals.of_client_id(client) or principals.anonymous
        transport = request.transport
        names = certificate_names(None if transport is None else transport.get_extra_info("peercert"))
        return principals.of_peer("", next(iter(names), ""))

    def _client_of(self, given: str) -> str | None:
        """Return the client id that an authorization names, if the key with it is right."""
        scheme, _, encoded = given.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, _, key = b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        known = self._server.access.keys.get(name.lower())
        # The same work for an unknown client: the time it takes must not tell which ids exist.
        right = hmac.compare_digest((known.reveal() if known else "unknown").encode(), key.encode())
        return name.lower() if known is not None and right else None

    def _called_by_its_name(self, request: web.Request) -> bool:
        transport = request.transport
        here = None if transport is None else transport.get_extra_info("sockname")
        if here is None or not ip_address(here[0].partition("%")[0]).is_loopback:
            return True
        name = request.url.host or ""
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return name == "localhost" or name.endswith(".localhost")
