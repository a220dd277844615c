"""Peers of the attribute doors that speak in bytes, built from the protocol's drawings and from nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.net.raw import TcpPeer, until

from headrace.message import Batch, Run
from headrace.net.server.process import Server

ALICE, BOB, CAROL = (bytes([n]) * 12 for n in (0xA1, 0xB0, 0xCA))


def item(number: int, content: bytes) -> bytes:
    return bytes([number]) + len(content).to_bytes(2) + content


def message(command: int, *items: bytes, extra: int = 1) -> bytes:
    body = b"".join(items)
    return bytes([command]) + len(body).to_bytes(2) + bytes([extra]) + body


def publish(attributes: dict[str, Any], payload: bytes) -> bytes:
    return message(1, item(1, json.dumps(attributes).encode()), item(2, payload), extra=0)


def msg_id(seq: int, node: int = 7) -> bytes:
    return seq.to_bytes(6) + node.to_bytes(2) + bytes(4)


def command(*elements: bytes) -> bytes:
    body = b"*%d\r\n" % len(elements)
    for element in elements:
        body += b"$%d\r\n%b\r\n" % (len(element), element)
    return b"#%d\r\n%b" % (len(body), body)


def auth(client: bytes, after: int | None = None, **members: Any) -> bytes:
    claim: dict[str, Any] = {"client_id": client.hex(), "timestamp": "1700000000", "token": "00", **members}
    if after is not None:
        claim["after"] = after
    return command(b"auth", json.dumps(claim).encode())


def sub(**fields: Any) -> bytes:
    """A string asks for equality, a pair for a range, a mapping for ``extra``."""
    return command(b"sub", *_pairs(fields))


def subn(name: str, *alternatives: Mapping[str, Any]) -> bytes:
    """Add or replace a named subscription; without alternatives, remove it."""
    if not alternatives:
        return command(b"unsubn", name.encode())
    elements = [pair for each in alternatives for pair in (b"", b"or", *_pairs(each))]
    return command(b"subn", name.encode(), *elements[2:])


def _pairs(fields: Mapping[str, Any]) -> list[bytes]:
    elements = []
    for name, wanted in fields.items():
        if isinstance(wanted, str):
            field = {"use": 1, "strval": wanted}
        elif isinstance(wanted, tuple):
            field = {"use": 2, "low": wanted[0], "high": wanted[1]}
        else:
            field = {"use": 3, "extra": json.dumps(wanted)}
        elements += [name.encode(), json.dumps(field).encode()]
    return elements


HEARTBEAT = b"#12\r\n*1\r\n$2\r\nhb\r\n"


class SdkPeer(TcpPeer):
    """A client of the connector."""

    door = "sdk"

    async def line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            assert await self._more(), f"closed after {bytes(self._buffer)!r}"
        return await self.read(end + 1)

    async def push(self) -> tuple[int, bytes]:
        """The next frame, which must be a push of text: its number and payload."""
        line = await self.line()
        assert line.startswith(b"#"), line
        body = await self.read(int(line[1:]))
        assert body.endswith(b"\r\n")
        content = json.loads(body)
        assert content["type"] == 1, content
        return content["seq"], content["payload"].encode()

    async def named_push(self) -> tuple[bytes, list[str]]:
        """The payload of the next push, and the names of the subscriptions that it satisfies."""
        content = json.loads(await self.read(int((await self.line())[1:])))
        return content["payload"].encode(), content.get("subs", [])

    async def pushes(self, count: int) -> list[tuple[int, bytes]]:
        return [await self.push() for _ in range(count)]

    async def enter(self, client: bytes, after: int | None = None) -> None:
        await self.send(auth(client, after))
        assert await self.line() == b"+authsuccess\r\n"


class PublisherPeer(TcpPeer):
    """A publisher."""

    door = "publisher"


class BinaryPeer(TcpPeer):
    """A peer of a door whose messages have a header and items."""

    async def message(self) -> tuple[int, int, dict[int, bytes]]:
        """The next message: its command, extra and items."""
        head = await self.read(4)
        body = await self.read(int.from_bytes(head[1:3]))
        items = {}
        while body:
            length = int.from_bytes(body[1:3])
            items[body[0]] = body[3 : 3 + length]
            body = body[3 + length :]
        return head[0], head[3], items


class RouterPeer(BinaryPeer):
    """A dispatcher, as a connector sees it."""

    door = "router"


class DispatcherPeer(BinaryPeer):
    """A matcher or another dispatcher, as a dispatcher sees it."""

    door = "dispatcher"


async def fill(server: Server, count: int = 100) -> None:
    """Let a hub's sequence be so long that what is pushed to it can be of it."""
    head = server.hub.log.head + count
    server.hub.submit(Batch(Run.of([b"x"] * count), origin="test"))
    await until(lambda: server.hub.log.head >= head)


class StatusPeer(BinaryPeer):
    """Whoever asks a matcher where it is."""

    door = "status"
