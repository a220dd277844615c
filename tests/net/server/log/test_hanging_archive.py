"""An archive that does not answer holds up those who read it, and nobody else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Event

import pytest
from tests.archive.logs import archive, write_log
from tests.net.conftest import Dial, Start
from tests.net.linkpeer import link_peer
from tests.net.raw import SECONDS, push, until

from headrace.archive.reader import ArchiveReader
from headrace.client.link.client import LinkClient
from headrace.config import Address

COUNT = 3_000
READERS = 8
"""More than any share has threads."""


async def test_live_readers_do_not_wait_for_it(
    tmp_path: Path, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log", COUNT)
    archive(log, tmp_path / "archive", COUNT)
    log.close()
    server = await start(f"log.archive={tmp_path / 'archive'}", "log.retain_bytes=1")
    log = server.hub.log
    await until(lambda: log.first_here > COUNT)
    answering, asked = Event(), Event()
    real = ArchiveReader.read

    def hanging(self: ArchiveReader, first: int, last: int, max_bytes: int) -> object:
        asked.set()
        answering.wait(SECONDS)
        return real(self, first, last, max_bytes)

    monkeypatch.setattr(ArchiveReader, "read", hanging)
    try:
        async with AsyncExitStack() as stack:
            late = [await stack.enter_async_context(link_peer(server)) for _ in range(READERS)]
            for number, peer in enumerate(late):
                # Reads, follows and durable consumers, all from message 1 on.
                if number % 3 == 0:
                    await peer.say(op="read", id=1, first=1)
                else:
                    name = {"consumer": f"late {number}"} if number % 3 == 1 else {}
                    await peer.say(op="follow", id=1, **{"from": 1}, **name)
            await until(asked.is_set)
            async with LinkClient([Address.parse(server.doors["tube_tcp"])]) as link:
                follow = link.follow()
                await follow.begun()
                consumer = link.consumer("at the head", from_seq=COUNT + 1)
                await consumer.join()
                subscriber = await dial(server)
                await subscriber.subscribe()
                publisher = await dial(server)
                await publisher.send(push(b"live"))
                async with asyncio.timeout(SECONDS):
                    assert (await anext(follow)).seq == COUNT + 1
                    assert (await anext(consumer)).payload == b"live"
                    assert await subscriber.deliver() == (COUNT + 1, b"live")
                    # What the log itself has is read by threads that do not wait either.
                    assert (await link.read(COUNT + 1).to_arrow()).num_rows == 1
            answering.set()
            head, _ = await late[0].hear()
            assert head["first"] == 1
    finally:
        answering.set()
