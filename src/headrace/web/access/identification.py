"""Who makes a request of the http door: by bearer token, client id and key, session, or certificate.

A proof that is given must be right: with a wrong one the request has no principal, whatever else it shows. Wrong
ones are slowed like those at the other doors (:mod:`headrace.hub.access.login_attempts`).
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
from base64 import b64decode
from hashlib import sha256
from math import ceil
from time import monotonic, time
from typing import Final

from aiohttp import hdrs, web

from headrace.hub.access.principal import Principal
from headrace.net.server.accepting.tls import certificate_names
from headrace.net.server.process import Server
from headrace.web.access.forwarded import origin_of
from headrace.web.access.sessions import Sessions
from headrace.web.refusals import refusal
from headrace.wire.attribute.messages import CLIENT_ID_BYTES

_LONGEST: Final = 2 * CLIENT_ID_BYTES + 1
"""Characters of what a stranger claims to be that are remembered: one more than an id has."""

COOKIE: Final = "headrace-session"
COOKIE_UNDER_TLS: Final = "__Host-headrace-session"
"""Browsers take a cookie of this name only if it is secure, and for this very host."""

_BEARER: Final = "bearer"
"""Whoever shows a token, as the audit log names it."""

_SESSION: Final = web.RequestKey("session", str)
"""The cookie by which it is known who makes a request."""


class Identification:
    """Finds out who makes a request."""

    def __init__(self, server: Server, sessions: Sessions) -> None:
        self._server = server
        self.sessions = sessions

    def principal_of(self, request: web.Request) -> Principal:
        """Return who makes a request; whoever proves nothing is anonymous."""
        principals = self._server.access.principals
        if not self._server.authentication.useful:
            return self.by_certificate(request.transport)
        scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        match scheme.lower():
            case "":
                pass
            case "bearer":
                return self.by_token(request, given.strip()) or principals.anonymous
            case "basic":
                try:
                    name, _, key = b64decode(given, validate=True).decode().partition(":")
                except (binascii.Error, UnicodeDecodeError):
                    return principals.anonymous
                return self.by_key(request, name, key) or principals.anonymous
            case _:
                return principals.anonymous
        if (cookie := request.cookies.get(self.cookie_name(request))) is not None:
            found = self.sessions.find(cookie, principals, monotonic())
            if found is not None:
                request[_SESSION] = cookie
                return found
        return self.by_certificate(request.transport)

    def has_left(self, request: web.Request) -> bool:
        """Whether the session that a request came by is over; an answer that goes on counts as its use."""
        cookie, principals = request.get(_SESSION), self._server.access.principals
        return cookie is not None and self.sessions.find(cookie, principals, monotonic()) is None

    def by_token(self, request: web.Request, token: str) -> Principal | None:
        """Return whose bearer token this is."""
        # Each token is an identity of its own: who shows wrong ones does not shut out who has shown a right one.
        who = f"{_BEARER}/{_hashed(token).hex()}"
        self._check_pause(request, who)
        return self._noted(request, who, self._server.access.principals.of_token(token))

    def by_key(self, request: web.Request, client: str, key: str) -> Principal | None:
        """Return whose client id this is, if the key is right."""
        client = client.lower()[:_LONGEST]
        self._check_pause(request, client)
        known = self._server.access.keys.get(client)
        # The same work for an unknown client: the time it takes must not tell which ids exist.
        right = hmac.compare_digest(_hashed(known.reveal() if known else "unknown"), _hashed(key))
        found = self._server.access.principals.of_client_id(client) if known is not None and right else None
        return self._noted(request, client, found)

    def is_secure(self, request: web.Request) -> bool:
        """Whether a request came by TLS, to the hub or to a proxy of ``limits.proxies``."""
        if request.secure or request.transport is None:
            return request.secure
        peer = request.transport.get_extra_info("peername")
        headers = request.headers.getall("Forwarded", ())
        return origin_of(headers, peer[0], self._server.entrance.proxies).scheme == "https"

    def cookie_name(self, request: web.Request) -> str:
        """Return the name of the session's cookie."""
        return COOKIE_UNDER_TLS if self.is_secure(request) else COOKIE

    def by_certificate(self, transport: asyncio.BaseTransport | None) -> Principal:
        """Identify the peer of a connection by its certificate; without one, it is anonymous."""
        names = certificate_names(None if transport is None else transport.get_extra_info("peercert"))
        return self._server.access.principals.of_peer("", next(iter(names), ""))

    def _check_pause(self, request: web.Request, who: str) -> None:
        pause = self._server.authentication.attempts.pause(who, str(request.remote), time())
        if pause:
            self._server.hub.counters.refuse("http", "too_many_failures", str(request.remote), request.path)
            # What a stranger claims to be goes into the audit log: no more of it than an id has.
            self._server.access.turned_away(
                "http", str(request.remote), who.partition("/")[0][:24], "too_many_failures"
            )
            why = "too many attempts have failed from this address: wait"
            raise refusal(web.HTTPTooManyRequests, why, {hdrs.RETRY_AFTER: str(ceil(pause))})

    def _noted(self, request: web.Request, who: str, found: Principal | None) -> Principal | None:
        attempts = self._server.authentication.attempts
        if found is None:
            attempts.failed(who, str(request.remote), time())
        else:
            attempts.succeeded(who, str(request.remote))
        return found


def _hashed(text: str) -> bytes:
    # Of equal length, so that comparing them takes equally long.
    return sha256(text.encode(errors="replace")).digest()
