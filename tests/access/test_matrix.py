"""Every door, everything that can be done there, and everybody who may or may not: one test per cell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp.web_urldispatcher import AbstractResource, UrlDispatcher
from tests.access.attempts import (
    BY_RIGHTS,
    CELLS,
    FOR_ANYBODY,
    LINK,
    SETTINGS,
    TOKENS,
    Cell,
    Who,
    settle,
)
from tests.net.raw import running_hub
from tests.tls.test_doors import DOORS

from headrace import web
from headrace.hub.access.login_attempts import LoginAttempts
from headrace.hub.services.entries import ServiceKind, create
from headrace.message import Batch, Run
from headrace.net.server.access.audit_file import read_audit
from headrace.net.server.process import Server
from headrace.net.spp.door import SppDoor
from headrace.protocols import PORTS
from headrace.wire.link.requests import OPERATIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """One hub for all cells, with a message, a service and a consumer."""
    data: Path = tmp_path_factory.mktemp("hub")
    async with running_hub(data, *SETTINGS, "fyrehose.subscriber_seconds=600", http=web.start) as server:
        server.hub.submit(create("fleet/1", ServiceKind.JSON))
        server.hub.submit(Batch(Run.of([b"{}"]), origin="test", topic="fleet/1"))
        yield server


def forget_failures(server: Server) -> None:
    (door,) = (door for door in server._doors if isinstance(door, SppDoor))
    door.authentication.attempts = LoginAttempts()


def tried(cell: Cell) -> list[Who]:
    if cell.door == "parcel":
        # Only nodes are known there, and may do everything: tests/net/cluster is about them.
        return [Who.UNKNOWN]
    if not cell.login:
        return [Who.KNOWN, Who.UNKNOWN, Who.FORBIDDEN]
    if cell.door == "http":
        # A key or a bearer token is shown anew with each request: there is nothing to replay but itself.
        return [Who.KNOWN, Who.UNKNOWN, Who.FORBIDDEN, Who.WRONG]
    return list(Who)


@pytest.mark.parametrize(
    ("cell", "who"), [pytest.param(cell, who, id=f"{cell}, {who}") for cell in CELLS for who in tried(cell)]
)
async def test_only_who_may_does(server: Server, cell: Cell, who: Who) -> None:
    # Pauses after failures are tested elsewhere: here they would hide what a refusal is for.
    forget_failures(server)
    server.access.audit.close()
    before = len(list(read_audit(server.settings.node.data)))
    assert await cell.attempt(server, who) is (who is Who.KNOWN)
    await settle(server)
    if who is Who.KNOWN:
        return
    records = list(read_audit(server.settings.node.data))[before:]
    refused = [record for record in records if record["event"] == "refused" and record["door"] == cell.door]
    assert refused, f"the audit log does not name the refusal: {records}"
    reasons = {record["reason"] for record in refused}
    expected = {
        Who.UNKNOWN: {"unknown", "unauthenticated"},
        Who.FORBIDDEN: {"not_allowed"},
        Who.WRONG: {"wrong_token", "unknown"},
        Who.REPLAYED: {"repeated_token", "wrong_challenge"},
    }
    assert reasons & expected[who], reasons


ASKS_FOR_NOTHING = {"hello", "head", "status", "more", "cancel"}
"""Requests of the link that need no right: they answer whoever is known with what it may see."""


async def test_no_cell_is_missing_door_by_door() -> None:
    """A door, a request or a path that is added without a cell fails here."""
    tubes = {cell.action.rpartition(" at ")[2] for cell in CELLS if cell.door == "tube"}
    assert {cell.door for cell in CELLS} - {"tube"} | tubes == set(PORTS)
    assert set(DOORS) == set(PORTS), "plain bytes at a TLS door are tried at every door"
    assert {head["op"] for head, _ in LINK.values()} | ASKS_FOR_NOTHING == set(OPERATIONS)
    for cell in CELLS:
        if cell.door == "parcel":
            continue
        tried_by = {Who.KNOWN, Who.UNKNOWN, Who.FORBIDDEN}
        if cell.login:
            tried_by |= {Who.WRONG} if cell.door == "http" else {Who.WRONG, Who.REPLAYED}
        assert set(tried(cell)) == tried_by


async def test_no_cell_is_missing_at_http(server: Server) -> None:
    routes = {
        (route.method, route.resource.canonical)
        for route in http_router(server).routes()
        if route.resource is not None and route.method not in ("*", "OPTIONS")
    }
    wanted = {
        (method, path)
        for method, path in routes
        if path.startswith(("/api/", "/v1/", "/sdk/")) and path not in FOR_ANYBODY
    }
    found = set()
    for cell in CELLS:
        if cell.door == "http":
            method, path = cell.route
            (canonical,) = {
                route.resource.canonical
                for route in http_router(server).routes()
                if route.method == method and route.resource is not None and matches(route.resource, path)
            }
            found |= {(method, canonical), ("HEAD", canonical) if method == "GET" else (method, canonical)}
    # POST /api/messages publishes, and has its cell; what GET answers depends on who asks.
    by_rights = {(method, path) for method, path in wanted if path in BY_RIGHTS and method != "POST"}
    assert wanted - by_rights == found
    assert {path for _, path in routes if path in FOR_ANYBODY} == FOR_ANYBODY


@pytest.mark.parametrize("path", sorted(BY_RIGHTS))
async def test_what_answers_by_rights_answers_nobody_unknown(server: Server, path: str) -> None:
    forget_failures(server)
    async with aiohttp.ClientSession(f"http://{server.doors['http']}") as session:
        for token, status in (("", 401), ("a guess", 401), (TOKENS["none"], 200)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(path, headers=headers) as answer:
                assert answer.status == status
                if status == 200 and path in ("/api/messages", "/api/services", "/api/consumers"):
                    told = await answer.json()
                    shown = (
                        told
                        if isinstance(told, list)
                        else next(v for v in told.values() if isinstance(v, list))
                    )
                    assert shown == [], "one that may do nothing is shown something"


def http_router(server: Server) -> UrlDispatcher:
    return server._http._runner.app.router  # type: ignore[union-attr]


def matches(resource: AbstractResource, path: str) -> bool:
    return resource._match(path) is not None  # type: ignore[attr-defined]
