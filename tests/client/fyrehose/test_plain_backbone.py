"""The client against a backbone written from the protocol's document alone.

Such a backbone knows a client by the ADDR and PORT that its packets state, and by nothing else: where a datagram came
from is not a word of the document. It has no 0.0.0.0, no leases, no limits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from tests.client.hubs import UdpHub
from tests.net.raw import until

import headrace

Endpoint = tuple[str, int]


class PlainBackbone(asyncio.DatagramProtocol):
    """The document's rules, and nothing else; ``lose`` are sequence numbers whose first DELIVER gets lost."""

    def __init__(self, lose: set[int]) -> None:
        self.lose = lose
        self.messages: list[bytes] = []
        self.clients: set[Endpoint] = set()
        self.requests: list[tuple[Endpoint, int, int]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, _source: Endpoint) -> None:
        kind, body = data[0], data[1:]
        if kind == 0x10:
            self.clients.add(stated(body))
            # "the backbone has to respond to every KEEPALIVE with a KEEPALIVE-ACK"
            self._send(b"\x20" + body, stated(body))
        elif kind == 0x04:
            first, last = int.from_bytes(body[6:12]), int.from_bytes(body[12:18])
            self.requests.append((stated(body), first, last))
            for seq in range(max(first, 1), min(last, len(self.messages)) + 1):
                self._deliver(seq, stated(body))
        else:
            assert kind == 0x02
            for payload in pushes(data):
                self.messages.append(payload)
                if len(self.messages) not in self.lose:
                    for client in self.clients:
                        self._deliver(len(self.messages), client)

    def _deliver(self, seq: int, to: Endpoint) -> None:
        data = self.messages[seq - 1]
        self._send(b"\x01" + len(data).to_bytes(2) + seq.to_bytes(6) + data, to)

    def _send(self, packet: bytes, to: Endpoint) -> None:
        assert to[1] != 0, "nobody can be reached there"
        assert to[0] != "0.0.0.0", "nor there"
        self._transport.sendto(packet, to)


def stated(body: bytes) -> Endpoint:
    return socket.inet_ntoa(body[:4]), int.from_bytes(body[4:6])


def pushes(data: bytes) -> Iterator[bytes]:
    while data:
        end = 3 + int.from_bytes(data[1:3])
        yield data[3:end]
        data = data[end:]


@asynccontextmanager
async def backbone(*lose: int) -> AsyncIterator[tuple[PlainBackbone, str]]:
    """A running one, and its URL."""
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: PlainBackbone(set(lose)), local_addr=("127.0.0.1", 0)
    )
    try:
        yield protocol, "fyrehose+udp://{}:{}".format(*transport.get_extra_info("sockname"))
    finally:
        transport.close()


async def test_it_is_subscribed_and_gets_the_sequence_at_the_address_it_states() -> None:
    async with backbone() as (served, url), headrace.connect(url) as client:
        await client.publish([b"a", b"b", b"c"])
        taken = [await anext(client) for _ in range(3)]
        assert [(message.seq, message.payload) for message in taken] == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert len(served.clients) == 1


async def test_what_gets_lost_is_requested_to_the_same_address() -> None:
    async with backbone(2, 3) as (served, url), headrace.connect(url) as client:
        await client.publish([b"a", b"b", b"c", b"d"])
        assert [(await anext(client)).payload for _ in range(4)] == [b"a", b"b", b"c", b"d"]
        assert {asked[0] for asked in served.requests} == served.clients


async def test_from_the_beginning() -> None:
    async with backbone() as (served, url):
        served.messages += [b"a", b"b"]
        async with headrace.connect(url, from_seq=1) as client:
            assert [(await anext(client)).payload for _ in range(2)] == [b"a", b"b"]


async def test_two_clients_are_told_apart() -> None:
    async with (
        backbone() as (served, url),
        headrace.connect(url) as one,
        headrace.connect(url) as other,
    ):
        await until(lambda: len(served.clients) == 2)
        await one.publish(b"a")
        assert (await anext(one)).payload == (await anext(other)).payload == b"a"


@pytest.mark.parametrize("translated", [False, True])
async def test_zeros_are_stated_only_when_asked_for(translated: bool) -> None:
    with UdpHub() as hub:
        opening = asyncio.create_task(headrace.connect(hub.url, from_seq=1, translated=translated).open())
        packets: dict[int, bytes] = {}
        while packets.keys() != {0x04, 0x10}:
            datagram, source = await hub.datagram()
            packets[datagram[0]] = datagram[1:7]
            if datagram[0] == 0x10:
                hub.send(b"\x20" + datagram[1:], source)
        own = socket.inet_aton(source[0]) + source[1].to_bytes(2)
        assert set(packets.values()) == {bytes(6) if translated else own}
        await (await opening).close()
