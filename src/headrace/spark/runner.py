"""Run jobs: start them in one Spark session, watch them, tell how far they are, stop in good order.

A pipeline ends when it is told to (:meth:`Pipeline.stop`), when all its jobs are done (``available_now``, and those
that have an end), or when one fails: then the others are stopped, and the failure is the pipeline's. Whatever ends it,
its jobs go on from their checkpoints when they are started again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, PeerError, UsageError
from headrace.spark.jobs.job import Job, Run, Started, find, parameters_of
from headrace.spark.links import close_links, link
from headrace.spark.options import Access
from headrace.spark.progress import progress_of
from headrace.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("headrace")

REPORT: Final = "pipeline"
"""The name of the report that the hub shows in its status."""

WITHOUT_HUB: Final = frozenset({"decode"})
"""Jobs that need none."""

LOOK_SECONDS: Final = 0.5
FIRST_SECONDS: Final = 12.0
"""How long a job may have the machine to itself for its first micro-batch."""
STOP_SECONDS: Final = 6.0
"""How long a micro-batch under way may take to end when the pipeline is stopped; it is run again otherwise."""

_OURS: Final = re.compile(r"^headrace\.errors\.(\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to run."""

    jobs: Sequence[str]
    access: Access
    master: str = "local[*]"
    params: Mapping[str, str] = field(default_factory=dict)
    available_now: bool = False
    root: str = "headrace-data/pipeline"
    """Where jobs write that are not told: each in the folder of its name."""
    memory: str = "1g"
    ui: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Job] = field(default_factory=dict)
    """Jobs by their names that do not come with Headrace."""


Tell = Callable[[Mapping[str, object]], None]


class Pipeline:
    """Jobs that run together; ``tell`` is told what happens, a fact at a time."""

    def __init__(self, asked: Asked, tell: Tell = lambda _: None) -> None:
        self._asked = asked
        self._tell = tell
        self._stopping = threading.Event()
        self._runs: dict[str, Run] = {}
        self._started: dict[str, Started] = {}
        self._done: dict[str, Mapping[str, object]] = {}
        self._progress: dict[str, dict[str, object]] = {}
        """How far each job was when it was last looked at; what is reported comes from here, not from Spark."""
        self._newest: int | None = None
        self._state = "starting"
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._ui: str | None = None
        # What is asked for wrongly is known before a JVM is started.
        self._jobs: dict[str, Job] = {name: asked.own.get(name) or find(name) for name in asked.jobs}
        self._told = parameters_of(self._jobs, asked.params)

    def stop(self) -> None:
        """Have :meth:`run` come to its end; may be called from a signal handler."""
        self._stopping.set()

    @property
    def starting(self) -> bool:
        """Whether Spark is still being started, so that nothing is under way."""
        return self._state == "starting"

    def run(self) -> None:
        """Run until it is over; a ``KeyboardInterrupt`` is an end too, if it was told to stop."""
        try:
            self._start_and_run()
        except KeyboardInterrupt:
            if not self._stopping.is_set():
                raise
        self._tell({"event": "stopped", "jobs": list(self._asked.jobs)})

    def _start_and_run(self) -> None:
        asked = self._asked
        if any(name not in WITHOUT_HUB for name in asked.jobs):
            # A hub that is not there is told at once, not after a JVM has started.
            with link(asked.access, at_once=True):
                pass
        self._tell({"event": "starting", "jobs": list(asked.jobs), "master": asked.master})
        with self._reporting(), _hushed("py4j.clientserver"):
            with _own_interrupts():
                spark = session(
                    asked.master,
                    app=f"headrace {' '.join(asked.jobs)}",
                    memory=asked.memory,
                    ui=asked.ui,
                    # Our jobs keep no state in Spark: what they keep, they keep themselves.
                    stateless=True,
                    **{"spark.scheduler.mode": "FAIR", **asked.conf},
                )
            try:
                with _as_sentences("the pipeline"):
                    self._run(spark)
            finally:
                self._state = "stopping"
                if self._stopping.is_set():
                    self._tell({"event": "stopping", "jobs": list(asked.jobs)})
                self._stop_queries()
                self._stop_spark(spark)
                close_links()
                self._state = "stopped"
                self._progress = {
                    name: {**facts, "state": "stopped"} for name, facts in self._progress.items()
                }

    def facts(self) -> dict[str, object]:
        """What the pipeline is doing."""
        return {
            "state": self._state,
            "pid": os.getpid(),
            "since": self._since,
            "master": self._asked.master,
            "ui": self._ui,
            "jobs": {**self._progress, **self._done},
        }

    def _run(self, spark: SparkSession) -> None:
        from headrace.spark.datasource import register

        register(spark)
        self._ui = spark.sparkContext.uiWebUrl
        self._state = "running"
        self._tell({"event": "started", "jobs": list(self._asked.jobs), "ui": self._ui})
        for name, job in self._jobs.items():
            if self._stopping.is_set():
                return
            self._start(spark, name, job)
            self._let_begin(name)
        while not self._stopping.wait(LOOK_SECONDS):
            self._look()
            if not any(each.query.isActive for each in self._started.values()):
                break
        self._look()

    def _start(self, spark: SparkSession, name: str, job: Job) -> None:
        # A pool each: a long micro-batch of one job does not keep the others waiting.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        folder = job.PARAMETERS["path"].default or name
        told = {"path": f"{self._asked.root}/{folder}", **self._told[name]}
        run = Run(spark, name, self._asked.access, told, job.PARAMETERS, self._asked.available_now)
        self._runs[name] = run
        with _plainly(name):
            result = job.start(run)
        if isinstance(result, Started):
            self._started[name] = result
        else:
            self._done[name] = {"job": name, "state": "done", **result}
            self._tell({"event": "done", **self._done[name]})

    def _let_begin(self, name: str) -> None:
        """Let a job's first micro-batch end before the next job begins, so that there is soon something to see.

        Where there are no messages there is nothing to wait for.
        """
        deadline = monotonic() + FIRST_SECONDS
        started = self._started.get(name)
        goes_on = started is not None and not self._asked.available_now and bool(self._newest)
        while started is not None and goes_on and monotonic() < deadline:
            if started.query.lastProgress is not None or self._stopping.wait(0.1):
                break
        self._look()

    def _look(self) -> None:
        """See how the queries are; tell of each new micro-batch; raise what one failed with."""
        for name, started in self._started.items():
            facts, before = progress_of(name, started, self._newest), self._progress.get(name, {})
            self._progress = {**self._progress, name: facts}
            if facts.get("batch") is not None and facts["batch"] != before.get("batch"):
                self._tell({"event": "progress", **facts})
            error = None if started.query.isActive else started.query.exception()
            if error is not None:
                failure = self._runs[name].failure
                raise _failure(name, failure, str(error if failure is None else _told(failure))) from failure

    def _stop_queries(self) -> None:
        """Let what is under way end, for a while; then stop."""
        deadline = monotonic() + STOP_SECONDS
        for started in self._started.values():
            query = started.query
            with contextlib.suppress(Exception):
                while query.isActive and query.status["isTriggerActive"] and monotonic() < deadline:
                    threading.Event().wait(0.05)
                query.stop()

    def _stop_spark(self, spark: SparkSession) -> None:
        with contextlib.suppress(Exception):
            spark.stop()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Tell the hub, each second, what is going on, in a thread of its own: a hub that is away holds up nothing."""
        ended = threading.Event()

        def report() -> None:
            # Its own connection, which gives up soon.
            access = replace(self._asked.access, patience=2.0)
            while True:
                over = ended.wait(1.0)
                with contextlib.suppress(HeadraceError), link(access, at_once=True) as client:
                    self._newest = client.head().message
                    client.report(REPORT, self.facts())
                if over:
                    return

        thread = threading.Thread(target=report, name="headrace-report", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(STOP_SECONDS)


@contextlib.contextmanager
def _hushed(name: str) -> Iterator[None]:
    """Keep a library from printing a page for each micro-batch that fails or is cut off: we say what it was."""
    library = logging.getLogger(name)
    before = library.level
    library.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        library.setLevel(before)


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep what Ctrl-C does: a Spark context has its own idea, which is to cut off whatever is under way."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _failure(name: str, failure: BaseException | None, told: str) -> HeadraceError:
    """What a query failed with, as a sentence: ours if it is in there somewhere, else Spark's first line."""
    if isinstance(failure, HeadraceError):
        return _named(name, failure)
    found = _OURS.findall(told)
    if found:
        kind, sentence = found[-1]
        if kind == "LostRangeError":
            sentence += (
                f". To go on behind them, once: headrace pipeline run {name} --param fail_on_data_loss=false"
            )
        error = UsageError if kind in ("UsageError", "ConfigError") else PeerError
        return error(f"{name}: {sentence}")
    first = next((line for line in told.splitlines() if line.strip()), "the query failed")
    return PeerError(f"{name}: {first}")


def _told(failure: BaseException) -> str:
    """A failure as text; of Python's own kinds the kind says more than the words do (``KeyError: 'x'``)."""
    kind = type(failure)
    words = str(failure)
    return f"{kind.__name__}: {words}" if kind.__module__ == "builtins" else words


def _named(name: str, failure: HeadraceError) -> HeadraceError:
    error = UsageError if isinstance(failure, UsageError) else PeerError
    return error(f"{name}: {failure}")


@contextlib.contextmanager
def _plainly(name: str) -> Iterator[None]:
    """Have errors of a job's start say which job."""
    try:
        with _as_sentences(name):
            yield
    except HeadraceError as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise _named(name, error) from error


@contextlib.contextmanager
def _as_sentences(name: str) -> Iterator[None]:
    """Have what Spark raises, or its JVM's end, be told as a sentence of ours."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise _failure(name, None, str(error)) from error
