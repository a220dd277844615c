"""A long turn of the event loop is counted, and its cause named."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator
from time import thread_time
from types import FrameType

import pytest
from tests.net.raw import until

from headrace.hub.counters import Counters
from headrace.net.server.status import loop_watch
from headrace.net.server.status.loop_watch import SLOW_SECONDS, LoopWatch, told


@pytest.fixture
async def watch() -> AsyncIterator[LoopWatch]:
    made = LoopWatch(Counters())
    made.start()
    yield made
    made.stop()


def hold_the_loop_up(watch: LoopWatch) -> None:
    """Compute until the watcher has seen that the loop does."""
    begun = thread_time()
    while not watch._cause or thread_time() - begun < 2 * SLOW_SECONDS:
        sum(range(10_000))


async def test_a_long_turn_is_counted_and_its_cause_is_logged(
    watch: LoopWatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.get_running_loop().call_soon(hold_the_loop_up, watch)
        await until(lambda: watch.facts()["slow_turns"] == 1)
    facts = watch.facts()
    last = facts["last"]
    assert isinstance(last, dict)
    assert "hold_the_loop_up" in last["cause"]
    assert last["seconds"] >= SLOW_SECONDS
    assert facts["slow_lately"]
    assert facts["longest_seconds"] == last["seconds"]
    (line,) = caplog.messages
    assert "hold_the_loop_up" in line
    assert "status/test_loop_watch.py" in line
    assert "runners.py" not in line  # That the loop runs explains nothing.


async def test_the_loop_itself_is_no_cause() -> None:
    # Where its thread is when another process has the processor.
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != asyncio.runners.__file__:
        frame = frame.f_back
    assert frame is not None
    assert told(frame) == ""


async def test_short_turns_are_nothing_to_tell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # However busy the machine is that runs this.
    monkeypatch.setattr(loop_watch, "SLOW_SECONDS", 30.0)
    watch = LoopWatch(Counters())
    watch.start()
    beats: list[float] = []
    plainly = watch._report
    monkeypatch.setattr(watch, "_report", lambda *taken: (beats.append(taken[0]), plainly(*taken)))
    for _ in range(20):
        await asyncio.sleep(0.005)
    watch.stop()
    assert beats == []
    assert watch.facts() == {"slow_turns": 0, "longest_seconds": 0.0, "slow_lately": False, "last": {}}


async def test_nothing_is_left_when_it_stops(watch: LoopWatch) -> None:
    assert "headrace-watch" in {thread.name for thread in threading.enumerate()}
    watch.stop()
    await until(lambda: "headrace-watch" not in {thread.name for thread in threading.enumerate()})
