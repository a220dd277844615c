"""The backbone's two halves, and where there is only one of them."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest
from tests.net.conftest import Start
from tests.net.raw import address_of, backbone_of, deliver, keepalive, push

from headrace.net.server.process import Server

IPV6 = "::ffff:127.0.0.1"
"""An IPv6 address that every machine has, whose network is IPv4 alone."""


async def test_on_ipv4_one_port_number_serves_tcp_and_udp(server: Server) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(type=kind) as sock, pytest.raises(OSError) as caught:
            sock.bind(address_of(server))
        assert caught.value.errno == errno.EADDRINUSE


async def test_on_ipv6_it_serves_tcp_only_and_says_so(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = await start(f"listen.fyrehose=[{IPV6}]:0")
    assert "the backbone serves TCP only" in caplog.text
    assert backbone_of(server).udp is None
    _, port = address_of(server)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind((IPV6, port))
    reader, writer = await asyncio.open_connection(IPV6, port)
    writer.write(keepalive() + push(b"hello"))
    assert await reader.readexactly(7) == b"\x20" + bytes(6)
    assert await reader.readexactly(14) == deliver(1, b"hello")
    assert backbone_of(server).facts() == {"fyrehose_tcp": 1, "fyrehose_udp": 0}
    writer.close()
    await writer.wait_closed()
