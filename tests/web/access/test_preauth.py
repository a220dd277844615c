"""What old SDK clients ask before they connect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from tests.net.attribute_peers import ALICE, BOB, SdkPeer, auth
from tests.net.raw import running_hub

from headrace import web
from headrace.net.server.process import Server

Ask = Callable[..., Awaitable[tuple[int, dict[str, str]]]]


class Asking:
    def __init__(self, tmp_path: Path, stack: AsyncExitStack) -> None:
        self._tmp_path, self._stack = tmp_path, stack
        self.server: Server

    async def hub(self, *sets: str) -> None:
        self.server = await self._stack.enter_async_context(
            running_hub(self._tmp_path, *sets, http=web.start)
        )

    async def ask(self, **query: str) -> tuple[int, dict[str, str]]:
        url = f"http://{self.server.doors['http']}/sdk/sub/preauth"
        async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
            return answer.status, await answer.json()

    async def enter(self, client: bytes, answer: dict[str, str]) -> bytes:
        with await SdkPeer.connect(self.server) as peer:
            await peer.send(auth(client, timestamp=answer["timestamp"], token=answer["token"]))
            return await peer.line()


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    async with AsyncExitStack() as stack:
        yield Asking(tmp_path, stack)


async def test_with_auth_off_it_answers_in_strings_alone(asking: Asking) -> None:
    await asking.hub()
    status, answer = await asking.ask(client_id=ALICE.hex())
    assert status == 200
    assert answer.keys() == {"status", "timestamp", "token", "connector"}
    assert all(isinstance(value, str) for value in answer.values())
    assert (answer["status"], answer["connector"]) == ("ok", asking.server.doors["sdk"])
    assert await asking.enter(ALICE, answer) == b"+authsuccess\r\n"


async def test_with_auth_on_it_answers_only_where_that_is_wanted(asking: Asking) -> None:
    await asking.hub("auth.required=true", f"auth.clients.{ALICE.hex()}=secret")
    status, answer = await asking.ask(client_id=ALICE.hex())
    assert (status, answer["status"]) == (403, "error")
    assert "token" not in answer
    assert asking.server.hub.counters.get("refused", door="preauth", reason="not_allowed") == 1


async def test_the_token_opens_the_door_once(asking: Asking) -> None:
    await asking.hub("auth.required=true", "auth.preauth=true", f"auth.clients.{ALICE.hex()}=secret")
    _, answer = await asking.ask(client_id=ALICE.hex().upper())
    _, other = await asking.ask(client_id=ALICE.hex())
    assert await asking.enter(ALICE, answer) == b"+authsuccess\r\n"
    assert await asking.enter(ALICE, answer) == b"-command error\r\n"
    assert await asking.enter(ALICE, other) == b"+authsuccess\r\n"
    status, answer = await asking.ask(client_id=BOB.hex())
    assert (status, answer["status"]) == (403, "error")


@pytest.mark.parametrize("query", [{}, {"client_id": "xyz"}, {"client_id": ""}])
async def test_a_bad_id_is_refused(asking: Asking, query: dict[str, str]) -> None:
    await asking.hub()
    status, answer = await asking.ask(**query)
    assert (status, answer["status"]) == (400, "error")


async def test_without_a_connector_there_is_nothing_to_say(asking: Asking) -> None:
    await asking.hub("listen.sdk=off")
    assert (await asking.ask(client_id=ALICE.hex()))[0] == 503


async def test_a_connector_on_every_address_is_named_by_the_one_that_was_asked(asking: Asking) -> None:
    await asking.hub("listen.sdk=0.0.0.0:0", "auth.insecure=true")
    _, answer = await asking.ask(client_id=ALICE.hex())
    assert answer["connector"] == "127.0.0.1:" + asking.server.doors["sdk"].rpartition(":")[2]
