"""The hub that users have for their own tests."""

from __future__ import annotations

import doctest
import socket
from pathlib import Path

import pytest
from tests.ports import lasting_port

import headrace.testing
from headrace.errors import ClosedError, ConfigError, UsageError
from headrace.testing import Hub


def test_the_example_in_its_documentation() -> None:
    assert doctest.testmod(headrace.testing).failed == 0
    assert doctest.testmod(headrace.testing).attempted > 0


async def test_beside_an_event_loop() -> None:
    with Hub() as hub:
        async with hub.connect("tube") as link:
            await link.publish([b"a", b"b"], topic="t/1")
        async with hub.connect("fyrehose", from_seq=1) as backbone:
            async for message in backbone:
                assert message.payload == b"a"
                break
        assert [message.topic for message in hub.messages(topic="t/*")] == ["t/1", "t/1"]
        assert hub.messages(origin="spp") == []


def test_waiting_for_what_does_not_come_says_what_did() -> None:
    with Hub() as hub, hub.connect_sync("tube") as link:
        link.publish(b"only one")
        assert [message.payload for message in hub.wait_for(1)] == [b"only one"]
        with pytest.raises(AssertionError, match=r"1 messages of 2 after 0\.05 s"):
            hub.wait_for(2, timeout=0.05)


def test_settings_and_doors() -> None:
    with Hub({"services.auto": True, "listen.spp": "off"}) as hub:
        assert "spp" not in hub.doors
        assert hub.url("http").startswith("http://127.0.0.1:")
        assert hub.url("ws") == hub.url("tube_ws") == f"ws://{hub.doors['tube_ws']}"
        assert (
            hub.url("tube") == hub.url("tube://") == hub.url("tube_tcp") == f"tube://{hub.doors['tube_tcp']}"
        )
        assert hub.url("fyrehose") == f"fyrehose://{hub.doors['fyrehose']}"
        assert hub.url("fyrehose+udp://") == f"fyrehose+udp://{hub.doors['fyrehose']}"
        with pytest.raises(UsageError, match="no door 'spp'"):
            hub.url("spp")
        assert hub.status["head"] == 0  # services.auto is an entry of the log, which takes no number


def test_its_files_are_gone_and_its_ports_free() -> None:
    with Hub({"listen.tube_tcp": f"127.0.0.1:{lasting_port()}"}) as hub:
        address = hub.doors["tube_tcp"]
        data = hub._running.settings.node.data
        assert data.exists()
    assert not data.exists()
    host, port = address.split(":")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, int(port)))
    with pytest.raises(ClosedError):
        hub.messages()


def test_started_again_on_the_same_data(tmp_path: Path) -> None:
    for number in (1, 2):
        with Hub(data=tmp_path) as hub, hub.connect_sync("tube") as link:
            assert link.publish(b"x").first == number
    assert (tmp_path / "log").exists()


def test_one_that_cannot_start_says_why() -> None:
    with pytest.raises(ConfigError, match=r"log\.nonsense"):
        Hub({"log.nonsense": 1}).start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        hub = Hub({"listen.spp": f"127.0.0.1:{taken.getsockname()[1]}"})
        with pytest.raises(ConfigError, match="spp"):
            hub.start()
        hub.stop()


def test_it_is_started_once() -> None:
    with Hub() as hub, pytest.raises(UsageError, match="runs already"):
        hub.start()
