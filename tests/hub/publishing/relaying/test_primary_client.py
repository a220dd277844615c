"""What a node asks of a primary that will not have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.net.raw import until

from headrace.errors import HeadraceError, MalformedError, UnavailableError
from headrace.hub.holds import hold
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.query_marks import Queries
from headrace.hub.publishing.relaying.passed import pack_passed
from headrace.hub.publishing.relaying.primary_client import PrimaryClient
from headrace.hub.publishing.relaying.primary_requests import (
    NOT_THE_PRIMARY,
    PrimaryAnswer,
    PrimaryRequest,
    parse_bulk,
    serialize_answer,
)
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Published
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.log.replication_frames import pack
from headrace.message import Batch, Run
from headrace.wire.link.message import PUBLISHED, body_of
from headrace.wire.parcel.body import Ack, Publish

SECONDS = 30.0


class Elsewhere:
    """A stream to a node that answers whatever is asked with the same words."""

    admitted = True

    def __init__(self, answer: PrimaryAnswer) -> None:
        self.answer = answer
        self.requests: PrimaryClient
        self.asked = 0

    def post(self, body: Publish, bulk: bytes = b"", *, certain: bool = False) -> bool:
        assert certain
        self.asked += 1
        ack = Ack(body.view, body.request, 0, 0)
        told = serialize_answer(self.answer)
        asyncio.get_running_loop().call_soon(self.requests.acknowledged, self, ack, told, now())
        return True


class Silent(Elsewhere):
    """One that never answers."""

    def __init__(self) -> None:
        super().__init__(NOT_THE_PRIMARY)

    def post(self, body: Publish, bulk: bytes = b"", *, certain: bool = False) -> bool:
        self.asked += 1
        return True


class There:
    """A stream to a node that is the primary, and may say now and then that it is not."""

    admitted = True

    def __init__(self, directory: Path) -> None:
        self.log = Log.open(directory, fsync="never")
        publishers, queries = PublisherNumbers(), Queries()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 20, state=HubState(publishers, queries))
        self.primary = PublishIntake(self.hub, publishers, queries, directory / "stages")
        self.requests: PrimaryClient
        self.refused: set[int] = set()
        self.asked: list[str] = []

    def post(self, body: Publish, bulk: bytes = b"", *, certain: bool = False) -> bool:
        assert certain
        asyncio.get_running_loop().call_soon(self.answer, body, bulk)
        return True

    def answer(self, body: Publish, bulk: bytes) -> None:
        asked, rows = parse_bulk(bulk)
        self.asked.append(asked.publisher)

        def tell(answer: PrimaryAnswer) -> None:
            self.requests.acknowledged(
                self, Ack(body.view, body.request, 0, 0), serialize_answer(answer), now()
            )

        if len(self.asked) in self.refused:
            tell(NOT_THE_PRIMARY)
        else:
            self.primary.answer(self, asked, rows, tell)
            self.hub.turn(0)

    def payloads(self) -> list[str]:
        """Those of all rows, and of each mark the query's name."""
        messages = (message for batch in self.log.scan_ops(1) for message in batch)
        return [
            message.topic if message.origin == "log" else message.payload.decode() for message in messages
        ]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[There]:
    made = There(tmp_path / "there")
    yield made
    made.log.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    log = Log.open(tmp_path, fsync="never")
    yield Hub(log, 1, max_uncommitted=1 << 20, state=HubState(PublisherNumbers()))
    log.close()


def asking(hub: Hub, stream: Elsewhere | There, patience: float) -> PrimaryClient:
    intake = PublishIntake(hub, PublisherNumbers(), Queries(), hub.log.directory / "stages")
    requests = driven(PrimaryClient(hub, intake, patience=patience, name=lambda: "name", now=now()))
    stream.requests = requests
    hub.sequencer = requests
    requests.aim(stream, 1, now())
    return requests


def now() -> float:
    return asyncio.get_running_loop().time()


def driven(requests: PrimaryClient) -> PrimaryClient:
    """Tick it whenever it asks for that."""
    loop = asyncio.get_running_loop()
    requests.schedule = lambda when: loop.call_at(when, lambda: requests.tick(loop.time())) and None
    return requests


async def test_a_question_is_not_asked_for_ever_of_one_that_is_never_the_primary(hub: Hub) -> None:
    stream = Elsewhere(NOT_THE_PRIMARY)
    requests = asking(hub, stream, patience=0.3)
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    requests.newest("publisher", told.set_result)
    async with asyncio.timeout(SECONDS):
        assert isinstance(await told, UnavailableError)
    assert stream.asked > 1
    requests.close()


async def test_nor_is_a_message(hub: Hub) -> None:
    stream = Elsewhere(NOT_THE_PRIMARY)
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
            requests.tick(heard + 10.0)
            await asyncio.sleep(0)
    assert isinstance(told[0], UnavailableError)
    requests.close()


async def test_a_call_that_a_primary_never_answers_has_an_end_and_lets_the_next_have_its_turn(
    hub: Hub, there: There
) -> None:
    silent = Silent()
    requests = asking(hub, silent, patience=10.0)
    told: dict[str, Any] = {}

    def ask(name: str, *rows: Batch) -> None:
        requests.commit(name, 1, rows, lambda result: told.update({name: result}))

    for name, rows in (("no rows", []), ("rows", staged("rows", 2)), ("waits", staged("waits", 1))):
        ask(name, *rows)
    requests.newest("publisher", lambda newest: told.update(newest=newest))
    assert silent.asked == 2
    begun = now()
    requests._heard = begun  # As if it had answered others.
    requests.tick(begun + 9.0)
    assert told == {}
    requests._heard = begun + 30.0
    requests.tick(begun + 31.0)
    assert set(told) == {"no rows", "rows"}
    for error in told.values():
        assert isinstance(error, UnavailableError)
        assert str(error) == (
            "no primary of the cluster has answered for 30 s; whether this was taken is not known"
        )
    assert silent.asked == 3
    # An answer that comes after all is nobody's, and its place is not another's.
    for request in (1, 2):
        late = serialize_answer(PrimaryAnswer())
        requests.acknowledged(silent, Ack(1, request, 0, 0), late, begun + 31.0)
    assert silent.asked == 3
    there.requests = requests
    requests.aim(there, 2, now())
    async with asyncio.timeout(SECONDS):
        while len(told) < 4:
            await asyncio.sleep(0)
            requests.tick(now())
            requests.committed(1 << 20)
    assert told["waits"] == Published(1, 1, op=2)
    assert told["newest"] is None
    requests.close()


async def commit(requests: PrimaryClient, query: str, rows: list[Batch]) -> Published | HeadraceError:
    told: asyncio.Future[Published | HeadraceError] = asyncio.get_running_loop().create_future()
    requests.commit(query, 1, rows, told.set_result)
    async with asyncio.timeout(SECONDS):
        while not told.done():
            await asyncio.sleep(0)
            requests.committed(1 << 20)  # As if this hub had followed everything.
        return await told


def staged(query: str, count: int) -> list[Batch]:
    return [Batch(Run.of([b"%s %d" % (query.encode(), at)]), origin="spark") for at in range(count)]


async def test_two_commits_at_a_time_keep_their_rows_apart(hub: Hub, there: There) -> None:
    requests = asking(hub, there, patience=10.0)
    one, two = await asyncio.gather(
        commit(requests, "one", staged("one", 3)), commit(requests, "two", staged("two", 4))
    )
    assert (one, two) == (Published(1, 3, op=4), Published(4, 7, op=9))
    assert there.payloads() == [
        *("one 0", "one 1", "one 2", "query/one"),
        *("two 0", "two 1", "two 2", "two 3", "query/two"),
    ]
    requests.close()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_commit_that_is_brought_again_is_there_once(hub: Hub, there: There, at: int) -> None:
    there.refused = {at}
    requests = asking(hub, there, patience=10.0)
    assert await commit(requests, "one", staged("one", 3)) == Published(1, 3, op=4)
    assert there.payloads() == ["one 0", "one 1", "one 2", "query/one"]
    requests.close()


async def test_a_commit_without_rows_needs_none_staged(hub: Hub, there: There) -> None:
    requests = asking(hub, there, patience=10.0)
    assert await commit(requests, "one", []) == Published(None, None, op=1)
    assert there.payloads() == ["query/one"]
    requests.close()


@pytest.mark.parametrize(
    "asked",
    [
        PrimaryRequest("commit", publisher="one", number=1, rows=2),
        PrimaryRequest("commit", publisher="one", number=2, rows=1),
        PrimaryRequest("commit", publisher="two", number=1, rows=1),
        PrimaryRequest("stage", publisher="one", number=1, rows=2),
    ],
)
async def test_rows_that_are_not_those_of_the_commit_are_not_taken(
    there: There, asked: PrimaryRequest
) -> None:
    answers: list[PrimaryAnswer] = []
    body = memoryview(body_of(staged("one", 1)[0].to_arrow().select(PUBLISHED.names)))
    there.primary.answer(
        source := object(), PrimaryRequest("stage", publisher="one", number=1), body, answers.append
    )
    there.primary.answer(source, asked, body, answers.append)
    there.hub.turn(0)
    assert [answer.error for answer in answers] == ["", "missing"]
    assert there.payloads() == []


async def test_an_answer_that_says_nothing_loses_no_question(hub: Hub, there: There) -> None:
    """The node that sent it is cut off, and its requests go to the next."""
    broken = Silent()
    requests = asking(hub, broken, patience=10.0)
    told = asyncio.ensure_future(commit(requests, "one", staged("one", 2)))
    await until(lambda: broken.asked)
    with pytest.raises(MalformedError):
        requests.acknowledged(broken, Ack(1, 1, 0, 0), b"\xc1", now())
    there.requests = requests
    requests.aim(there, 2, now())
    assert await told == Published(1, 2, op=3)
    requests.close()


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_primary_that_changes_between_two_stages_is_brought_them_all(
    hub: Hub, there: There, tmp_path: Path, after: int
) -> None:
    """The next request may be on its way to the first, which is no longer primary, when the second takes over."""
    first = There(tmp_path / "first")
    requests = asking(hub, first, patience=10.0)
    there.requests = requests
    answer = first.answer

    def answer_and_go(body: Publish, bulk: bytes) -> None:
        answer(body, bulk)
        if len(first.asked) == after:
            first.refused = set(range(after + 1, 10))
            requests.aim(there, 2, now())

    first.answer = answer_and_go  # type: ignore[method-assign]
    assert await commit(requests, "one", staged("one", 3)) == Published(1, 3, op=4)
    assert there.payloads() == ["one 0", "one 1", "one 2", "query/one"]
    assert first.payloads() == []
    first.log.close()
    requests.close()


async def test_a_primary_that_is_one_no_longer_keeps_no_rows_of_nodes(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes bring them to the next, and nobody would remove the files until their connections end."""
    monkeypatch.setattr("headrace.hub.publishing.intake.MAX_STAGED", 0)
    requests = PrimaryClient(there.hub, there.primary, patience=10.0, name=lambda: "name", now=now())
    requests.aim_here(now())
    answers: list[PrimaryAnswer] = []
    for source in (requests, object()):
        stage = PrimaryRequest("stage", publisher="query", number=1, origin="tube")
        rows = Batch(Run.one(b"x"), origin="tube").to_arrow().select(PUBLISHED.names)
        there.primary.answer(source, stage, memoryview(body_of(rows)), answers.append)
    stages = there.log.directory / "stages"
    assert [len(list(stages.iterdir())), *answers] == [2, PrimaryAnswer(), PrimaryAnswer()]
    there.hub.give_way(requests)
    requests.aim(None, 2, now())
    assert list(stages.iterdir()) == []


async def test_a_node_that_becomes_primary_asks_itself_once(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, primary = there.hub, there.primary
    requests = driven(PrimaryClient(hub, primary, patience=10.0, name=lambda: "name", now=now()))
    hub.sequencer = requests
    told: list[Batch | HeadraceError] = []
    for number in range(20):
        hub.submit(Batch(Run.one(b"%d" % number), origin="tube"), told.append)
        hub.turn(0)
    asked: list[int] = []
    answer = primary.answer

    def counted(source: object, asks: PrimaryRequest, *more: Any) -> None:
        asked.append(asks.number)
        answer(source, asks, *more)

    monkeypatch.setattr(primary, "answer", counted)
    hub.sequencer = None
    requests.aim_here(now())
    hub.turn(0)
    assert [batch.first for batch in told if isinstance(batch, Batch)] == list(range(1, 21))
    assert asked == list(range(20))
    requests.close()


async def test_what_doors_submit_is_told_its_place_once_it_is_committed_here(hub: Hub, there: There) -> None:
    """Messages and entries in one request; the answer waits for the mark after them."""
    requests = asking(hub, there, patience=10.0)
    told: list[Batch | HeadraceError] = []
    hub.submit(entry("hold", "e1", hold(1)), told.append, tied=True)
    hub.submit(Batch(Run.one(b"a"), origin="tube"), told.append, tied=True)
    hub.submit(entry("hold", "e2", hold(1)), told.append)
    hub.turn(0)
    await until(lambda: there.log.head_op == 4)
    assert there.payloads() == ["hold/e1", "a", "hold/e2", "frontend/name"]
    await asyncio.sleep(0)
    assert told == []
    hub.follow(list(there.log.scan_ops(1)))
    places = [(batch.op, batch.first) for batch in told if isinstance(batch, Batch)]
    assert places == [(1, 0), (2, 1), (3, 1)]
    assert hub.state.holds == {"e1": 1, "e2": 1}
    requests.close()


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (b"", 1),
        (bytes(16), 1),
        (pack_passed(UUID(int=1), [Batch(Run.one(b"a"))]), 2),
        (pack_passed(UUID(int=1), [Batch(Run.one(b"a")), Batch(Run.one(b"b"))]), 1),
        (pack_passed(UUID(int=1), [Batch(Run.one(b"a"))])[:-8], 1),
        (pack(UUID(int=1), [Batch(Run.one(b"a"), op=2, first=1)]), 1),
    ],
    ids=["nothing", "no batch", "too few", "too many", "cut short", "not from the beginning"],
)
async def test_what_cannot_have_been_passed_on_is_refused(there: There, body: bytes, rows: int) -> None:
    answers: list[PrimaryAnswer] = []
    asked = PrimaryRequest("pass", publisher="node", rows=rows)
    there.primary.answer(object(), asked, memoryview(body), answers.append)
    there.hub.turn(0)
    assert [answer.error for answer in answers] == ["malformed"]
    assert there.log.head_op == 0


class Recorder:
    """A stream that keeps what is posted; the test answers."""

    admitted = True

    def __init__(self) -> None:
        self.posted: list[tuple[int, PrimaryRequest]] = []

    def post(self, body: Publish, bulk: bytes = b"", *, certain: bool = False) -> bool:
        assert certain
        self.posted.append((body.request, parse_bulk(bulk)[0]))
        return True

    def kinds(self) -> list[str]:
        return [request.kind for _, request in self.posted]


def test_calls_wait_while_the_rows_of_a_commit_are_brought(hub: Hub, there: There) -> None:
    client = PrimaryClient(hub, there.primary, patience=5.0, name=lambda: "name", now=0.0)
    stream = Recorder()
    client.aim(stream, 1, 0.0)
    newest: list[object] = []
    client.commit("one", 1, staged("one", 2), lambda _: None)
    client.newest("publisher", newest.append)
    assert stream.kinds() == ["stage"]
    client.acknowledged(stream, Ack(1, 1, 0, 0), serialize_answer(PrimaryAnswer()), 0.1)
    assert stream.kinds() == ["stage", "stage"]
    client.acknowledged(stream, Ack(1, 2, 0, 0), serialize_answer(PrimaryAnswer()), 0.2)
    # The primary has the rows when it gets the commit: the next call need not wait for its answer.
    assert stream.kinds() == ["stage", "stage", "commit", "newest"]
    client.acknowledged(stream, Ack(1, 4, 0, 0), serialize_answer(PrimaryAnswer(newest=7)), 0.3)
    assert newest == [7]
    assert client.busy


def test_calls_that_are_lost_together_are_tried_again_together(hub: Hub, there: There) -> None:
    client = PrimaryClient(hub, there.primary, patience=5.0, name=lambda: "name", now=0.0)
    wakes: list[float] = []
    client.schedule = wakes.append
    stream = Recorder()
    client.aim(stream, 1, 1.0)
    for number in range(100):
        client.newest(f"publisher {number}", lambda _: None)
    client.aim(None, 0, 2.0)
    assert wakes == [pytest.approx(2.05)]
    client.aim(stream, 2, 2.01)
    assert len(stream.posted) == 100
    client.tick(2.06)
    asked = [request.publisher for _, request in stream.posted]
    assert asked[:100] == asked[100:]


def test_a_call_is_refused_when_no_primary_has_answered_for_long(hub: Hub, there: There) -> None:
    client = PrimaryClient(hub, there.primary, patience=5.0, name=lambda: "name", now=0.0)
    wakes: list[float] = []
    client.schedule = wakes.append
    told: list[object] = []
    client.newest("publisher", told.append)
    stream = Recorder()
    client.aim(stream, 1, 1.0)
    not_primary = serialize_answer(NOT_THE_PRIMARY)
    client.acknowledged(stream, Ack(1, 1, 0, 0), not_primary, 2.0)
    assert wakes[-1] == pytest.approx(2.05)
    client.tick(2.04)
    assert len(stream.posted) == 1
    client.tick(2.06)
    assert len(stream.posted) == 2
    client.acknowledged(stream, Ack(1, 2, 0, 0), not_primary, 4.99)
    client.tick(4.999)
    assert told == []
    client.tick(5.0)
    assert isinstance(told[0], UnavailableError)
    assert not client.busy
