"""Settings and rules for every test.

Hypothesis has two profiles. The usual one draws the same examples in every run, so that a failure is due to the change
at hand; ``HEADRACE_SOAK=1`` draws new ones, and many. Tests leave ``max_examples`` to the profile.

Two rules hold for every test. An error that asyncio can only log (a task that failed and was never awaited, a callback
that raised) fails the test during which it occurs. A coroutine test that leaves a task running fails.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests import jvm

from headrace.net.server.machine import log_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = os.environ.get("HEADRACE_SOAK", "0") not in ("", "0")

# Speed differs from machine to machine: there are no deadlines, and slow generation is no failure.
settings.register_profile(
    "usual",
    max_examples=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("usual"), max_examples=3000, derandomize=False)
settings.load_profile("soak" if SOAK else "usual")

_MEMORY = "/dev/shm"
_ROOMY_BYTES = 2 << 30
"""Far more than the files of all running tests take."""


def pytest_configure() -> None:
    """Keep temporary files in memory if there is room: on a disk, tests wait for every sync.

    ``HEADRACE_SOAK=1`` leaves them on the disk. ``--basetemp`` and ``PYTEST_DEBUG_TEMPROOT`` win.
    """
    # Whoever runs the tests may have saved contexts of their own.
    os.environ["HEADRACE_CONTEXT"] = ""
    if not SOAK and Path(_MEMORY).is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOMY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by the fixtures they use, before ``-m`` selects; then order the selected ones."""
    for item in items:
        for fixture, marker in _MARKED_BY_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
        if item.nodeid.startswith(_THOROUGH):
            item.add_marker(pytest.mark.thorough)
    yield
    items[:] = _dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection: they stay to the end."""
    gc.collect()
    gc.freeze()


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests for xdist, which gives each worker an equal part of the list and lets idle ones take others' ends.

    Each part begins with its slow tests, so that only short ones are left for the end. The tests that share the Spark
    session are in the first part, so that few JVMs start. Slow tests of a module stay together, as do their fixtures.
    """
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    long: dict[str, list[pytest.Item]] = {}
    short = []
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            parts[0].append(item)
        elif item.get_closest_marker("slow"):
            long.setdefault(item.nodeid.partition("::")[0], []).append(item)
        else:
            short.append(item)
    others = parts[1:] if parts[0] and workers > 1 else parts
    for module in sorted(long.values(), key=len, reverse=True):
        min(others, key=len).extend(module)
    at = 0
    for number, part in enumerate(parts, 1):
        room = max(len(items) * number // workers - len(items) * (number - 1) // workers - len(part), 0)
        part += short[at : at + room]
        at += room
    return [item for part in parts for item in part] + short[at:]


_MARKED_BY_FIXTURE = {"spark": pytest.mark.spark, "browser": pytest.mark.browser}

_THOROUGH = tuple(
    f"tests/{place}"
    for place in (
        "attacks/",
        "cli/operate/log/test_verify_and_repair.py",
        "cli/terminal/test_completion.py",
        "cli/use/test_pub_sub.py",
        "cli/use/test_replay.py",
        "cli/run/test_serve.py",
        "cli/use/test_services.py",
        "cli/use/test_sub_where.py",
        "cli/use/test_tail.py",
        "deploy/",
        "docs/test_examples.py",
        "docs/test_walks.py",
        "faults/",
        "fuzz/",
        "hub/test_chain.py",
        "log/damage/",
        "log/test_damage.py",
        "log/sealed/test_sealing.py",
        "net/cluster/test_hanging_disk.py",
        "net/cluster/test_node.py",
        "simulation/",
        "system/",
    )
)
"""Where tests are many seeds, every byte of a file, or processes: each is short, together they take a minute."""

_TURNS_TO_FINISH = 10
"""Turns of the event loop that a cancelled task may take to end."""


@pytest.fixture(scope="session", autouse=True)
def _plain_environment() -> Iterator[None]:
    """Hide the shell's ``HEADRACE_`` settings from the hubs under test, and start JVMs as :mod:`tests.jvm` says."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("HEADRACE_")]:
            if variable != "HEADRACE_SOAK":
                patch.delenv(variable)
        if not SOAK:
            for variable, value in jvm.variables().items():
                patch.setenv(variable, value)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests of a process: a JVM takes seconds to start and a gigabyte of memory."""
    from headrace.spark import session

    with pytest.MonkeyPatch.context() as patch:
        # Spark's Python workers import what tests pickle, wherever the first test of the session has changed to.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        made = session("local[2]", app="headrace tests", memory="1g")
    yield made
    made.stop()


def pytest_unconfigure() -> None:
    """Undo every ``gc.freeze``, here and in Spark tasks that ran here: extensions report frozen objects as leaked."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_fails_unseen(request: pytest.FixtureRequest) -> Iterator[None]:
    # Every event loop without an exception handler of its own, in any thread, logs here.
    unseen = _Errors()
    logger = logging.getLogger("asyncio")
    logger.addHandler(unseen)
    try:
        if request.node.get_closest_marker("asyncio"):
            request.getfixturevalue("_nothing_runs_on")
        yield
        # A dropped task reports its error when it is collected; what a test made is still in a young generation.
        gc.collect(1)
    finally:
        logger.removeHandler(unseen)
    if unseen.lines:
        pytest.fail("asyncio logged errors that nothing awaited:\n" + "\n".join(unseen.lines), pytrace=False)


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


@pytest.fixture(autouse=True, scope="session")
def patient_loop() -> None:
    """Let hubs in tests wait for their appends: on a busy machine the writing thread may not get the processor in time.

    A test whose disk hangs sets the patience that hubs have.
    """
    log_disk.PATIENCE = 30.0  # type: ignore[misc]
