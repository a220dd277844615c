"""Our clients at servers in other languages."""

from __future__ import annotations

import asyncio

import pytest
from tests.peers.conftest import LANGUAGES, SECONDS, Start

import headrace
from headrace import where
from headrace.tube import connect

pytestmark = pytest.mark.parametrize("language", LANGUAGES)


@pytest.mark.parametrize("lose", [0, 3], ids=["whole", "lossy"])
async def test_a_backbone(start: Start, language: str, lose: int) -> None:
    """Over UDP; what the backbone loses on the way is requested."""
    server = start(language, "fyrehose", "serve", lose)
    words = [f"message {count}".encode() for count in range(20)]
    url = f"fyrehose+udp://127.0.0.1:{server.port}"
    async with headrace.connect(url) as backbone, asyncio.timeout(SECONDS):
        await backbone.publish(words)
        # The last one may be lost, which only a later one shows.
        await backbone.publish([b"later"] * 3)
        taken = [await anext(backbone) for _ in words]
    assert [(message.seq, message.payload) for message in taken] == list(enumerate(words, 1))


async def test_an_spp_server(start: Start, language: str) -> None:
    messages = ['{"speed":60}', '{"speed":61}', '{"driver":"Ada"}']
    server = start(language, "spp", "serve", "fleet/42", *messages)
    async with headrace.connect(f"spp://127.0.0.1:{server.port}") as spp, asyncio.timeout(SECONDS):
        async with spp.subscribe("fleet/42") as service:
            changes = [await anext(service) for _ in range(2)]
            assert changes == [{"speed": 61}, {"driver": "Ada"}]
            assert service.value == {"speed": 61, "driver": "Ada"}
        assert spp.offered == ("fleet/42",)


async def test_a_connector(start: Start, language: str) -> None:
    """It has no sequence numbers."""
    server = start(language, "sdk", "serve", "snow", "more snow")
    async with headrace.connect(f"sdk://127.0.0.1:{server.port}") as sdk, asyncio.timeout(SECONDS):
        await sdk.subscribe(where(city="Oslo"))
        taken = [await anext(sdk) for _ in range(2)]
    assert [(message.seq, message.payload) for message in taken] == [(0, b"snow"), (0, b"more snow")]


async def test_a_tube_server(start: Start, language: str) -> None:
    """One knows deflate, the other does not: then the message is repeated as it is."""
    server = start(language, "tube", "serve")
    words = [b"hello", b"tube " * 2000, b"again " * 2000]
    async with connect(f"tube://127.0.0.1:{server.port}") as tube, asyncio.timeout(SECONDS):
        for word in words:
            await tube.send(word)
            assert await tube.receive() == word
    heard = await asyncio.to_thread(server.lines, 3 if language == "javascript" else 4)
    kinds = [line.split()[0] for line in heard]
    if language == "javascript":
        # The third is compressed if the Pong of the first one's trial was there in time.
        assert kinds[:2] == ["plain", "compressed"]
    else:
        assert kinds == ["plain", "refused", "plain", "plain"]
