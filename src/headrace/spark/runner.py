"""Run jobs: start them in one Spark session, watch them, tell how far they are, stop in good order.

A pipeline ends when it is told to (:meth:`Pipeline.stop`), when all its jobs are done (``available_now``, and those
that have an end), or when its Spark session does. If one job fails, then either that job is started again by itself
(``restart``; see :mod:`~headrace.spark.supervised_job`), or the others are stopped, and the failure is the
pipeline's. Whatever ends it, its jobs go on from their checkpoints when they are started again.
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
from headrace.spark.failures import as_sentences, plainly
from headrace.spark.hub_connections import close_links, link
from headrace.spark.jobs.job import Job, Run, find, parameters_of
from headrace.spark.options import Access
from headrace.spark.runtime.session import session
from headrace.spark.supervised_job import Tended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("headrace")

_MASTER: Final = re.compile(r"local($|\[)|(spark|k8s)://|yarn$")
_SIZE: Final = re.compile(r"\d+[kmgt]$", re.IGNORECASE)
"""What Java takes for a heap's size."""

_STEPS: Final = ("tasks_done", "through")
"""By which of its facts a job that has an end is seen to have gone on; others have micro-batches."""

REPORT: Final = "pipeline"
"""The name of the report that the hub shows in its status."""

WITHOUT_HUB: Final = frozenset({"decode"})
"""Jobs that need none."""

LOOK_SECONDS: Final = 0.5
FIRST_SECONDS: Final = 12.0
"""How long a job may have the machine to itself for its first micro-batch."""
STOP_SECONDS: Final = 6.0
"""How long a micro-batch under way may take to end when the pipeline is stopped; it is run again otherwise."""
JOIN_SECONDS: Final = 0.5
"""How long a job without its Spark may take to notice; one that waits for a hub takes longer, and is not waited for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to run."""

    jobs: Sequence[str]
    access: Access
    master: str = "local[*]"
    params: Mapping[str, str] = field(default_factory=dict)
    available_now: bool = False
    restart: bool = False
    """Whether a job that fails is started again, and the others are left alone; else its failure ends all."""
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
        self._over = threading.Event()
        """Set when no job is to be started any more, whatever the reason."""
        self._tended: dict[str, Tended] = {}
        self._progress: dict[str, dict[str, object]] = {}
        """How far each job was when it was last looked at; what is reported comes from here, not from Spark."""
        self._newest: int | None = None
        self._lost: Mapping[str, object] = {}
        """What the hub knows each job to have passed over."""
        self._state = "starting"
        self._since = _now()
        self._until: str | None = None
        self._ui: str | None = None
        # What is asked for wrongly is known before a JVM is started.
        self._jobs: dict[str, Job] = {name: asked.own.get(name) or find(name) for name in asked.jobs}
        self._told = parameters_of(self._jobs, asked.params)
        if not asked.restart:
            # One that is started again may find later what is not there yet.
            for name in self._jobs:
                self._check(name)
        if not _MASTER.match(asked.master):
            raise UsageError(
                f"master = {asked.master}: expected local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
            )
        if not _SIZE.match(asked.memory):
            raise UsageError(f"memory = {asked.memory}: expected a size such as 800m or 2g")

    def _check(self, name: str) -> None:
        """Have a job say what it could not begin with."""
        check: Callable[[Mapping[str, str], bool], None] | None = getattr(self._jobs[name], "check", None)
        if check is not None:
            with plainly(name):
                check(self._params(name), self._asked.available_now)

    def _params(self, name: str) -> dict[str, str]:
        """What a job is told."""
        folder = self._jobs[name].PARAMETERS["path"].default or name
        return {"path": f"{self._asked.root}/{folder}", **self._told[name]}

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
        with self._reporting(), _hushed("py4j"):
            spark = self._session()
            last = "failed"
            try:
                with as_sentences("the pipeline"):
                    self._run(spark)
                last = "stopped"
            finally:
                self._state = "stopping"
                self._over.set()
                if self._stopping.is_set():
                    self._tell({"event": "stopping", "jobs": list(asked.jobs)})
                self._stop_queries()
                self._stop_spark(spark)
                for each in self._tended.values():
                    each.join(JOIN_SECONDS)
                close_links()
                self._state, self._until = last, _now()
                self._progress = {name: _at_last(facts) for name, facts in self._progress.items()}

    def _session(self) -> SparkSession:
        asked = self._asked
        wrong = f"Spark does not start on {asked.master}"
        try:
            with _own_interrupts(), as_sentences(wrong, in_full=False):
                return session(
                    asked.master,
                    app=f"headrace {' '.join(asked.jobs)}",
                    memory=asked.memory,
                    ui=asked.ui,
                    # Our jobs keep no state in Spark: what they keep, they keep themselves.
                    stateless=True,
                    **{"spark.scheduler.mode": "FAIR", **asked.conf},
                )
        except (HeadraceError, OSError) as error:
            if self._stopping.is_set():
                # Whoever stops us may have told the JVM as well, as systemd does.
                raise KeyboardInterrupt from error
            if isinstance(error, OSError):
                raise PeerError(f"{wrong}: {error}") from error
            raise

    def facts(self) -> dict[str, object]:
        """What the pipeline is doing."""
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
            if all(each.over for each in self._tended.values()):
                break
            self._look(spark)
        if not (self._stopping.is_set() and _has_ended(spark)):
            # A Spark that was told to stop with us has not failed.
            self._look(spark)

    def _start(self, spark: SparkSession, name: str) -> None:
        job, params = self._jobs[name], self._params(name)

        def ready() -> Run:
            # A pool each: a long micro-batch of one job does not keep the others waiting.
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
            # By which what it does outside of queries is found.
            spark.sparkContext.setJobGroup(name, job.ABOUT)
            return Run(spark, name, self._asked.access, params, job.PARAMETERS, self._asked.available_now)

        self._tended[name] = Tended(name, job, ready, again=self._asked.restart, stopping=self._over)
        self._tended[name].start()

    def _let_begin(self, spark: SparkSession, name: str) -> None:
        """Let a job's first micro-batch end before the next job begins, so that there is soon something to see.

        Where there are no messages there is nothing to wait for.
        """
        deadline = monotonic() + FIRST_SECONDS
        goes_on = not self._asked.available_now and bool(self._newest)
        while goes_on and monotonic() < deadline and not self._tended[name].begun:
            if self._stopping.wait(0.1):
                break
            self._look(spark)
        self._look(spark)

    def _look(self, spark: SparkSession) -> None:
        """See how the jobs are; tell of each new micro-batch and mishap; raise what ends the pipeline."""
        if _has_ended(spark):
            raise PeerError("the Spark session has ended")
        for name, each in self._tended.items():
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
                # The last that is said of a job, behind its last micro-batch.
                if news["event"] == "done":
                    self._tell(news)
            if failure is not None:
                raise failure

    def _stop_queries(self) -> None:
        """Let what is under way end, for a while; then stop."""
        deadline = monotonic() + STOP_SECONDS
        for each in self._tended.values():
            if each.started is None:
                continue
            query = each.started.query
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
                    self._lost = client.lost()
                    for each in list(self._tended.values()):
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
    """Keep a library from printing a page for each micro-batch that fails or is cut off: we say what it was."""
    library = logging.getLogger(name)
    before = library.level
    library.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        library.setLevel(before)


def _hush_queries(spark: SparkSession) -> None:
    """The same in the JVM, of a query that fails."""
    jvm = spark.sparkContext._jvm
    if jvm is not None:
        name = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep what Ctrl-C does: a Spark context has its own idea, which is to cut off whatever is under way."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _has_ended(spark: SparkSession) -> bool:
    """Whether a session is of no use any more: stopped, or without its JVM."""
    try:
        context = spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except Exception:  # noqa: BLE001 - py4j has many ways to say that nobody answers
        return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _at_last(facts: Mapping[str, object]) -> dict[str, object]:
    """What is said of a job when all is over."""
    return {**facts, "state": facts["state"] if facts["state"] in ("done", "failed") else "stopped"}
