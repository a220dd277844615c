"""What a node asks of a primary that will not have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.errors import HeadraceError, UnavailableError
from headrace.hub.hub import Hub
from headrace.hub.publishers import Publishers
from headrace.hub.state import State
from headrace.log import Log
from headrace.message import Batch, Run
from headrace.net.cluster_asking import NOT_PRIMARY, Answer, serialize_answer
from headrace.net.cluster_requests import Primary, ToPrimary
from headrace.net.parcel import ParcelStream
from headrace.wire.parcel_body import Ack, Publish

SECONDS = 30.0


class Elsewhere:
    """A stream to a node that answers whatever is asked with the same words."""

    admitted = True

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: ToPrimary
        self.asked = 0

    def post(self, body: Publish, _bulk: bytes, *, certain: bool) -> bool:
        assert certain
        self.asked += 1
        ack = Ack(body.view, body.request, 0, 0)
        told = serialize_answer(self.answer)
        asyncio.get_running_loop().call_soon(self.requests.acknowledged, self, ack, told)
        return True


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    log = Log.open(tmp_path, fsync="never")
    yield Hub(log, 1, max_uncommitted=1 << 20, state=State(Publishers()))
    log.close()


def asking(hub: Hub, stream: Elsewhere, patience: float) -> ToPrimary:
    requests = ToPrimary(hub, Primary(hub), patience=patience, name=lambda: "name")
    stream.requests = requests
    hub.sequencer = requests.passing
    requests.aim(cast("ParcelStream", stream), 1)
    return requests


async def test_a_question_is_not_asked_for_ever_of_one_that_is_never_the_primary(hub: Hub) -> None:
    stream = Elsewhere(NOT_PRIMARY)
    requests = asking(hub, stream, patience=0.3)
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    requests.passing.newest("publisher", told.set_result)
    async with asyncio.timeout(SECONDS):
        assert isinstance(await told, UnavailableError)
    assert stream.asked > 1
    requests.close()


async def test_nor_is_a_message(hub: Hub) -> None:
    stream = Elsewhere(NOT_PRIMARY)
    requests = asking(hub, stream, patience=10.0)
    told: list[Batch | HeadraceError] = []
    hub.submit(Batch(Run.one(b"a"), origin="tube"), told.append)
    hub.turn(0)
    heard: float | None = None
    async with asyncio.timeout(SECONDS):
        while stream.asked < 4:
            await asyncio.sleep(0)
            if stream.asked == 2 and heard is None:
                heard = asyncio.get_running_loop().time()
        while not told:
            assert heard is not None
            requests.passing.tick(heard + 10.0)
            await asyncio.sleep(0)
    assert isinstance(told[0], UnavailableError)
    requests.close()
