"""Run jobs: start them in one Spark session, supervise them, report their progress, stop in good order.

A pipeline ends by :meth:`Pipeline.stop`, when all its jobs are done (``available_now``, and jobs that have an end), or
with its Spark session. If one job fails, either that job is restarted (``restart``; see
:mod:`~headrace.spark.supervised_job`), or the others are stopped and the failure is the pipeline's. Jobs resume from
their checkpoints when they are started again.
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
from headrace.spark.failures import naming_job, translating_spark
from headrace.spark.hub_connections import close_links, link
from headrace.spark.jobs.job import Job, JobRun, find, parameters_of
from headrace.spark.options import HubOptions
from headrace.spark.runtime.session import CONNECT, session, trying_twice
from headrace.spark.source.planner_strategies import SETTING
from headrace.spark.supervised_job import SupervisedJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("headrace")

_MASTER: Final = re.compile(r"local($|\[)|(spark|k8s)://|yarn$")
_SIZE: Final = re.compile(r"\d+[kmgt]$", re.IGNORECASE)
"""A heap size as Java takes it."""

_STEPS: Final = ("tasks_done", "through")
"""Facts that show the progress of a job that has an end; others have micro-batches."""

REPORT: Final = "pipeline"
"""The name of the report that the hub shows in its status."""

WITHOUT_HUB: Final = frozenset({"decode"})
"""Jobs that need no hub."""

LOOK_SECONDS: Final = 0.5
FIRST_SECONDS: Final = 12.0
"""Seconds that a job has the machine to itself, for its first micro-batch."""
STOP_SECONDS: Final = 6.0
"""Seconds for a running micro-batch to end when the pipeline stops; otherwise it is repeated next time."""
JOIN_SECONDS: Final = 0.5
"""Seconds to wait for a job after Spark has stopped; one that waits for a hub takes longer."""


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """The jobs to run, and how."""

    jobs: Sequence[str]
    access: HubOptions
    master: str = "local[*]"
    params: Mapping[str, str] = field(default_factory=dict)
    available_now: bool = False
    restart: bool = False
    """Restart a job that fails and leave the others alone; else its failure ends the pipeline."""
    root: str = "headrace-data/pipeline"
    """The folder for jobs without a path, each in a folder of its name."""
    memory: str = "1g"
    ui: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Job] = field(default_factory=dict)
    """Jobs by name that do not come with Headrace."""


Tell = Callable[[Mapping[str, object]], None]


class Pipeline:
    """Jobs that run together; ``tell`` is called with each event."""

    def __init__(self, asked: PipelineRequest, tell: Tell = lambda _: None) -> None:
        self._asked = asked
        self._tell = tell
        self._stopping = threading.Event()
        self._over = threading.Event()
        """Set when no further job is to be started."""
        self._supervised: dict[str, SupervisedJob] = {}
        self._progress: dict[str, dict[str, object]] = {}
        """The last known progress of each job, for reports."""
        self._newest: int | None = None
        self._lost: Mapping[str, object] = {}
        """The messages each job has lost, as the hub counts them."""
        self._state = "starting"
        self._since = _now()
        self._until: str | None = None
        self._ui: str | None = None
        # Report mistakes before a JVM is started.
        self._jobs: dict[str, Job] = {name: asked.own.get(name) or find(name) for name in asked.jobs}
        self._given = parameters_of(self._jobs, asked.params)
        if not asked.restart:
            # With restarts, a missing file may appear later.
            for name in self._jobs:
                self._check(name)
        if asked.master.startswith(CONNECT):
            raise UsageError(
                f"master = {asked.master}: jobs need a Spark session with a JVM of its own, which a client of Spark "
                "Connect has not; run them where the server runs"
            )
        if not _MASTER.match(asked.master):
            raise UsageError(
                f"master = {asked.master}: expected local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
            )
        if not _SIZE.match(asked.memory):
            raise UsageError(f"memory = {asked.memory}: expected a size such as 800m or 2g")

    def _check(self, name: str) -> None:
        check: Callable[[Mapping[str, str], bool], None] | None = getattr(self._jobs[name], "check", None)
        if check is not None:
            with naming_job(name):
                check(self._params(name), self._asked.available_now)

    def _params(self, name: str) -> dict[str, str]:
        folder = self._jobs[name].PARAMETERS["path"].default or name
        return {"path": f"{self._asked.root}/{folder}", **self._given[name]}

    def stop(self) -> None:
        """End :meth:`run`; may be called from a signal handler."""
        self._stopping.set()

    @property
    def starting(self) -> bool:
        """Whether Spark is still being started, and no job is running."""
        return self._state == "starting"

    def run(self) -> None:
        """Run to the end; after :meth:`stop`, a ``KeyboardInterrupt`` is a normal end too."""
        try:
            self._start_and_run()
        except KeyboardInterrupt:
            if not self._stopping.is_set():
                raise
        self._tell({"event": "stopped", "jobs": list(self._asked.jobs)})

    def _start_and_run(self) -> None:
        asked = self._asked
        if any(name not in WITHOUT_HUB for name in asked.jobs):
            # Report a missing hub at once, not after a JVM has started.
            with link(asked.access, at_once=True):
                pass
        self._tell({"event": "starting", "jobs": list(asked.jobs), "master": asked.master})
        with self._reporting(), _hushed("py4j"):
            spark = self._session()
            last = "failed"
            try:
                with translating_spark("the pipeline"):
                    self._run(spark)
                last = "stopped"
            finally:
                self._state = "stopping"
                self._over.set()
                if self._stopping.is_set():
                    self._tell({"event": "stopping", "jobs": list(asked.jobs)})
                self._stop_queries()
                with contextlib.suppress(Exception):
                    spark.stop()
                for each in self._supervised.values():
                    each.join(JOIN_SECONDS)
                close_links()
                self._state, self._until = last, _now()
                self._progress = {name: _at_last(facts) for name, facts in self._progress.items()}

    def _session(self) -> SparkSession:
        asked = self._asked
        problem = f"Spark does not start on {asked.master}"
        try:
            with _own_interrupts(), translating_spark(problem, in_full=False):
                return session(
                    trying_twice(asked.master),
                    app=f"headrace {' '.join(asked.jobs)}",
                    memory=asked.memory,
                    ui=asked.ui,
                    # Our jobs keep their state themselves, none in Spark.
                    stateless=True,
                    **{
                        "spark.scheduler.mode": "FAIR",
                        SETTING: asked.master.startswith("local"),
                        **asked.conf,
                    },
                )
        except (HeadraceError, OSError) as error:
            if self._stopping.is_set():
                # The signal that stops us may have reached the JVM too, as with systemd.
                raise KeyboardInterrupt from error
            if isinstance(error, OSError):
                raise PeerError(f"{problem}: {error}") from error
            raise

    def facts(self) -> dict[str, object]:
        """Return the pipeline's status."""
        return {
            "state": self._state,
            "pid": os.getpid(),
            "since": self._since,
            "until": self._until,
            "master": self._asked.master,
            "ui": self._ui,
            "jobs": self._progress,
        }

    def _run(self, spark: SparkSession) -> None:
        from headrace.spark.datasource import register

        register(spark)
        _hush_queries(spark)
        self._ui = spark.sparkContext.uiWebUrl
        self._state = "running"
        self._tell({"event": "started", "jobs": list(self._asked.jobs), "ui": self._ui})
        for name in self._jobs:
            if self._stopping.is_set():
                return
            self._start(spark, name)
            self._let_begin(spark, name)
        while not self._stopping.wait(LOOK_SECONDS):
            if all(each.over for each in self._supervised.values()):
                break
            self._look(spark)
        if not (self._stopping.is_set() and _has_ended(spark)):
            # A Spark that was stopped with us has not failed.
            self._look(spark)

    def _start(self, spark: SparkSession, name: str) -> None:
        job, params = self._jobs[name], self._params(name)

        def ready() -> JobRun:
            # A pool for each job, so that a long micro-batch of one does not delay the others.
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
            # To find its Spark jobs outside of queries.
            spark.sparkContext.setJobGroup(name, job.ABOUT)
            return JobRun(spark, name, self._asked.access, params, job.PARAMETERS, self._asked.available_now)

        self._supervised[name] = SupervisedJob(
            name, job, ready, again=self._asked.restart, stopping=self._over
        )
        self._supervised[name].start()

    def _let_begin(self, spark: SparkSession, name: str) -> None:
        """Let a job's first micro-batch end before the next job begins, if there are messages: results show soon."""
        deadline = monotonic() + FIRST_SECONDS
        waits = not self._asked.available_now and bool(self._newest)
        while waits and monotonic() < deadline and not self._supervised[name].begun:
            if self._stopping.wait(0.1):
                break
            self._look(spark)
        self._look(spark)

    def _look(self, spark: SparkSession) -> None:
        """Check the jobs; report each new micro-batch and failure; raise what ends the pipeline."""
        if _has_ended(spark):
            raise PeerError("the Spark session has ended")
        for name, each in self._supervised.items():
            failure = each.failure
            happened = list(each.news())
            for news in happened:
                if news["event"] != "done":
                    self._tell(news)
            facts, before = each.facts(self._newest), self._progress.get(name, {})
            if name in self._lost:
                facts["lost"] = self._lost[name]
            self._progress = {**self._progress, name: facts}
            steps = _STEPS if "tasks" in facts else ("batch",)
            if any(facts.get(each) not in (None, before.get(each)) for each in steps):
                self._tell({"event": "progress", **facts})
            for news in happened:
                # The last event of a job comes after its last micro-batch.
                if news["event"] == "done":
                    self._tell(news)
            if failure is not None:
                raise failure

    def _stop_queries(self) -> None:
        """Let running micro-batches end, for a while; then stop."""
        deadline = monotonic() + STOP_SECONDS
        for each in self._supervised.values():
            if each.started is None:
                continue
            query = each.started.query
            with contextlib.suppress(Exception):
                while query.isActive and query.status["isTriggerActive"] and monotonic() < deadline:
                    threading.Event().wait(0.05)
                query.stop()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report the status to the hub each second, in a thread of its own: a missing hub delays nothing."""
        ended = threading.Event()

        def report() -> None:
            # A connection of its own that gives up soon.
            access = replace(self._asked.access, patience=2.0)
            while True:
                over = ended.wait(1.0)
                with contextlib.suppress(HeadraceError), link(access, at_once=True) as client:
                    self._newest = client.head().head
                    client.report(REPORT, self.facts())
                    self._lost = client.lost()
                    for each in list(self._supervised.values()):
                        if (ask := each.at_work) is not None:
                            each.noted = ask(client)
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
    """Keep a library from printing a page for each failed micro-batch, which we report ourselves."""
    library = logging.getLogger(name)
    before = library.level
    library.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        library.setLevel(before)


def _hush_queries(spark: SparkSession) -> None:
    """Keep the JVM from printing the failures of queries."""
    jvm = spark.sparkContext._jvm
    if jvm is not None:
        name = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep our handler of Ctrl-C: a Spark context's own would abort all running tasks."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _has_ended(spark: SparkSession) -> bool:
    try:
        context = spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except Exception:  # noqa: BLE001 - py4j has many ways to say that nobody answers
        return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _at_last(facts: Mapping[str, object]) -> dict[str, object]:
    """Return a job's final status."""
    return {**facts, "state": facts["state"] if facts["state"] in ("done", "failed") else "stopped"}
