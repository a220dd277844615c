"""``/sdk/sub/preauth``: gives old SDK clients a token and the address of their connector.

``GET /sdk/sub/preauth?client_id=…`` answers ``{"status": "ok", "timestamp": …, "token": …, "connector": "host:port"}``,
all strings, which the client then sends in its ``auth``. Anyone who asks gets a token, so under ``auth.required`` it
answers only if ``auth.preauth`` is on.
"""

from __future__ import annotations

from time import time

from aiohttp import web

from headrace.config import Address
from headrace.errors import WireError
from headrace.net.server.process import Server
from headrace.web.answers import as_json
from headrace.wire.sdk.auth import client_id_text, parse_client_id, sign

_ANY = ("0.0.0.0", "::")


def answer(server: Server, request: web.Request) -> web.Response:
    """Answer one request."""
    auth = server.settings.auth
    if auth.required and not auth.preauth:
        return _refused(server, request, 403, "not_allowed", "this hub hands out no tokens (auth.preauth)")
    if "sdk" not in server.doors:
        return _refused(server, request, 503, "no_connector", "there is no connector here (listen.sdk)")
    try:
        client = parse_client_id(request.query.get("client_id", ""))
    except WireError as error:
        return _refused(server, request, 400, error.reason, str(error))
    key = server.access.keys.get(client_id_text(client))
    if auth.required and key is None:
        return _refused(server, request, 403, "unknown_client", "this client has no key here (auth.clients)")
    # A token is valid once, so no two may have the same time.
    timestamp = f"{time():.6f}"
    token = sign(key.reveal().encode() if key is not None else b"", client, timestamp)
    return as_json(
        {"status": "ok", "timestamp": timestamp, "token": token, "connector": _connector(server, request)}
    )


def _connector(server: Server, request: web.Request) -> str:
    """Return the connector's address as this client can reach it."""
    wanted = server.settings.listen.sdk
    address = server.doors["sdk"]
    if wanted is None or wanted.host not in _ANY or request.url.host is None:
        return address
    return str(Address(request.url.host, int(address.rpartition(":")[2])))


def _refused(server: Server, request: web.Request, status: int, reason: str, detail: str) -> web.Response:
    server.hub.counters.refuse("preauth", reason, request.remote or "somebody", detail)
    return as_json({"status": "error", "reason": detail}, status)
