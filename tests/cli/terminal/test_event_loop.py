"""Ctrl-C ends a command's event loop between two of its callbacks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.cli.terminal.event_loop import run_until_done


@pytest.fixture(autouse=True)
def _as_at_the_start() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_work_is_done() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert run_until_done(work) == 7


def test_it_is_cancelled_between_callbacks_and_may_clean_up() -> None:
    happened = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        press_ctrl_c()
        happened.append(task.cancelling())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            happened.append(task.cancelling())
            await asyncio.sleep(0)
            happened.append("cleaned up")
            raise

    with pytest.raises(KeyboardInterrupt):
        run_until_done(work)
    assert happened == [0, 1, "cleaned up"]


def test_a_second_one_interrupts_what_does_not_end() -> None:
    async def work() -> None:
        press_ctrl_c()
        press_ctrl_c()  # The loop has not had a turn, as if this were a write that waits.
        pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        run_until_done(work)


def test_what_cancels_itself_was_not_interrupted() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_done(work)


def test_a_command_in_the_background_of_a_script_ignores_it_still() -> None:
    program = """
import signal
from headrace.cli.terminal.event_loop import run_until_done
signal.signal(signal.SIGINT, signal.SIG_IGN)
async def work():
    signal.raise_signal(signal.SIGINT)
    return "done"
print(run_until_done(work))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
