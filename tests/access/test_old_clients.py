"""A client of the SDK's document gets in as ever: 24 hex digits, one token, and HMAC-SHA1 where that is allowed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.access.attempts import KEYS, ROOT, SETTINGS, SOME, claim
from tests.net import attribute_peers as attribute
from tests.net.raw import running_hub, until

from headrace.message import Batch, Run, envelope_rows, map_column
from headrace.net.server.process import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_hub(tmp_path, *SETTINGS, "auth.sha1=true") as server:
        yield server


@pytest.mark.parametrize("client", [ROOT, SOME], ids=["a client of before", "a principal"])
@pytest.mark.parametrize("digest", ["sha1", "sha256"])
async def test_it_subscribes_and_is_pushed_to(server: Server, client: str, digest: str) -> None:
    with await attribute.SdkPeer.connect(server) as peer:
        shown = claim(client, KEYS[client], digest=digest)
        await peer.send(attribute.command(b"auth", json.dumps(shown).encode()))
        assert await peer.line() == b"+authsuccess\r\n"
        await peer.send(attribute.sub(city="Oslo") + attribute.HEARTBEAT)
        assert await peer.line() == b"+h\r\n"
        await until(lambda: bytes.fromhex(client) in server.subscriptions)
        columns = {
            "attributes": map_column("attributes", [{"city": "Oslo"}]),
            "numbers": map_column("numbers", [{}]),
        }
        server.hub.submit(
            Batch(Run.of([b"hi"]), origin="test", topic="fleet/1", columns=envelope_rows(columns))
        )
        assert (await peer.push())[1] == b"hi"
