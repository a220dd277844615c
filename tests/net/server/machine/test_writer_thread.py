"""The thread that appends: in order, waited for a moment, and never in the way of a process that ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.net.server.machine.writer_thread import WriterThread


@pytest.fixture
def writer() -> Iterator[WriterThread]:
    made = WriterThread()
    yield made
    made.shutdown()


def test_work_is_done_in_order_and_waited_for(writer: WriterThread) -> None:
    done: list[int] = []
    futures = [writer.submit(lambda place=place: done.append(place)) for place in range(1000)]  # type: ignore[misc]
    assert writer.wait(futures[-1], 60)
    assert done == list(range(1000))


def test_what_fails_is_the_waiters(writer: WriterThread) -> None:
    future = writer.submit(lambda: 1 // 0)
    assert writer.wait(future, 60)
    assert isinstance(future.exception(), ZeroDivisionError)
    assert writer.submit(lambda: 7).result(60) == 7


def test_nobody_waits_longer_than_it_said(writer: WriterThread) -> None:
    answer = threading.Event()
    slow, next_one = writer.submit(answer.wait), writer.submit(lambda: 7)
    assert not writer.wait(slow, 0.01)
    assert not writer.wait(next_one, 0)
    answer.set()
    assert writer.wait(next_one, 60)
    assert slow.result() is True


def test_signals_that_nobody_waited_for_are_passed_over(writer: WriterThread) -> None:
    """More than a pipe holds: the thread goes on, and so does the next who waits."""
    for _ in range(3):
        futures = [writer.submit(int) for _ in range(40_000)]
        futures[-1].result(60)
    answer = threading.Event()
    slow = writer.submit(answer.wait)
    assert not writer.wait(slow, 0.01)
    answer.set()
    assert writer.wait(slow, 60)


def test_it_takes_no_more_once_it_was_shut_down() -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for used in (False, True):
        writer = WriterThread()
        kept = writer.submit(lambda: 7) if used else None
        writer.shutdown()
        writer.shutdown()
        assert kept is None or kept.result(0) == 7
        with pytest.raises(RuntimeError):
            writer.submit(int)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
