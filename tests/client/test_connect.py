"""From a URL to a client."""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import errno
from pathlib import Path

import pytest
from tests.net.raw import running_hub

import headrace
from headrace.client import connect, connect_sync
from headrace.client.fyrehose.client import FyrehoseClient
from headrace.errors import UsageError
from headrace.testing import Hub


def hosts(client: FyrehoseClient) -> list[str]:
    return [str(host) for host in client._failover.plan.hosts]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("fyrehose://127.0.0.1:2323", ["127.0.0.1:2323"]),
        ("fyrehose://127.0.0.1", ["127.0.0.1:2323"]),
        ("FYREHOSE://hub.example:99/", ["hub.example:99"]),
        ("fyrehose://[::1]:99", ["[::1]:99"]),
        ("fyrehose://a:1,b, c:3", ["a:1", "b:2323", "c:3"]),
    ],
)
def test_a_url_names_one_host_or_several(url: str, expected: list[str]) -> None:
    assert hosts(connect(url)) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sdk://127.0.0.1", ["127.0.0.1:7253"]),
        ("sdk://a:1,b", ["a:1", "b:7253"]),
        ("publisher://127.0.0.1", ["127.0.0.1:8000"]),
        ("publisher://a:1,b", ["a:1", "b:8000"]),
    ],
)
def test_so_do_the_urls_of_content_routing(url: str, expected: list[str]) -> None:
    assert [str(host) for host in connect(url)._failover.plan.hosts] == expected


def test_the_transport_is_the_schemes_or_an_argument() -> None:
    most = {
        connect(url, **options)._max_data: None
        for url, options in [("fyrehose+udp://a", {}), ("fyrehose://a", {"transport": "udp"})]
    }
    assert list(most) == [65_504]
    assert connect("fyrehose://a")._max_data == 65_526
    assert connect("fyrehose+udp://a", transport="udp")._max_data == 65_504


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("gopher://a", {}, r"unknown scheme 'gopher'; known are fyrehose, fyrehose\+udp"),
        ("127.0.0.1:2323", {}, "expected scheme://host:port"),
        ("fyrehose://a:b", {}, "'a:b' is not an address"),
        ("fyrehose://a,,b", {}, "'' is not an address"),
        ("fyrehose+udp://a", {"transport": "tcp"}, "says udp and transport='tcp' says otherwise"),
        ("fyrehose://a", {"transport": "sctp"}, "expected 'tcp' or 'udp'"),
        ("fyrehose://a", {"from_seq": -1}, "from_seq -1: expected 0 to 281474976710655"),
        ("fyrehose://a", {"from_seq": 1 << 48}, "from_seq 281474976710656"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    url: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        connect(url, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=sentence):
        connect_sync(url, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scheme", "kind", "door", "port"),
    [
        ("tube", "LinkClient", "tube_tcp", 8081),
        ("ws", "LinkClient", "tube_ws", 8080),
        ("fyrehose", "FyrehoseClient", "fyrehose", 2323),
        ("fyrehose+udp", "FyrehoseClient", "fyrehose", 2323),
        ("spp", "SppClient", "spp", 3002),
        ("sdk", "SdkClient", "sdk", 7253),
        ("publisher", "PublisherClient", "publisher", 8000),
    ],
)
def test_a_scheme_alone_is_this_machines_hub(
    scheme: str, kind: str, door: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hosts_of(*given: str) -> list[str]:
        for make, prefix in ((connect, ""), (connect_sync, "Sync")):
            client = make(f"{scheme}://", *given)
            assert type(client) is getattr(headrace, prefix + kind)
        plan = getattr(connect(f"{scheme}://", *given)._kept, "plan")  # noqa: B009
        return [str(host) for host in plan.hosts]

    assert hosts_of() == [f"127.0.0.1:{port}"]
    assert hosts_of("a, b:9") == [f"a:{port}", "b:9"]
    monkeypatch.setenv(f"HEADRACE_LISTEN__{door.upper()}", "0.0.0.0:99")
    assert hosts_of() == ["127.0.0.1:99"]
    monkeypatch.setenv(f"HEADRACE_LISTEN__{door.upper()}", "off")
    assert hosts_of() == [f"127.0.0.1:{port}"]
    with pytest.raises(UsageError, match="names hosts, and so does"):
        connect(f"{scheme}://a", "b")


def test_without_an_argument_it_is_the_link_of_this_machine() -> None:
    assert type(connect()) is headrace.LinkClient
    assert type(connect_sync()) is headrace.SyncLinkClient
    with pytest.raises(UsageError, match="unknown scheme 'tube'; known are spp"):
        headrace.SppClient.at("tube://a")


def test_the_same_client_without_an_event_loop() -> None:
    assert isinstance(connect_sync("fyrehose://a"), headrace.SyncFyrehoseClient)


async def test_ipv6(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, "listen.http=off", "listen.fyrehose=[::1]:0") as hub,
        connect(f"fyrehose://{hub.doors['fyrehose']}") as client,
    ):
        await client.publish(b"hello")
        assert (await anext(client)).payload == b"hello"


async def test_the_link_over_websocket(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as server, connect(f"ws://{server.doors['tube_ws']}") as link:
        assert (await link.publish(b"hello", topic="greetings")).first == 1
        assert (await link.head()).head == 1
    with pytest.raises(UsageError, match="is a WebSocket"):
        connect("ws://127.0.0.1", transport="tcp")
    with pytest.raises(UsageError, match="expected 'tcp' or 'websocket'"):
        connect("tube://127.0.0.1", transport="pigeon")


@pytest.mark.parametrize("scheme", ["spp", "publisher", "tube", "ws"])
def test_closing_what_the_hub_has_just_reset_is_closing(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is reset cannot be shut down, and the loop may not have come to tell."""
    shut_down = []

    def reset(transport: asyncio.Transport) -> None:
        shut_down.append(transport)
        transport.abort()
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    async def close(hub: Hub) -> None:
        client = hub.connect(scheme)
        await client.__aenter__()
        await asyncio.wait_for(client.close(), 10)

    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "write_eof", reset)
    with Hub() as hub:
        asyncio.run(close(hub))
    assert shut_down
