"""Roles apart, each a hub of its own in this process: what they push to one another, and what happens at the seams."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.access.attempts import KEYS, ROOT, claim
from tests.net.attribute_peers import (
    DispatcherPeer,
    PublisherPeer,
    RouterPeer,
    SdkPeer,
    StatusPeer,
    command,
    publish,
    sub,
    subn,
)
from tests.net.raw import LOOPBACK, TcpPeer, running_hub, until

from headrace.errors import ConfigError
from headrace.net.routing.roles import Routing
from headrace.net.server.process import Server

CLIENTS = [n.to_bytes(12) for n in range(1, 13)]


class Roles:
    """A hub that numbers messages, and whatever else a test starts."""

    def __init__(self, directory: Path, stack: AsyncExitStack, *sets: str) -> None:
        self._directory, self._stack, self._sets = directory, stack, sets
        self.hub: Server

    async def begin(self) -> None:
        self.hub = await self._stack.enter_async_context(self.make("hub", "sequence,publisher,tube"))

    def make(self, name: str, roles: str, *sets: str):  # type: ignore[no-untyped-def]
        up = [] if name == "hub" else [f"node.upstream=tube://{self.hub.doors['tube_tcp']}"]
        return running_hub(
            self._directory / name,
            f"node.name={name}",
            f"node.roles={roles}",
            "listen.http=off",
            *up,
            *self._sets,
            *sets,
        )

    async def run(self, name: str, roles: str, *sets: str) -> Server:
        return await self._stack.enter_async_context(self.make(name, roles, *sets))

    async def client(self, connector: Server, client: bytes) -> SdkPeer:
        peer = self._stack.enter_context(await SdkPeer.connect(connector))
        await peer.enter(client)
        await peer.send(sub(x=(0, 10)))
        await until(lambda: client in self.hub.subscriptions)
        return peer

    async def publish(self, *payloads: bytes) -> None:
        peer = self._stack.enter_context(await PublisherPeer.connect(self.hub))
        await peer.send(b"".join(publish({"x": 5}, payload) for payload in payloads))


@pytest.fixture
async def roles(tmp_path: Path, stack: AsyncExitStack) -> Roles:
    made = Roles(tmp_path, stack)
    await made.begin()
    return made


def routing(server: Server) -> Routing:
    (found,) = (door for door in server._doors if isinstance(door, Routing))
    return found


def live(connector: Server) -> bool:
    """Whether every client there is pushed to."""
    found = routing(connector).connector
    assert found is not None
    return all(session.live for session in found.sessions.values())


def matched(server: Server) -> int:
    return server.hub.counters.get("matched", what="clients")


def test_a_role_that_does_not_exist_is_refused() -> None:
    from headrace.config import load

    with pytest.raises(ConfigError, match=r"node\.roles"):
        load(environ={}, sets=["node.roles=matcher,miller"])


@pytest.mark.parametrize("roles", ["connector", "matcher,dispatcher", ""])
async def test_a_part_without_a_hub_is_refused_and_told_what_it_lacks(tmp_path: Path, roles: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.roles.*: expected sequence among them.*--upstream URL"):
        async with running_hub(tmp_path, f"node.roles={roles}"):
            pass
    assert not tmp_path.joinpath("log").exists()


def test_frontends_on_one_machine_have_names_of_their_own(tmp_path: Path) -> None:
    from headrace.config import load
    from headrace.hub.routing.roles import role_name

    def name(*sets: str) -> str:
        return role_name(load(environ={}, sets=list(sets)))

    up = "node.upstream=tube://127.0.0.1"
    hub = name(f"node.data={tmp_path / 'hub'}")
    names = {name(up, f"node.data={tmp_path / each}") for each in "ab"}
    assert len({hub, *names}) == 3
    assert name(up, "node.name=east") == "east"


async def test_a_process_opens_the_doors_of_its_roles_alone(roles: Roles) -> None:
    assert roles.hub.doors.keys() == {"parcel", "publisher", "tube_tcp", "tube_ws"}
    matcher = await roles.run("matcher", "matcher")
    assert matcher.doors.keys() == {"status"}
    connector = await roles.run("connector", "connector")
    assert connector.doors.keys() == {"sdk", "router"}
    dispatcher = await roles.run("dispatcher", "dispatcher")
    assert dispatcher.doors.keys() == {"dispatcher"}


async def test_a_connector_alone_finds_everything_in_its_log(roles: Roles) -> None:
    connector = await roles.run("connector", "connector")
    client = await roles.client(connector, CLIENTS[0])
    await roles.publish(b"one", b"two")
    assert [payload for _, payload in await client.pushes(2)] == [b"one", b"two"]
    assert not live(connector)


async def test_what_a_matcher_finds_while_no_dispatcher_is_there_is_counted(roles: Roles) -> None:
    connector = await roles.run("connector", "connector")
    client = await roles.client(connector, CLIENTS[0])
    matcher = await roles.run("matcher", "matcher", "matching.dispatchers=127.0.0.1:1")
    await until(lambda: len(routing(matcher).matching) == 1)
    await roles.publish(b"one", b"two")
    # The client has them all the same: its connector looks through the log.
    assert [payload for _, payload in await client.pushes(2)] == [b"one", b"two"]
    await until(lambda: matcher.hub.counters.get("undeliverable", door="to_dispatcher") == 2)


async def test_a_frontend_with_every_role_serves_its_own_clients(roles: Roles) -> None:
    front = await roles.run("front", "publisher,matcher,dispatcher,connector")
    client = await roles.client(front, CLIENTS[0])
    await until(lambda: live(front))
    await roles.publish(b"one", b"two")
    assert [payload for _, payload in await client.pushes(2)] == [b"one", b"two"]
    assert matched(front) == 2


async def test_matchers_share_the_clients_and_a_lost_one_is_made_up_for(roles: Roles) -> None:
    """Publisher, two matchers, a dispatcher and a connector, all apart."""
    connector = await roles.run("connector", "connector")
    dispatcher = await roles.run(
        "dispatcher", "dispatcher", f"dispatcher.connectors={connector.doors['router']}"
    )
    to = f"matching.dispatchers={dispatcher.doors['dispatcher']}"
    one = await roles.run("lower", "matcher", to)
    await until(lambda: roles.hub.parts.matchers.ring.matchers == ("lower",))
    clients = [await roles.client(connector, client) for client in CLIENTS]
    await until(lambda: live(connector))
    await roles.publish(b"by one")
    for client in clients:
        assert (await client.push())[1] == b"by one"
    assert matched(one) == len(CLIENTS)

    async with roles.make("wheel", "matcher", to) as two:
        await until(lambda: roles.hub.parts.matchers.ring.matchers == ("lower", "wheel"))
        await until(lambda: [len(routing(m).matching) for m in (one, two)] != [len(CLIENTS), 0])
        await until(lambda: sum(len(routing(m).matching) for m in (one, two)) == len(CLIENTS))
        await until(lambda: live(connector))
        before = matched(one)
        await roles.publish(b"by both")
        for client in clients:
            assert (await client.push())[1] == b"by both"
        shares = [matched(one) - before, matched(two)]
        assert sum(shares) == len(CLIENTS)
        assert all(shares)
        # What is published while a matcher goes is found wherever it is.
        await roles.publish(*(b"%d" % n for n in range(100)))
    await roles.publish(*(b"%d" % n for n in range(100, 200)))
    for client in clients:
        assert [payload for _, payload in await client.pushes(200)] == [b"%d" % n for n in range(200)]
    await until(lambda: roles.hub.parts.matchers.ring.matchers == ("lower",))
    await until(lambda: live(connector))
    await roles.publish(b"by one again")
    for client in clients:
        assert (await client.push())[1] == b"by one again"


async def test_named_subscriptions_work_apart_and_while_they_change(roles: Roles) -> None:
    """A push may name a subscription that the connector's own copy of the log does not have yet."""
    connector = await roles.run("connector", "connector")
    dispatcher = await roles.run(
        "dispatcher", "dispatcher", f"dispatcher.connectors={connector.doors['router']}"
    )
    await roles.run("lower", "matcher", f"matching.dispatchers={dispatcher.doors['dispatcher']}")
    client = await roles.client(connector, CLIENTS[0])
    for count in range(20):
        await client.send(subn(f"name{count:02}", {"x": (90, 99)}, {"x": (4, 6)}, {"x": (5, 5)}))
        await until(lambda count=count: len(roles.hub.subscriptions) == 1 + 3 * (count + 1))
        await roles.publish(b"%d" % count)
    every = [f"name{count:02}" for count in range(20)]
    for count in range(20):
        payload, names = await client.named_push()
        # It was published when the hub had so many names; later ones may count for it, too.
        assert payload == b"%d" % count
        assert names[: count + 1] == every[: count + 1]
    await until(lambda: live(connector))
    await roles.publish(b"live")
    assert await client.named_push() == (b"live", every)
    await client.send(b"".join(map(subn, every)))
    await until(lambda: len(roles.hub.subscriptions) == 1)
    await until(lambda: live(connector) and len(connector.subscriptions) == 1)
    await roles.publish(b"plain")
    assert await client.named_push() == (b"plain", [])


async def test_a_dispatcher_that_comes_and_goes_loses_nothing(roles: Roles) -> None:
    connector = await roles.run("connector", "connector")
    client = await roles.client(connector, CLIENTS[0])
    settings = ["matcher,dispatcher", f"dispatcher.connectors={connector.doors['router']}"]
    sent = 0
    for round_number in range(3):
        async with roles.make(f"both{round_number}", *settings):
            await until(lambda: live(connector))
            publishing = asyncio.ensure_future(roles.publish(*(b"%d" % n for n in range(sent, sent + 500))))
        await publishing
        sent += 500
        await until(lambda: not live(connector))
    assert [payload for _, payload in await client.pushes(sent)] == [b"%d" % n for n in range(sent)]


async def test_a_client_that_moves_takes_its_subscription_along(roles: Roles) -> None:
    east, west = [await roles.run(name, "connector") for name in ("east", "west")]
    client = await roles.client(east, CLIENTS[0])
    await roles.publish(b"one")
    seq, _ = await client.push()
    there = roles._stack.enter_context(await SdkPeer.connect(west))
    await there.enter(CLIENTS[0], after=seq)
    # The older connection is closed by the connector that has it.
    assert await client.rest() == b""
    assert east.hub.counters.get("refused", door="sdk", reason="moved") == 1
    await roles.publish(b"two")
    assert (await there.push())[1] == b"two"


async def test_a_fleet_that_is_known_by_its_addresses_alone(tmp_path: Path, stack: AsyncExitStack) -> None:
    """Under ``auth.required``, without a certificate anywhere: strangers are let in at none of its doors."""
    roles = Roles(
        tmp_path,
        stack,
        "auth.required=true",
        f"auth.clients.{ROOT}={KEYS[ROOT]}",
        f"node.upstream_client={ROOT}",
        f"access.fleet.addresses={LOOPBACK}",
        "access.fleet.allow=admin,publish **,read **",
    )
    roles.hub = await stack.enter_async_context(roles.make("hub", "sequence,fyrehose,publisher,tube"))
    connector = await roles.run("connector", "connector")
    dispatcher = await roles.run(
        "dispatcher", "dispatcher", f"dispatcher.connectors={connector.doors['router']}"
    )
    matcher = await roles.run("lower", "matcher", f"matching.dispatchers={dispatcher.doors['dispatcher']}")
    client = stack.enter_context(await SdkPeer.connect(connector))
    await client.send(command(b"auth", json.dumps(claim(ROOT, KEYS[ROOT])).encode()))
    assert await client.line() == b"+authsuccess\r\n"
    await client.send(sub(x=(0, 10)))
    await until(lambda: bytes.fromhex(ROOT) in connector.subscriptions and live(connector))
    reader = stack.enter_context(await TcpPeer.connect(roles.hub))
    await reader.subscribe()
    await roles.publish(b"one")
    assert (await client.push())[1] == b"one"
    assert dispatcher.hub.counters.get("dispatched") == matched(matcher) == 1
    assert await reader.delivers(1, 1) == [b"one"]
    assert await stack.enter_context(await StatusPeer.connect(matcher)).read(1)

    doors = {
        "publisher": (roles.hub, PublisherPeer),
        "fyrehose": (roles.hub, TcpPeer),
        "dispatcher": (dispatcher, DispatcherPeer),
        "router": (connector, RouterPeer),
        "status": (matcher, StatusPeer),
    }
    for door, (server, peer) in doors.items():
        stranger = stack.enter_context(await peer.connect(server, source="127.0.0.2"))
        assert await stranger.rest() == b""
        counted = server.hub.counters.get("refused_access", door=door, action="login", reason="unknown")
        assert counted == 1, door
