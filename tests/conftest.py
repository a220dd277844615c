"""What every test stands on: how hard hypothesis tries, and that nothing fails behind a test's back.

Two profiles. The usual one draws the same examples in every run, so that a change is judged by what it
changed; ``HEADRACE_SOAK=1`` draws new ones, and many. Tests leave ``max_examples`` to them.

Two rules hold for every test without its asking. An error that asyncio could only log (a task that failed
with nobody awaiting it, a callback that raised) fails the test during which it came. A task that a
coroutine test leaves running fails that test.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests import jvm

SOAK = os.environ.get("HEADRACE_SOAK", "0") not in ("", "0")

# Speed differs from machine to machine: no deadlines, and slow generation is no failure.
settings.register_profile(
    "usual",
    max_examples=60,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("usual"), max_examples=3000, derandomize=False)
settings.load_profile("soak" if SOAK else "usual")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first: what is left for the end is short, and no process waits long for another."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


_TURNS_TO_FINISH = 10
"""Turns of the loop in which a task that was told to stop may do so."""


@pytest.fixture(scope="session", autouse=True)
def _plain_environment() -> Iterator[None]:
    """No setting of the shell that runs the tests reaches the hub under test; JVMs start as is best for tests."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("HEADRACE_")]:
            if variable != "HEADRACE_SOAK":
                patch.delenv(variable)
        if not SOAK:
            for variable, value in jvm.variables().items():
                patch.setenv(variable, value)
        yield


def pytest_unconfigure() -> None:
    """Let go of what tasks of Spark's that were run here had frozen: extensions report it as leaked."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_fails_unseen(request: pytest.FixtureRequest) -> Iterator[None]:
    # A loop without a handler of its own, asyncio's or uvloop's, in this thread or another, logs here.
    unseen = _Errors()
    logger = logging.getLogger("asyncio")
    logger.addHandler(unseen)
    try:
        if request.node.get_closest_marker("asyncio"):
            request.getfixturevalue("_nothing_runs_on")
        yield
        # Nobody asks a dropped task for its error until it is collected; what a test made is still young.
        gc.collect(1)
    finally:
        logger.removeHandler(unseen)
    if unseen.lines:
        pytest.fail("asyncio reported what nobody awaited:\n" + "\n".join(unseen.lines), pytrace=False)


@pytest.fixture
async def _nothing_runs_on() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(_TURNS_TO_FINISH):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0)
    some = "\n".join(sorted(repr(task) for task in left)[:5])
    pytest.fail(f"{len(left)} tasks left running, such as\n{some}", pytrace=False)


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.setFormatter(logging.Formatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
