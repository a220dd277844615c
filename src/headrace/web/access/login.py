"""Logging in and out of the dashboard, and ``/api/me``: who the user is and what they may do.

``POST /login`` with a client id and its key, or a bearer token, begins a session and sets its cookie: not readable by
scripts, sent by this site's pages only, and under TLS by TLS only. Requests that change something also need the header
``X-Headrace``, so that no other page can log its visitors in or out, or act for them.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

import msgspec
from aiohttp import web

from headrace.hub.access.principal import Action
from headrace.net.server.process import Server
from headrace.web.access.identification import Identification
from headrace.web.access.rights import principal_of
from headrace.web.access.sessions import LONGEST_SECONDS
from headrace.web.answers import as_json
from headrace.web.refusals import refusal

MAX_BODY: Final = 8 << 10
_BODY_SECONDS: Final = 10.0


class Credentials(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a login: a client id and its key, or a token."""

    client_id: str = ""
    key: str = ""
    token: str = ""


class Login:
    """The handlers."""

    def __init__(self, server: Server, identification: Identification) -> None:
        self._server = server
        self._identification = identification

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        return [
            web.post("/login", self._log_in),
            web.post("/logout", self._log_out),
            web.get("/api/me", self._me),
        ]

    async def _log_in(self, request: web.Request) -> web.Response:
        if request.content_length is None or request.content_length > MAX_BODY:
            raise refusal(web.HTTPBadRequest, f"send at most {MAX_BODY} bytes, and say how many")
        async with asyncio.timeout(_BODY_SECONDS):
            body = await request.read()
        try:
            given = msgspec.json.decode(body, type=Credentials)
        except (msgspec.DecodeError, ValueError):
            # What is wrong with it may quote a key.
            raise refusal(web.HTTPBadRequest, "expected client_id and key, or token, in JSON") from None
        if given.token:
            found = self._identification.by_token(request, given.token)
        else:
            found = self._identification.by_key(request, given.client_id, given.key)
        peer = str(request.remote)
        if found is None:
            self._server.access.turned_away("http", peer, given.client_id[:24], "wrong_key")
            self._server.hub.counters.refuse("http", "wrong_key", peer, "login")
            what = "token" if given.token else "client id or key"
            raise refusal(web.HTTPForbidden, f"this {what} is not known here")
        self._server.access.let_in(found, "http", peer)
        self._forget(request)
        answer = as_json({"name": found.name})
        answer.set_cookie(
            self._identification.cookie_name(request),
            self._identification.sessions.begin(found, monotonic()),
            max_age=int(LONGEST_SECONDS),
            httponly=True,
            samesite="Strict",
            secure=self._identification.is_secure(request),
            path="/",
        )
        return answer

    async def _log_out(self, request: web.Request) -> web.Response:
        self._forget(request)
        answer = as_json({})
        answer.del_cookie(
            self._identification.cookie_name(request),
            path="/",
            secure=self._identification.is_secure(request),
        )
        return answer

    async def _me(self, request: web.Request) -> web.Response:
        me = principal_of(request)
        return as_json(
            {
                "name": me.name,
                "anonymous": me.anonymous,
                "session": self._identification.cookie_name(request) in request.cookies and not me.anonymous,
                "login": self._server.authentication.useful,
                "may": {action.value: me.may_something(action) for action in Action},
            }
        )

    def _forget(self, request: web.Request) -> None:
        if (cookie := request.cookies.get(self._identification.cookie_name(request))) is not None:
            self._identification.sessions.end(cookie)
