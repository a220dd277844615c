"""Every door, everything that can be done there, and everybody who may or may not: one test per cell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.access.attempts import CELLS, SETTINGS, Cell, Who, settle
from tests.net.raw import running_hub

from headrace import web
from headrace.hub.access.login_attempts import LoginAttempts
from headrace.hub.services.objects import ServiceKind, create
from headrace.message import Batch, Run
from headrace.net.server.access.audit_file import read_audit
from headrace.net.server.process import Server
from headrace.net.spp.door import SppDoor

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
