"""A stranger who speaks SPP: plain sockets, and bytes built from the protocol's drawing alone."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import NamedTuple

from tests.net.raw import TcpPeer

PAGE = Path(__file__).parents[2] / "docs/protocols/spp.md"


class Packet(NamedTuple):
    msgtype: int
    data: bytes


def integer(value: int) -> bytes:
    return value.to_bytes(4)


def string(data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return integer(len(raw)) + raw


def packet(msgtype: int, data: bytes) -> bytes:
    return integer(msgtype) + integer(len(data)) + data


AUTH, PUBLISH = 0x48520001, 0x48520002


def subscribe(service: str) -> bytes:
    return packet(1, string(service))


def unsubscribe(service: str) -> bytes:
    return packet(2, string(service))


def publish(service: str, change: bytes) -> bytes:
    return packet(PUBLISH, string(service) + string(change))


def auth(client_id: str, key: str, timestamp: str, challenge: str | None = None) -> bytes:
    signed = client_id.lower() + timestamp + ("" if challenge is None else f":{challenge}")
    token = hmac.new(key.encode(), signed.encode(), hashlib.sha256).hexdigest()
    members = {"client_id": client_id, "timestamp": timestamp, "token": token}
    if challenge is not None:
        members["challenge"] = challenge
    return packet(AUTH, string(json.dumps(members)))


def offer(service: str) -> Packet:
    return Packet(1, string(service))


def removed(service: str) -> Packet:
    return Packet(2, string(service))


def info(service: str, message: bytes) -> Packet:
    return Packet(16, string(service) + string(message))


def documented(title: str) -> bytes:
    """The annotated bytes of the page, by their title."""
    found = re.search(
        rf'^```hex title="{re.escape(title)}"\n(.*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, title
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in found[1].splitlines())


class SppPeer(TcpPeer):
    """A connection to the spp door."""

    door = "spp"

    async def packet(self) -> Packet:
        """The next packet, whatever it is."""
        header = await self.read(8)
        return Packet(int.from_bytes(header[:4]), await self.read(int.from_bytes(header[4:])))

    async def info(self) -> tuple[str, bytes]:
        """The next packet, which must be an Info."""
        msgtype, data = await self.packet()
        assert msgtype == 16, (msgtype, data)
        size = int.from_bytes(data[:4])
        message = data[4 + size :]
        assert int.from_bytes(message[:4]) == len(message) - 4
        return data[4 : 4 + size].decode(), message[4:]

    async def until_info(self, service: str) -> bytes:
        """The message of the next Info of a service, past whatever else comes before it."""
        while True:
            msgtype, data = await self.packet()
            head = string(service)
            if msgtype == 16 and data.startswith(head):
                return data[len(head) + 4 :]
