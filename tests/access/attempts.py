"""What a peer tries at each door, in bytes and requests of its own, and whether the hub let it.

Somebody is known by a key where the protocol has a login, and by its address elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Final, NamedTuple

import aiohttp
import cbor2
from tests.net import attribute_peers as attribute
from tests.net import spp_peer as spp
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import SECONDS, TcpPeer, UdpPeer, ack, keepalive, push, until

from headrace.config import Address
from headrace.net.server.process import Server

ROOT, SOME, NONE = "a0" * 12, "b0" * 12, "c0" * 12
"""Client ids: of one that may do everything, of one that may do something, of one that may do nothing."""
KEYS: Final = {ROOT: "key of root", SOME: "key of some", NONE: "key of none"}
TOKENS: Final = {"root": "bearer of root", "none": "bearer of none"}
NEAR, FAR, NOWHERE = "127.0.0.2", "127.0.0.3", "127.0.0.4"
"""Addresses: of one that may do everything, of one that may do nothing, of nobody that is known."""

SETTINGS: Final = (
    "auth.required=true",
    f"auth.clients.{ROOT}={KEYS[ROOT]}",
    f"access.some.client_id={SOME}",
    f"access.some.key={KEYS[SOME]}",
    "access.some.allow=publish fleet/**,read fleet/**,service fleet/*,consume fleet-*,stage fleet-*",
    "access.some.deny=read fleet/secret/**,publish fleet/7",
    f"access.none.client_id={NONE}",
    f"access.none.key={KEYS[NONE]}",
    f"access.near.addresses={NEAR}",
    "access.near.allow=all",
    f"access.far.addresses={FAR}",
    *(
        f"access.web_{name}.token_sha256={hashlib.sha256(token.encode()).hexdigest()}"
        for name, token in TOKENS.items()
    ),
    "access.web_root.allow=all",
)


class Who(StrEnum):
    """Who tries."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    FORBIDDEN = "forbidden"
    WRONG = "wrong token"
    REPLAYED = "replayed token"


class Cell(NamedTuple):
    """Something to try at a door; ``who`` cannot be told apart at every door."""

    door: str
    action: str
    attempt: Callable[[Server, Who], Awaitable[bool]]
    login: bool
    route: tuple[str, str] = ("", "")
    """At the http door: the method and the path."""

    def __str__(self) -> str:
        return f"{self.door} {self.action}"


def claim(client: str, key: str, challenge: str | None = None, digest: str = "sha256") -> dict[str, str]:
    """Make what proves a client, from the protocol's drawing."""
    stamp = f"{time.time():.6f}"
    signed = client + stamp + ("" if challenge is None else f":{challenge}")
    token = hmac.new(key.encode(), signed.encode(), digest).hexdigest()
    members = {"client_id": client, "timestamp": stamp, "token": token}
    return members if challenge is None else {**members, "challenge": challenge}


def proof_of(who: Who, challenge: str | None = None) -> dict[str, str] | None:
    """Make what somebody shows for its login."""
    match who:
        case Who.KNOWN:
            return claim(ROOT, KEYS[ROOT], challenge)
        case Who.FORBIDDEN:
            return claim(NONE, KEYS[NONE], challenge)
        case Who.WRONG:
            return claim(ROOT, "a guess", challenge)
        case _:
            return None


# Doors without a login


def source_of(who: Who) -> str:
    return {Who.KNOWN: NEAR, Who.FORBIDDEN: FAR}.get(who, NOWHERE)


async def fyrehose_publish(server: Server, who: Who) -> bool:
    head = server.hub.log.tail
    with await TcpPeer.connect(server, source=source_of(who)) as peer:
        try:
            await peer.send(push(b"x"))
        except ConnectionError:
            return False
        if who is Who.KNOWN:
            await until(lambda: server.hub.log.tail > head)
            return True
        await peer.rest()
        return server.hub.log.tail > head


async def fyrehose_read(server: Server, who: Who) -> bool:
    with await TcpPeer.connect(server, source=source_of(who)) as peer:
        try:
            await peer.send(keepalive())
        except ConnectionError:
            return False
        if who is Who.KNOWN:
            return await peer.read(7) == ack()
        return await peer.rest() != b""


async def udp_publish(server: Server, who: Who) -> bool:
    head, before = server.hub.log.tail, refusals(server, "fyrehose")
    with UdpPeer(server, address=source_of(who)) as peer:
        peer.send(push(b"x"))
        await until(lambda: server.hub.log.tail > head or refusals(server, "fyrehose") > before)
    return server.hub.log.tail > head


async def udp_read(server: Server, who: Who) -> bool:
    before = refusals(server, "fyrehose")
    with UdpPeer(server, address=source_of(who)) as peer:
        peer.send(keepalive())
        if who is Who.KNOWN:
            return await peer.datagram() == ack()
        await until(lambda: refusals(server, "fyrehose") > before)
        with UdpPeer(server, address=NEAR) as witness:
            # Behind an answer to another, one to this peer would have come.
            await witness.fence()
        try:
            peer.sock.recv(100)
        except BlockingIOError:
            return False
    return True


async def publisher_publish(server: Server, who: Who) -> bool:
    head = server.hub.log.tail
    with await attribute.PublisherPeer.connect(server, source=source_of(who)) as peer:
        try:
            await peer.send(attribute.publish({"city": "Oslo"}, b"x"))
        except ConnectionError:
            return False
        if who is Who.KNOWN:
            await until(lambda: server.hub.log.tail > head)
            return True
        await peer.rest()
    return server.hub.log.tail > head


def heartbeat_at(peer: type[attribute.BinaryPeer]) -> Callable[[Server, Who], Awaitable[bool]]:
    async def attempt(server: Server, who: Who) -> bool:
        with await peer.connect(server, source=source_of(who)) as stream:
            if peer is attribute.StatusPeer:
                # It tells by itself where it is; nobody who may not know reads a byte.
                return bool(await _some(stream))
            try:
                await stream.send(attribute.message(2, attribute.item(4, (1_700_000_000).to_bytes(8))))
            except ConnectionError:
                return False
            return bool(await _some(stream))

    return attempt


async def _some(stream: TcpPeer) -> bytes:
    """Return the first bytes that come, or nothing if the connection ends without any."""
    try:
        return await stream.read(1)
    except AssertionError:
        return b""


async def parcel_ask(server: Server, who: Who) -> bool:
    """Ask how far the sequence is, which needs no introduction."""
    address = Address.parse(server.doors["parcel"])
    loop = asyncio.get_running_loop()
    with socket.create_connection((address.host, address.port), SECONDS, (source_of(who), 0)) as sock:
        sock.setblocking(False)
        asked = {"is_response": False, "parcel_type": "SeqReq", "id": 0x1234, "size": 0, "body": "Empty"}
        encoded = cbor2.dumps(asked)
        await loop.sock_sendall(sock, bytes([len(encoded)]) + encoded)
        async with asyncio.timeout(SECONDS):
            return b"SeqRes" in await loop.sock_recv(sock, 256)


# SPP and SDK


async def spp_peer_of(server: Server, who: Who) -> spp.SppPeer | None:
    """Log in; ``None`` if that is refused."""
    peer = await spp.SppPeer.connect(server)
    if who is Who.UNKNOWN:
        return peer
    challenge = await spp_challenge(peer, claim(ROOT, KEYS[ROOT]))
    if who is Who.REPLAYED:
        with await spp.SppPeer.connect(server) as other:
            shown = claim(ROOT, KEYS[ROOT], await spp_challenge(other, claim(ROOT, KEYS[ROOT])))
            await other.send(spp.packet(spp.AUTH, spp.string(json.dumps(shown))))
            assert await authenticated(other)
    else:
        shown = proof_of(who, challenge) or {}
    await peer.send(spp.packet(spp.AUTH, spp.string(json.dumps(shown))))
    if await authenticated(peer):
        return peer
    assert await peer.rest() == b""
    peer.close()
    return None


async def spp_challenge(peer: spp.SppPeer, shown: dict[str, str]) -> str:
    await peer.send(spp.packet(spp.AUTH, spp.string(json.dumps(shown))))
    _, data = await peer.packet()
    return data[data.index(b"/") - 36 :].decode()


async def authenticated(peer: spp.SppPeer) -> bool:
    msgtype, data = await peer.packet()
    assert msgtype == spp.AUTH, (msgtype, data)
    return data == ACCEPTED


async def spp_see(server: Server, who: Who) -> bool:
    peer = await spp_peer_of(server, who)
    if peer is None:
        return False
    with peer:
        counted = unauthenticated(server) + refusals(server, "spp")
        await peer.send(spp.subscribe("fleet/1"))
        if who is Who.KNOWN:
            return await peer.until_info("fleet/1") is not None
        await until(lambda: unauthenticated(server) + refusals(server, "spp") > counted)
        return bool(peer._buffer)


async def spp_change(server: Server, who: Who) -> bool:
    peer = await spp_peer_of(server, who)
    if peer is None:
        return False
    head = server.hub.log.tail
    with peer:
        counted = unauthenticated(server) + refusals(server, "spp")
        await peer.send(spp.publish("fleet/1", b'{"a": 1}'))
        await until(
            lambda: server.hub.log.tail > head or unauthenticated(server) + refusals(server, "spp") > counted
        )
    return server.hub.log.tail > head


async def sdk_read(server: Server, who: Who) -> bool:
    with await attribute.SdkPeer.connect(server) as peer:
        if who is not Who.UNKNOWN:
            shown = proof_of(who)
            if who is Who.REPLAYED:
                shown = claim(ROOT, KEYS[ROOT])
                with await attribute.SdkPeer.connect(server) as other:
                    await other.send(attribute.command(b"auth", json.dumps(shown).encode()))
                    assert await other.line() == b"+authsuccess\r\n"
            await peer.send(attribute.command(b"auth", json.dumps(shown).encode()))
            if await peer.line() != b"+authsuccess\r\n":
                return False
        await peer.send(attribute.sub(city="Oslo") + attribute.HEARTBEAT)
        line = await peer.line()
        return not line.startswith(b"-")


# The link


@asynccontextmanager
async def link_of(server: Server, who: Who, door: str) -> AsyncIterator[LinkPeer | None]:
    """Say hello; ``None`` if that is refused."""
    async with link_peer(server, door, greet=False) as peer:
        shown: dict[str, str] | None = None
        if who is not Who.UNKNOWN:
            challenge = await link_challenge(peer)
            shown = proof_of(who, challenge)
        if who is Who.REPLAYED:
            async with link_peer(server, door, greet=False) as other:
                shown = claim(ROOT, KEYS[ROOT], await link_challenge(other))
                assert (await other.ask(op="hello", id=1, version=2, auth=shown))["ok"]
        told = await peer.ask(op="hello", id=1, version=2, auth=shown)
        if told.get("ok"):
            yield peer
        else:
            assert told["error"] == "auth", told
            yield None


async def link_challenge(peer: LinkPeer) -> str:
    told = await peer.ask(op="hello", id=0, version=2, auth={"client_id": ROOT})
    return str(told["challenge"])


ACCEPTED: Final = spp.documented("Authenticated accepted")[8:]
LINK: Final[dict[str, tuple[dict[str, Any], bytes]]] = {
    "publish": ({"op": "publish"}, rows(b"x", topic="fleet/1")),
    "read": ({"op": "read", "first": 1, "last": 1}, b""),
    "follow": ({"op": "follow"}, b""),
    "entries": ({"op": "entries", "first": 0, "last": 1}, b""),
    "replicate": ({"op": "replicate", "from": 1, "last": 1}, b""),
    "consume": ({"op": "follow", "consumer": "fleet-a"}, b""),
    "ack": ({"op": "ack", "consumer": "fleet-a", "seqs": []}, b""),
    "consumers show": ({"op": "consumers", "action": "show", "consumer": "fleet-a"}, b""),
    "consumers reset": ({"op": "consumers", "action": "reset", "consumer": "fleet-a", "to": 1}, b""),
    "service show": ({"op": "services", "service": "fleet/1"}, b""),
    "service create": ({"op": "services", "service": "fleet/1", "action": "create"}, b""),
    "service remove": ({"op": "services", "service": "fleet/never", "action": "remove"}, b""),
    "stage": ({"op": "stage", "query": "fleet-q", "batch": 1}, rows(b"x", topic="fleet/1")),
    "commit": ({"op": "commit", "query": "fleet-q", "batch": 1, "stages": []}, b""),
    "abort": ({"op": "abort", "stages": []}, b""),
    "publisher": ({"op": "publisher", "publisher": "p"}, b""),
    "publisher open": ({"op": "publisher", "publisher": "p", "open": "me"}, b""),
    "publish for another": ({"op": "publish", "client": SOME}, rows(b"x", topic="fleet/1")),
    "pass": ({"op": "pass", "frontend": "f", "number": 1, "rows": 1}, b"x"),
    "hold": ({"op": "holds", "name": "fleet-h", "seq": 1}, b""),
    "holds": ({"op": "holds"}, b""),
    "snapshot": ({"op": "snapshot"}, b""),
    "chain": ({"op": "chain"}, b""),
    "subscriptions": ({"op": "subscriptions"}, b""),
    "report": ({"op": "report", "name": "r", "facts": {}}, b""),
    "reload": ({"op": "reload"}, b""),
    "lost": ({"op": "lost"}, b""),
    "aside": ({"op": "aside"}, b""),
    "aside drop": ({"op": "aside", "action": "drop", "request": "r"}, b""),
}
"""What is asked over the link, by what it does."""


def link_attempt(door: str, name: str) -> Callable[[Server, Who], Awaitable[bool]]:
    head, body = LINK[name]

    async def attempt(server: Server, who: Who) -> bool:
        async with link_of(server, who, door) as peer:
            if peer is None:
                return False
            await peer.say(body, id=7, **head)
            if name == "follow" and who is Who.KNOWN:
                # At the head nothing comes: that the stream is open shows when it is ended.
                await peer.say(op="cancel", id=7)
            told, _ = await peer.hear()
            return told.get("error") not in ("forbidden", "auth")

    return attempt


# The http door


def http_attempt(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    async def attempt(server: Server, who: Who) -> bool:
        headers = {"X-Headrace": "1"}
        match who:
            case Who.KNOWN:
                headers["Authorization"] = f"Bearer {TOKENS['root']}"
            case Who.FORBIDDEN:
                headers["Authorization"] = f"Bearer {TOKENS['none']}"
            case Who.WRONG:
                guess = base64.b64encode(f"{ROOT}:a guess".encode()).decode()
                headers["Authorization"] = f"Basic {guess}"
        timeout = aiohttp.ClientTimeout(SECONDS)
        async with (
            aiohttp.ClientSession(f"http://{server.doors['http']}", timeout=timeout) as session,
            session.request(method, path, json=body, headers=headers) as response,
        ):
            assert response.status in (200, 201, 204, 400, 401, 403, 404, 409), response.status
            return response.status not in (401, 403)

    return attempt


HTTP: Final[dict[str, tuple[str, str, dict[str, Any] | None]]] = {
    "publish": ("POST", "/api/messages", {"topic": "fleet/1", "payload": "x"}),
    "publish to a topic": ("POST", "/v1/publish/fleet/1", None),
    "append to a stream": ("POST", "/v1/stream/fleet/2", {"n": 1}),
    "create a stream": ("PUT", "/v1/stream/fleet/new", None),
    "read a stream": ("GET", "/v1/stream/fleet/1", None),
    "look at a stream": ("HEAD", "/v1/stream/fleet/1", None),
    "delete a stream": ("DELETE", "/v1/stream/fleet/none", None),
    "reset a consumer": ("POST", "/api/consumers/reset", {"consumer": "x", "to": 1}),
    "remove a consumer": ("POST", "/api/consumers/remove", {"consumer": "x"}),
    "deliver again": ("POST", "/api/consumers/redeliver", {"consumer": "x", "topic": "dead/x"}),
    "read one": ("GET", "/api/messages/1", None),
    "service": ("GET", "/api/service?id=fleet/1", None),
    "a service's changes": ("GET", "/api/service/events?id=fleet/1", None),
    "a service for everybody": ("GET", "/v1/service/fleet/1", None),
    "topics": ("GET", "/api/topics", None),
    "subscriptions": ("GET", "/api/subscriptions", None),
    "try a subscription": ("POST", "/api/subscriptions/try", {}),
    "connections": ("GET", "/api/connections", None),
    "close a connection": ("POST", "/api/connections/close", {}),
    "settings": ("GET", "/api/settings", None),
    "ask in SQL": ("POST", "/api/sql", {"query": "select 1"}),
    "seal": ("POST", "/api/log/seal", None),
    "vouch": ("POST", "/api/cluster/vouch", None),
}
"""What is asked over http, by what it does."""

FOR_ANYBODY: Final = frozenset({"/login", "/logout", "/metrics", "/healthz", "/readyz", "/sdk/sub/preauth"})
"""Paths that ask nobody who it is, besides the dashboard's pages; the last has a switch of its own."""

BY_RIGHTS: Final = frozenset(
    {
        "/api/me", "/api/status", "/api/history", "/api/events", "/api/messages", "/api/tail",
        "/api/services", "/api/consumers",
    }
)  # fmt: skip
"""Paths that answer whoever is known, with what it may see."""


def refusals(server: Server, door: str) -> int:
    """Count what the door has refused for want of a right."""
    return sum(
        value
        for name, labels, value in server.hub.counters
        if name == "refused_access" and labels["door"] == door
    )


def unauthenticated(server: Server) -> int:
    return server.hub.counters.get("unauthenticated", door="spp")


CELLS: Final = [
    Cell("fyrehose", "publish over TCP", fyrehose_publish, login=False),
    Cell("fyrehose", "read over TCP", fyrehose_read, login=False),
    Cell("fyrehose", "publish over UDP", udp_publish, login=False),
    Cell("fyrehose", "read over UDP", udp_read, login=False),
    Cell("publisher", "publish", publisher_publish, login=False),
    Cell("router", "admin", heartbeat_at(attribute.RouterPeer), login=False),
    Cell("dispatcher", "admin", heartbeat_at(attribute.DispatcherPeer), login=False),
    Cell("status", "admin", heartbeat_at(attribute.StatusPeer), login=False),
    Cell("parcel", "admin", parcel_ask, login=False),
    Cell("spp", "see", spp_see, login=True),
    Cell("spp", "change", spp_change, login=True),
    Cell("sdk", "read", sdk_read, login=True),
    *(
        Cell("tube", f"{name} at {door}", link_attempt(door, name), login=True)
        for door in ("tube_tcp", "tube_ws")
        for name in LINK
    ),
    *(
        Cell("http", name, http_attempt(method, path, body), True, (method, path.partition("?")[0]))
        for name, (method, path, body) in HTTP.items()
    ),
]
"""Everything that is tried."""


async def settle(server: Server) -> None:
    """Let the hub write what it has noted."""
    server.access.audit.tick()
    await asyncio.get_running_loop().run_in_executor(None, server._audit.close)
