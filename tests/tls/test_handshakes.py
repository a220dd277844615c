"""Handshakes: bounded in time and number, counted as connections; recordings and Spark's connections under TLS."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.certificates import Certificate
from tests.tls.conftest import TlsHub
from tests.tls.test_doors import until

from headrace.client.link.client import LinkClient
from headrace.errors import UsageError
from headrace.net.server.accepting import entrance as entrances
from headrace.net.server.accepting.recording import Recorder, RecordingLoop
from headrace.net.server.process import Server
from headrace.spark.hub_connections import close_links, link
from headrace.spark.options import HubOptions, parse_source_options
from headrace.testing import Hub
from headrace.wire.capture import CaptureDecoder, Chunk


def test_an_unfinished_handshake_is_cut_off_in_time(certificate: Certificate) -> None:
    settings: dict[str, object] = {"tls.cert": str(certificate.cert), "tls.key": str(certificate.key)}
    with Hub({**settings, "limits.handshake_seconds": 0.3}) as hub:
        tls = TlsHub(hub, None, certificate)  # type: ignore[arg-type]
        for door, first in (("fyrehose", b""), ("tube_tcp", b"\x16\x03\x01"), ("http", b"\x16")):
            with tls.dial(door) as sock:
                sock.sendall(first)
                assert _rest(sock) == b""
        for door in ("fyrehose", "tube", "http"):
            until("it is counted", lambda door=door: tls.refusals(door, "stalled") == 1)  # type: ignore[misc]


async def test_handshakes_are_bounded_in_number(tls: TlsHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as connections; the oldest of the address with the most gives way, so that others get in."""
    monkeypatch.setattr(entrances, "MAX_UNFINISHED", 4)
    entrance = tls.hub._running.entrance
    with ExitStack() as stack:
        slow = [stack.enter_context(tls.dial("tube_tcp")) for _ in range(8)]
        for sock in slow:
            sock.sendall(b"\x16\x03\x01")
        until("four have to go", lambda: tls.refusals("tube", "handshakes") == 4)
        until("four are left", lambda: entrance.unfinished == 4)
        assert tls.hub.status["connections"] == 4
        async with tls.hub.connect("tube+tls://", ca=tls.ca) as client:
            assert (await client.head()).head >= 0
    until("all are over", lambda: entrance.unfinished == 0)


def test_a_recorded_connection_is_recorded_in_the_clear(
    tmp_path: Path, certificate: Certificate, tls: TlsHub
) -> None:
    """What a protocol says is what a reader of recordings wants to see."""
    from headrace.config import DOORS, load

    sets = [f"listen.{door}=off" for door in DOORS if door != "tube_tcp"]
    settings = load(
        environ={},
        sets=[
            *sets,
            *certificate.settings(),
            "listen.tube_tcp=127.0.0.1:0",
            f"node.data={tmp_path / 'data'}",
        ],
    )

    async def publish() -> None:
        server = Server(settings)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RecordingLoop)
        loop.recorder = Recorder(tmp_path / "captures", lambda: server.doors)
        await server.start()
        try:
            async with LinkClient.at(f"tube+tls://{server.doors['tube_tcp']}", ca=tls.ca) as client:
                await client.publish(b"in the clear")
        finally:
            await server.drain()

    with asyncio.Runner(loop_factory=RecordingLoop) as runner:
        runner.run(publish())
    (file,) = (tmp_path / "captures").iterdir()
    said = b"".join(item.data for item in CaptureDecoder().feed(file.read_bytes()) if isinstance(item, Chunk))
    assert b"in the clear" in said


def test_connections_of_spark(tls: TlsHub) -> None:
    where = tls.hub.doors["tube_tcp"]
    options = {"servers": where, "tls.ca": tls.ca}
    access = parse_source_options(options, stream=True).access
    assert access.servers == f"tube+tls://{where}"
    try:
        with link(access, at_once=True) as client:
            assert client.publish(b"from a task").first > 0
    finally:
        close_links()
    several = HubOptions.to("tube+tls://a,b:1")
    assert [str(host) for host in several.hosts] == ["a:8081", "b:1"]
    assert several.servers == "tube+tls://a,tube+tls://b:1"
    assert HubOptions.to("tube://a").tls() is None
    with pytest.raises(UsageError, match="tls"):
        parse_source_options({"servers": where, "tls.cafile": "x"}, stream=True)


def _rest(sock: socket.socket) -> bytes:
    found = b""
    while True:
        try:
            more = sock.recv(4096)
        except ConnectionError:
            return found
        if not more:
            return found
        found += more
