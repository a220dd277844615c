"""The fleet's connections against a dispatcher that can be made to fail."""

from __future__ import annotations

import logging
import re
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from tempfile import gettempdir

import pytest
from tests.spark.hubs import until
from tests.spark.jobs.match.dispatcher import Dispatcher

from headrace.config import Address
from headrace.errors import StorageError, UnreachableError
from headrace.spark.jobs.match import dispatcher_connection as module
from headrace.spark.jobs.match.dispatcher_connection import (
    DispatcherConnection,
    DispatcherDoor,
    RepeatablePush,
)
from headrace.spark.jobs.match.lifeline import Lifeline
from headrace.wire.attribute.messages import MatcherPush, serialize

PUSH = serialize(MatcherPush(bytes(12), b"payload", bytes(20)))


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    with closing(Dispatcher()) as made:
        yield made


def test_what_is_settled_was_taken(dispatcher: Dispatcher) -> None:
    push = serialize(MatcherPush(bytes(12), b"payload", bytes(20)))
    with closing(DispatcherConnection(dispatcher.door, 5.0)) as connection:
        for count in range(100, 2001, 100):
            connection.send(push * 100)
            connection.settle()
            assert len(dispatcher.pushes) == count
        dispatcher.answers = False
        with pytest.raises(UnreachableError, match="it closed the connection"):
            connection.settle()


def test_the_first_dispatcher_that_answers_is_used(dispatcher: Dispatcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = DispatcherDoor(Address(*gone.getsockname()))
    lifeline = Lifeline(7, 1.0)
    with closing(lifeline):
        assert lifeline.open([nobody, dispatcher.door]) == dispatcher.door
        assert dispatcher.marks == [(1, 7)]
    with pytest.raises(
        UnreachableError, match=r"no dispatcher answers there .*; name one with --param dispatchers=HOST:PORT"
    ):
        Lifeline(7, 1.0).open([nobody])


def test_a_lost_lifeline_is_replaced_between_micro_batches_only(dispatcher: Dispatcher) -> None:
    lifeline = Lifeline(7, 5.0)
    lifeline.open([dispatcher.door])
    over = threading.Event()
    alive = True
    lifeline.watch(lambda: alive, over.set)
    lifeline.begin()
    dispatcher.cut()
    lifeline.done(9)
    # Whether or not the mark still went out: there is another connection, which begins behind the micro-batch.
    lifeline.begin()
    lifeline.done(12)
    until(lambda: dispatcher.marks[-1] == (2, 12))
    assert dispatcher.marks == [(1, 7), (2, 9), (2, 12)]
    alive = False
    assert over.wait(10.0)
    lifeline.close()


def test_a_dispatcher_that_stays_away_ends_it(dispatcher: Dispatcher) -> None:
    lifeline = Lifeline(7, 0.5)
    lifeline.open([dispatcher.door])
    dispatcher.close()
    with closing(lifeline), pytest.raises(UnreachableError):
        lifeline.begin()


def test_pushes_begin_anew_on_another_connection(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is lost: all that was pushed before comes again, first, and then the rest."""
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)
    pushes = [MatcherPush(number.to_bytes(12), b"payload", bytes(20)) for number in range(200)]
    with closing(RepeatablePush(dispatcher.door, 5.0, answers=True)) as push:
        for number, each in enumerate(pushes):
            push.send(serialize(each))
            if number in (50, 120):
                until(lambda number=number: pushes[number] in dispatcher.pushes)  # type: ignore[misc]
                dispatcher.cut()
                dispatcher.pushes.clear()
        push.finish()
    assert dispatcher.pushes == pushes


def test_a_push_that_finds_nobody_for_too_long_fails(dispatcher: Dispatcher) -> None:
    with closing(RepeatablePush(dispatcher.door, 0.3, answers=True)) as push:
        push.send(PUSH)
        dispatcher.close()
        with pytest.raises(UnreachableError):
            push.finish()


@pytest.mark.parametrize("room", [0, 5000])
def test_a_full_disk_is_told_by_where_it_is(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Whether the disk is full at once, or when what was kept is to be pushed again."""
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)

    def push_and_lose_connections(push: RepeatablePush) -> None:
        for _ in range(100):
            push.send(PUSH * 100)
            dispatcher.cut()

    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with closing(RepeatablePush(dispatcher.door, 5.0, answers=True)) as push:
            told = rf"a task keeps what it pushed in {re.escape(gettempdir())}, .*File too large"
            with pytest.raises(StorageError, match=told):
                push_and_lose_connections(push)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


# Dispatchers that never answer heartbeats, as the original


@pytest.fixture
def silent(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    dispatcher.silent = True
    return dispatcher


def test_a_dispatcher_that_never_answers_is_used_and_not_dropped(
    silent: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    lifeline = Lifeline(7, 5.0)
    with closing(lifeline), caplog.at_level(logging.WARNING):
        lifeline.open([silent.door])
        assert lifeline.answers is False
        for place in (9, 12):
            lifeline.begin()
            lifeline.done(place)
        lifeline.begin()
        until(lambda: len(silent.marks) == 4)
    # The second connection is the one that is used; the first found out.
    assert silent.marks == [(1, 7), (2, 7), (2, 9), (2, 12)]
    assert "answers no heartbeats" in caplog.text


def test_one_that_answers_is_preferred_wherever_it_is_named(silent: Dispatcher) -> None:
    with closing(Dispatcher()) as answering, closing(Lifeline(7, 5.0)) as lifeline:
        assert lifeline.open([silent.door, answering.door]) == answering.door
        assert lifeline.answers is True


def test_a_task_ends_when_a_silent_dispatcher_has_read_everything(silent: Dispatcher) -> None:
    with closing(DispatcherConnection(silent.door, 5.0, answers=False)) as connection:
        for _ in range(20):
            connection.send(PUSH * 1000)
            connection.keep()
        connection.finish()
        assert len(silent.pushes) == 20_000


def test_a_silent_dispatcher_that_closes_too_early_has_not_taken_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = DispatcherConnection(
            DispatcherDoor(Address(*listening.getsockname())), 5.0, answers=False
        )
        with closing(connection), closing(listening.accept()[0]) as came:
            connection.send(PUSH * 10)
            connection.settle()
            came.close()
            with pytest.raises(UnreachableError, match="the dispatcher is lost"):
                connection.finish()


def test_a_silent_dispatcher_that_ends_the_connection_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = DispatcherConnection(
            DispatcherDoor(Address(*listening.getsockname())), 5.0, answers=False
        )
        with closing(connection), closing(listening.accept()[0]) as came:
            connection.settle()
            came.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            came.close()
            with pytest.raises(UnreachableError, match="the dispatcher is lost"):
                connection.settle()


def test_what_a_silent_dispatchers_machine_does_not_take_is_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.1)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        connection = DispatcherConnection(
            DispatcherDoor(Address(*listening.getsockname())), 0.1, answers=False
        )
        # More than its machine takes while it reads nothing, less than ours keeps.
        connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with closing(connection), closing(listening.accept()[0]) as came:
            connection.send(bytes(200_000))
            with pytest.raises(UnreachableError, match="it took nothing for 1 s"):
                connection.settle()
            reading = threading.Thread(target=lambda: [None for _ in iter(lambda: came.recv(65536), b"")])
            reading.start()
            connection.settle()
            connection.finish()
            connection.close()
            reading.join()


def test_a_silent_dispatcher_that_never_closes_is_trusted_with_what_its_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = DispatcherConnection(
            DispatcherDoor(Address(*listening.getsockname())), 5.0, answers=False
        )
        with closing(connection), closing(listening.accept()[0]):
            connection.send(PUSH)
            connection.finish()
