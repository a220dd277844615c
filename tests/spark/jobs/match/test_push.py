"""The fleet's connections against a dispatcher that can be made to fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.spark.hubs import until
from tests.spark.jobs.match.dispatcher import Dispatcher

from headrace.config import Address
from headrace.errors import UnreachableError
from headrace.spark.jobs.match.push import DispatcherConnection, Lifeline
from headrace.wire.attribute.messages import MatcherPush, serialize


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    with closing(Dispatcher()) as made:
        yield made


def test_what_is_settled_was_taken(dispatcher: Dispatcher) -> None:
    push = serialize(MatcherPush(bytes(12), b"payload", bytes(20)))
    with closing(DispatcherConnection(dispatcher.address, 5.0)) as connection:
        for count in range(100, 2001, 100):
            connection.send(push * 100)
            connection.settle()
            assert len(dispatcher.pushes) == count
        dispatcher.answers = False
        with pytest.raises(UnreachableError, match="it closed the connection"):
            connection.settle()


def test_the_first_dispatcher_that_answers_is_used(dispatcher: Dispatcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = Address(*gone.getsockname())
    lifeline = Lifeline(7, 1.0)
    with closing(lifeline):
        assert lifeline.open([nobody, dispatcher.address]) == dispatcher.address
        assert dispatcher.marks == [(1, 7)]
    with pytest.raises(
        UnreachableError, match=r"no dispatcher answers there .*; name one with --param dispatchers=HOST:PORT"
    ):
        Lifeline(7, 1.0).open([nobody])


def test_a_lost_lifeline_is_replaced_between_micro_batches_only(dispatcher: Dispatcher) -> None:
    lifeline = Lifeline(7, 5.0)
    lifeline.open([dispatcher.address])
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
    lifeline.open([dispatcher.address])
    dispatcher.close()
    with closing(lifeline), pytest.raises(UnreachableError):
        lifeline.begin()
