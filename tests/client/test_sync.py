"""Clients for code without an event loop, against a hub of its own process."""

from __future__ import annotations

import asyncio
import errno
import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
from tests.hubprocess import HubProcess
from tests.ports import lasting_port

import headrace
from headrace import connect_sync
from headrace.client.sync_base import Blocking, Making, Property, SyncIterator, SyncReceiver
from headrace.errors import ClosedError, LimitError, LostRangeError, UnreachableError, UsageError
from headrace.testing import Hub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path_factory.mktemp("hub"), "listen.http=off") as hub:
        yield hub


@pytest.fixture
def url(hub: HubProcess) -> str:
    return hub.url("fyrehose")


def threads() -> int:
    return sum(thread.name == "headrace-client" for thread in threading.enumerate())


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_push_and_receive(url: str, transport: str) -> None:
    with connect_sync(url, transport=transport) as client:
        client.publish(b"hello")
        client.publish([b"a", b"b", b"c"])
        messages = [next(client) for _ in range(4)]
        assert [message.payload for message in messages] == [b"hello", b"a", b"b", b"c"]
        assert client.stats.received == 4
        assert client.connected is True
    assert client.connected is False
    assert threads() == 0


def test_history_by_message_and_by_batch_from_one_place(url: str) -> None:
    with connect_sync(url, subscribe=False) as publisher:
        publisher.publish([b"%d" % number for number in range(5000)])
    with connect_sync(url, from_seq=1) as client:
        first = next(client)
        assert first.seq == 1
        for message in client:
            if message.seq == 1000:
                break
        seen = message.seq
        for batch in client.batches():
            assert batch.first == seen + 1
            seen = batch.last
            if seen >= 5000:
                break
        assert client.at_hand() is None


def test_errors_are_the_same(url: str) -> None:
    with pytest.raises(UnreachableError, match="is the hub running"):
        connect_sync(f"fyrehose://127.0.0.1:{lasting_port()}").open()
    assert threads() == 0
    with connect_sync(url) as client:
        with pytest.raises(LimitError):
            client.publish(bytes(65_527))
        with pytest.raises(AttributeError):
            client.unheard_of  # noqa: B018
        with pytest.raises(AttributeError):
            client._messages  # noqa: B018


def test_it_is_opened_once_and_closed_as_often_as_you_like(url: str) -> None:
    client = connect_sync(url)
    assert client.connected is False, "looking opens nothing"
    client.close()
    with client, pytest.raises(UsageError, match="opened once"):
        client.open()
    client.close()
    with pytest.raises(ClosedError):
        iter(client)
    with pytest.raises(ClosedError):
        client.batches()
    with pytest.raises(StopIteration):
        next(client)
    with pytest.raises(ClosedError):
        client.publish(b"")
    with pytest.raises(UsageError, match="opened once"):
        client.open()


def test_without_with_it_opens_on_first_use(hub: HubProcess) -> None:
    link = connect_sync("tube://", hub.doors["tube_tcp"])
    assert threads() == 0
    acknowledged = link.publish(b"hello", topic="sync/first-use")
    assert link.connected
    with link:
        assert link.head().head >= acknowledged.first, "and `with` goes on from there"
    assert threads() == 0
    for first_use in (
        lambda link: next(link.follow(from_seq=1)).seq,
        lambda link: len(link.log),
        lambda link: link.wait(link.client.head()).first,
    ):
        link = connect_sync("tube://", hub.doors["tube_tcp"])
        assert first_use(link)
        link.close()
    backbone = connect_sync("fyrehose://", hub.doors["fyrehose"], from_seq=1)
    assert next(iter(backbone)).seq == 1
    backbone.close()


def test_at_the_end_of_the_program_it_closes(hub: HubProcess) -> None:
    program = f"""
import headrace
link = headrace.connect_sync("tube://", {hub.doors["tube_tcp"]!r})
publisher = link.publisher()
for number in range(200):
    publisher.send(b"%d" % number, topic="sync/exit")
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    with connect_sync("tube://", hub.doors["tube_tcp"]) as link:
        assert sum(rows.num_rows for rows in link.read(topic="sync/exit")) == 200


PAIRS = [
    (headrace.FyrehoseClient, headrace.SyncFyrehoseClient),
    (headrace.LinkClient, headrace.SyncLinkClient),
    (headrace.SppClient, headrace.SyncSppClient),
    (headrace.SdkClient, headrace.SyncSdkClient),
    (headrace.PublisherClient, headrace.SyncPublisherClient),
    (headrace.LinkPublisher, headrace.SyncLinkPublisher),
    (headrace.Consumer, headrace.SyncConsumer),
    (headrace.MessageStream, headrace.SyncMessageStream),
    (headrace.BatchStream, headrace.SyncBatchStream),
    (headrace.EntryStream, headrace.SyncEntryStream),
    (headrace.LiveService, headrace.SyncLiveService),
]
ELSEWHERE = {"DOORS", "aclose", "end", "messages", "wake", "offered"}
"""What is not for users of a synchronous class, or has another name there."""


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_each_class_has_what_its_asynchronous_one_has(asynchronous: type, blocking: type) -> None:
    for name in dir(asynchronous):
        if name.startswith("_") or (name in ELSEWHERE and name not in dir(blocking)):
            continue
        assert hasattr(blocking, name), f"{blocking.__name__} lacks {name}"
        theirs, ours = getattr(asynchronous, name), getattr(blocking, name)
        assert ours.__doc__, f"{blocking.__name__}.{name} tells nothing of itself"
        if inspect.isfunction(theirs) and inspect.isfunction(ours):
            assert (
                list(inspect.signature(ours).parameters)[1:] == list(inspect.signature(theirs).parameters)[1:]
            )


def test_signatures_and_docstrings_are_at_hand_in_a_notebook() -> None:
    link = headrace.SyncLinkClient.at("tube://127.0.0.1:1")
    assert {"publish", "follow", "consumer", "connected"} <= set(dir(link))
    assert list(inspect.signature(link.publish).parameters) == ["payload", "topic", "attributes", "numbers"]
    assert inspect.getdoc(link.publish) == inspect.getdoc(headrace.LinkClient.publish)
    assert link.publish.__qualname__ == "SyncLinkClient.publish"


def test_closing_ends_an_iteration_in_another_thread(url: str) -> None:
    taken: list[int] = []
    with connect_sync(url) as client:
        consumer = threading.Thread(target=lambda: taken.extend(message.seq for message in client))
        consumer.start()
        client.publish(b"one")
        while client.stats.received < 1:
            client.publish([])
    consumer.join()
    assert len(taken) == 1


def test_threads_share_a_client(url: str) -> None:
    taken: list[int] = []

    def consume() -> None:
        while len(taken) < 2000:
            taken.append(next(client).seq)
            if len(taken) == 2000:
                client.publish([b""] * 4)  # For those who wait still.

    with connect_sync(url) as client:
        consumers = [threading.Thread(target=consume) for _ in range(4)]
        for consumer in consumers:
            consumer.start()
        for _ in range(100):
            client.publish([b"x"] * 20)
        for consumer in consumers:
            consumer.join()
    taken.sort()
    assert taken == list(range(taken[0], taken[0] + len(taken)))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C does what it does in a terminal; where the tests run in the background it would be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_wait_and_not_the_client(url: str) -> None:
    main = threading.get_ident()
    with connect_sync(url) as client:
        threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(client)
        client.publish(b"still here")
        assert next(client).payload == b"still here"


def test_members_of_a_consumer_acknowledge(hub: HubProcess) -> None:
    with connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        with link.consumer("c", topic="sync/consumed", max_tries=2) as consumer:
            link.publish([b"a", b"b"], topic="sync/consumed")
            first = next(consumer)
            assert (first.payload, consumer.ack(first)) == (b"a", True)
            assert consumer.name == "c"
        with pytest.raises(ZeroDivisionError), link.consumer("c") as consumer:
            # The message that the error is about is given back as failed.
            assert next(iter(consumer)).payload == bytes([98 // 0])
        with link.consumer("c") as consumer:
            assert consumer.ack(next(consumer)) is True
        assert link.show_consumer("c")["dead"] == 0


def test_a_service_is_kept_current(hub: HubProcess) -> None:
    with connect_sync(hub.url("spp")) as spp:
        spp.publish({"speed": 60}, topic="sync/service")
        with spp.subscribe("sync/service") as service:
            assert (service.value, service.kind, service.removed) == ({"speed": 60}, "json", False)
            spp.publish({"gear": 2}, topic="sync/service")
            for change in service:
                assert change == {"gear": 2}
                break
            assert service.value == {"speed": 60, "gear": 2}
            assert service.id == "sync/service"
        assert service.value is None, "it is closed"
        with pytest.raises(AttributeError):
            service._followed  # noqa: B018


def test_a_publisher_sends_ahead(hub: HubProcess) -> None:
    with connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        publisher = link.publisher()
        acks = [publisher.send(b"%d" % number, topic="sync/ahead") for number in range(100)]
        publisher.flush()
        places = [ack.result(20).first for ack in acks]
        assert places == list(range(places[0], places[0] + 100))
        with link.follow(from_seq=places[0], topic="sync/ahead") as stream:
            assert next(stream).payload == b"0"
            assert stream.cursor > places[0]


def test_with_ends_when_all_is_published(hub: HubProcess) -> None:
    url = f"tube://{hub.doors['tube_tcp']}"
    with connect_sync(url) as link:
        publisher = link.publisher()
        acks = [publisher.send(b"%d" % number, topic="sync/with") for number in range(100)]
    places = [ack.result(0).first for ack in acks]
    assert places == list(range(places[0], places[0] + 100))


class Looking(AsyncIterator[int]):
    """A part of a client that can be looked at."""

    async def __anext__(self) -> int:
        raise StopAsyncIteration

    @property
    def here(self) -> str:
        return threading.current_thread().name

    def where(self) -> str:
        return self.here


class Stub:
    """A client of another kind: whatever has ``open``, ``close`` and ``__aexit__`` will do."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.name = "stub"

    async def open(self) -> None:
        self.calls.append("open")

    async def close(self) -> None:
        self.calls.append("close")

    async def __aexit__(self, *_: object) -> None:
        pass

    async def double(self, number: int, *, plus: int = 0) -> int:
        """Twice a number."""
        await asyncio.sleep(0)
        return 2 * number + plus

    async def fail(self) -> None:
        raise LostRangeError(1, 2, "for a reason")

    def plain(self, number: int) -> int:
        return number

    def where(self) -> str:
        """The thread that it is called in."""
        return threading.current_thread().name

    @property
    def here(self) -> str:
        return self.where()

    @property
    def failing(self) -> str:
        raise LostRangeError(1, 2, "a property's reason")

    def part(self) -> Looking:
        return Looking()

    async def count(self, most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number

    async def nothing(self) -> AsyncIterator[int]:
        await self.wait_for_ever()
        yield 0

    async def wait_for_ever(self) -> None:
        self.calls.append("waiting")
        await asyncio.Event().wait()

    async def called_back(self, function: Any) -> Any:
        return function()


def same(_client: Any, value: Any) -> Any:
    return value


class SyncLooking(SyncIterator[int]):
    here = Property[str]()
    where = Making(Looking.where, same)


class SyncStub(SyncReceiver[Any, Any]):
    calls = Property[list[str]]()
    name = Property[str]()
    here = Property[str]()
    failing = Property[str]()
    double = Blocking(Stub.double)
    fail = Blocking(Stub.fail)
    plain = Making(Stub.plain, same)
    where = Making(Stub.where, same)
    part = Making(Stub.part, SyncLooking)
    count = Making(Stub.count, SyncIterator[int])
    nothing = Making(Stub.nothing, SyncIterator[int])
    wait_for_ever = Blocking(Stub.wait_for_ever)
    called_back = Blocking(Stub.called_back)


def test_any_client_will_do() -> None:
    with SyncStub(Stub()) as client:
        assert client.double(4, plus=1) == 9
        assert client.double.__doc__ == "Twice a number."
        assert client.plain(3) == 3
        assert client.name == "stub"
        assert list(client.count(3)) == [0, 1, 2]
        with pytest.raises(LostRangeError, match="for a reason"):
            client.fail()
    assert client.calls == ["open", "close"]


class Leaving(Stub):
    """A client that has something to do when ``async with`` ends."""

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.calls.append(f"leave {error}")
        await self.close()
        if error is None:
            raise LostRangeError(1, 2, "left too late")


def test_with_ends_as_async_with_does() -> None:
    with pytest.raises(LostRangeError, match="left too late"), SyncStub(Leaving()) as client:
        pass
    assert client.calls == ["open", "leave None", "close", "close"]
    with pytest.raises(ValueError, match="of its own"), SyncStub(Leaving()) as client:
        raise ValueError("of its own")
    assert client.calls == ["open", "leave of its own", "close", "close"]
    with SyncStub(Leaving()) as client:
        client.close()
    assert client.calls == ["open", "close"]
    assert threads() == 0


def test_without_an_event_loop_opening_fails_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_loop() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    client = SyncStub(Stub())
    with monkeypatch.context() as patch:
        patch.setattr(uvloop, "new_event_loop", no_loop)
        opening = ThreadPoolExecutor(1).submit(client.open)
        with pytest.raises(OSError, match="Too many open files"):
            opening.result(30)
        starting = ThreadPoolExecutor(1).submit(Hub().start)
        with pytest.raises(OSError, match="Too many open files"):
            starting.result(30)
    with client:
        assert client.double(2) == 4


def test_a_thread_that_comes_while_another_opens_the_client_waits_for_that() -> None:
    class Opening(Stub):
        async def open(self) -> None:
            opening.set()
            await asyncio.to_thread(answer.wait, 30)
            await super().open()

    opening, answer = threading.Event(), threading.Event()
    client = SyncStub(Opening())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(client.double, 1)
        assert opening.wait(30)
        second = threads.submit(client.double, 2)
        with pytest.raises(TimeoutError):
            second.result(0.2)
        answer.set()
        assert (first.result(30), second.result(30)) == (2, 4)
    client.close()
    assert client.calls == ["open", "close"]


def test_what_does_not_wait_is_evaluated_where_nothing_changes_meanwhile() -> None:
    client = SyncStub(Stub())
    mine = threading.current_thread().name
    assert client.here == mine, "there is no other thread yet"
    with client:
        assert (client.here, client.where()) == ("headrace-client",) * 2
        assert client.where.__doc__ == "The thread that it is called in."
        part = client.part()
        assert (part.here, part.where()) == ("headrace-client",) * 2
        with pytest.raises(LostRangeError, match="a property's reason"):
            client.failing  # noqa: B018
        assert client.called_back(lambda: (client.here, client.where())) == ("headrace-client",) * 2
    assert client.here == mine


def test_what_is_at_hand_is_taken_without_asking_the_loop() -> None:
    class Handing(Stub):
        def at_hand(self) -> str:
            return self.where()

    with SyncStub(Handing()) as client:
        assert client.at_hand() == threading.current_thread().name


def test_offers_are_looked_at_while_they_come(hub: HubProcess) -> None:
    services = [f"sync/offers/{number}" for number in range(300)]
    with connect_sync(hub.url("spp")) as publisher, connect_sync(hub.url("spp")) as spp:

        def publish() -> None:
            for service in services:
                publisher.publish({}, topic=service)

        publishing = threading.Thread(target=publish)
        publishing.start()
        deadline = time.monotonic() + 30
        while not set(services) <= set(spp.offered) and time.monotonic() < deadline:
            spp.offers()
        publishing.join()
        assert [service for service in spp.offered if service in services] == services


def test_what_still_waits_when_it_is_closed_is_told() -> None:
    told: list[BaseException] = []

    def wait() -> None:
        try:
            client.wait_for_ever()
        except ClosedError as error:
            told.append(error)

    with SyncStub(Stub()) as client:
        waiter = threading.Thread(target=wait)
        waiter.start()
        while "waiting" not in client.calls:
            client.double(1)
    waiter.join()
    assert len(told) == 1


def test_who_waits_for_one_stream_keeps_nobody_from_another() -> None:
    counted: list[int] = []
    with SyncStub(Stub()) as client:
        waiter = threading.Thread(target=lambda: list(client.nothing()))
        waiter.start()
        while "waiting" not in client.calls:
            client.double(1)
        counter = threading.Thread(target=lambda: counted.extend(client.count(3)))
        counter.start()
        counter.join(30)
        assert counted == [0, 1, 2]
    waiter.join()
    counter.join()


def test_a_callback_cannot_wait_for_its_own_thread() -> None:
    with SyncStub(Stub()) as client, pytest.raises(UsageError, match="cannot wait for the client"):
        client.called_back(lambda: client.double(1))


def test_lost_messages_are_raised_in_their_place() -> None:
    lost: list[LostRangeError] = []

    class Losing(Stub):
        def __init__(self) -> None:
            super().__init__()
            self._left: list[int | LostRangeError] = [1, LostRangeError(2, 3, "gone"), 4]

        def at_hand(self) -> None:
            return None

        def __aiter__(self) -> Losing:
            return self

        async def __anext__(self) -> int:
            if not self._left:
                raise StopAsyncIteration
            item = self._left.pop(0)
            if isinstance(item, LostRangeError):
                raise item
            return item

    taken = []
    with SyncStub(Losing()) as client:
        while len(taken) < 2:
            try:
                taken.append(next(client))
            except LostRangeError as error:
                lost.append(error)
        assert list(client) == []
    assert taken == [1, 4]
    assert [(error.first, error.last) for error in lost] == [(2, 3)]
