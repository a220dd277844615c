"""Clients in other languages at our hub, which serves them together with each other's."""

from __future__ import annotations

import asyncio

import pytest
from tests.hubprocess import HubProcess
from tests.peers.conftest import LANGUAGES, SECONDS, Start
from tests.tube.serving import echo

import headrace
from headrace.tube import serve

pytestmark = pytest.mark.parametrize("language", LANGUAGES)

OTHER = {"javascript": "c", "c": "javascript"}


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("lose", [0, 3], ids=["whole", "lossy"])
def test_fyrehose(start: Start, hub: HubProcess, language: str, transport: str, lose: int) -> None:
    """A subscriber gets what a publisher of another language pushes, in order and without gaps."""
    at = hub.address("fyrehose")
    words = [f"{language}-{transport}-{lose}-{count}" for count in range(20)]
    subscriber = start(language, "fyrehose", "subscribe", transport, *at, len(words), lose)
    assert subscriber.line() == "ready"
    start(OTHER[language], "fyrehose", "publish", transport, *at, *words).ends_well()
    lines = [line.split(" ", 1) for line in subscriber.lines(len(words))]
    assert [word for _, word in lines] == words
    first = int(lines[0][0])
    assert [int(sequence) for sequence, _ in lines] == list(range(first, first + len(words)))
    subscriber.ends_well()


async def test_our_client_gets_what_it_pushes(start: Start, hub: HubProcess, language: str) -> None:
    async with headrace.connect(hub.url("fyrehose")) as backbone, asyncio.timeout(SECONDS):
        peer = start(language, "fyrehose", "publish", "udp", *hub.address("fyrehose"), "hello", "good day")
        assert [(await anext(backbone)).payload for _ in range(2)] == [b"hello", b"good day"]
        peer.ends_well()


async def test_spp(start: Start, hub: HubProcess, language: str) -> None:
    """A watcher gets the object that our client made, and each change of it."""
    service = f"mill/{language}"
    watcher = start(language, "spp", "watch", *hub.address("spp"), service, 3)
    async with headrace.connect(hub.url("spp")) as spp, asyncio.timeout(SECONDS):
        await spp.publish({"speed": 60}, topic=service)
        first = await asyncio.to_thread(watcher.line)
        for speed in (61, 62):
            await spp.publish({"speed": speed}, topic=service)
    assert [first.replace(" ", ""), *(line.replace(" ", "") for line in watcher.lines(2))] == [
        f'{{"speed":{speed}}}' for speed in (60, 61, 62)
    ]
    watcher.ends_well()


def test_content_routing(start: Start, hub: HubProcess, language: str) -> None:
    """A watcher gets the messages of another language's publisher that match, and no others."""
    watcher = start(language, "sdk", "watch", *hub.address("sdk"), f"Oslo-{language}", 2)
    assert watcher.line() == "ready"
    words = ["snow", "more snow"]
    start(
        OTHER[language], "sdk", "publish", *hub.address("publisher"), f"Oslo-{language}", *words
    ).ends_well()
    assert watcher.lines(2) == words
    watcher.ends_well()


async def test_tube(start: Start, language: str) -> None:
    """Messages in few and many fragments, and compressed ones, come back as they were sent."""
    words = ["hello", "tube " * 500]
    forms = 3 if language == "javascript" else 2
    async with serve(echo, port=0) as server, asyncio.timeout(SECONDS):
        host, _, port = str(server.addresses[0]).rpartition(":")
        peer = start(language, "tube", "talk", host, port, *words)
        lines = []
        while not lines or lines[-1] != "pong":
            lines.append(await asyncio.to_thread(peer.line))
        await asyncio.to_thread(peer.ends_well)
    # The one without deflate refuses the first message that we compress; we repeat it, and compress no more.
    refused = [line for line in lines if line.startswith("refused")]
    assert len(refused) == (language == "c")
    expected = [word for word in words for _ in range(forms)]
    assert [line for line in lines if line not in refused] == [*expected, "pong"]


def test_parcel(start: Start, hub: HubProcess, language: str) -> None:
    """A node of the document is answered, and gets the heartbeats of a neighbour."""
    node = start(language, "parcel", "join", *hub.address("parcel"))
    assert node.port
    modes, sequence = node.lines(2)
    assert modes.split()[0] == "WRK"
    assert int(sequence) >= 0
    assert node.line() == "heartbeat"
