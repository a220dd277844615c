"""One job of a pipeline: started, watched and, if wanted, restarted when it fails.

Each job has a thread of its own, so that one that waits (for a hub, or for its next try) delays no other. All share one
Spark session; the pipeline notices its end.

A job that fails is restarted after a pause, which doubles from try to try, even if it needs fixing first (a path that
cannot be written, another log's checkpoint, lost messages): until then it costs a try a minute. A job that has run for
two minutes begins with the first pause again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace.spark.failures import failure_of, failure_text, is_ours, naming_job
from headrace.spark.jobs.job import Job, JobRun, RunningJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("headrace")

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
STEADY_SECONDS: Final = 120.0
"""Run time after which pauses begin with the first again."""

_OF_A_BATCH: Final = ("rows", "rows_per_second")
"""Facts of a job's last micro-batch, not of all that it has done."""
_SHOWN: Final = 500
"""Characters of an error that a status repeats."""


class Pauses:
    """Pauses before the next try.

    >>> pauses = Pauses()
    >>> [pauses.after(ran) for ran in (0, 5, 5, 300, 5)]
    [1.0, 2.0, 4.0, 1.0, 2.0]
    """

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def after(self, ran: float) -> float:
        """Return the pause after a try that failed when it had run for ``ran`` seconds."""
        pause = FIRST_PAUSE if ran >= STEADY_SECONDS else self._next
        self._next = min(pause * 2, LONGEST_PAUSE)
        return pause


class SupervisedJob:
    """A job, its newest query and its failures. Public methods may be called from any thread."""

    def __init__(
        self, name: str, job: Job, ready: Callable[[], JobRun], *, again: bool, stopping: threading.Event
    ) -> None:
        self._name = name
        self._job = job
        self._ready = ready
        """Prepares the session for the job, and makes a run of it."""
        self._again = again
        self._stopping = stopping
        self._pauses = Pauses()
        self._thread = threading.Thread(target=self._live, name=f"headrace-{name}", daemon=True)
        self._news: SimpleQueue[dict[str, object]] = SimpleQueue()
        self._page = ""
        """The full text of the last failure that was logged."""
        self._restarts = 0
        self._mishap: dict[str, object] = {}
        """The newest failure, for the status."""
        self._state: str | None = "starting"
        """``None`` if Spark knows: the query runs, or has ended normally."""
        self._done: Mapping[str, object] = {}
        self._run: JobRun | None = None
        self.noted: Mapping[str, object] = {}
        """What :attr:`at_work` found at the hub."""
        self.started: RunningJob | None = None
        self.failure: Exception | None = None
        """The failure that ended a job which is not restarted."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the thread, which ends soon after its query."""
        self._thread.join(seconds)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return not self._thread.is_alive()

    @property
    def begun(self) -> bool:
        """Whether its first micro-batch, or its first try, has ended."""
        return self.over or bool(self._mishap) or (
            self.started is not None and self.started.query.lastProgress is not None
        )  # fmt: skip

    @property
    def at_work(self) -> Callable[[Any], Mapping[str, object]] | None:
        """The function that asks the hub for the progress of a job that has an end, while it runs."""
        return None if self._run is None or self._state != "starting" else self._run.at_work

    def news(self) -> Iterator[dict[str, object]]:
        """Yield the events since the last call: done, or failed."""
        with contextlib.suppress(Empty):
            while True:
                yield self._news.get_nowait()

    def facts(self, newest: int | None) -> dict[str, object]:
        """Return the facts for the status; ``newest`` is the last message of the log, if known."""
        # In this order: the query is set before its state is left to Spark.
        state, started = self._state, self.started
        facts: dict[str, object] = {"job": self._name, "state": state, **self._done}
        if started is not None:
            facts = progress_of(self._name, started, newest)
        elif self._run is not None and self.at_work is not None:
            state = "running"
            facts |= {**tasks_of(self._run.spark, self._name), **self.noted}
        if state is not None:
            facts["state"] = state
            if "rows" in facts and state != "done":
                # They are of the previous query.
                facts |= {"rows": 0, "rows_per_second": 0.0}
        return {**facts, "restarts": self._restarts, **self._mishap}

    def _live(self) -> None:
        while not self._stopping.is_set():
            began = monotonic()
            failure = self._run_once()
            if failure is None or self._stopping.is_set():
                return
            self._keep(failure)
            if not self._again:
                self._state, self.failure = "failed", failure
                return
            pause = self._pauses.after(monotonic() - began)
            self._state = "restarting"
            about = {"job": self._name, "state": self._state, "restarts": self._restarts}
            self._news.put({"event": "failed", **about, **self._mishap, "seconds": pause})
            if self._stopping.wait(pause):
                return
            self._restarts += 1
            self._state = "starting"

    def _run_once(self) -> Exception | None:
        """Run the job to its end; return its failure, if any."""
        try:
            with naming_job(self._name):
                run = self._run = self._ready()
                result = self._job.start(run)
            if isinstance(result, RunningJob):
                self.started, self._state = result, None
                return self._watch(run, result)
        except Exception as error:  # noqa: BLE001 - raised or reported by the pipeline
            return error
        self._end(result)
        return None

    def _end(self, result: Mapping[str, object]) -> None:
        self._done, self._state = result, "done"
        self._news.put({"event": "done", "job": self._name, "state": "done", **result})

    def _watch(self, run: JobRun, started: RunningJob) -> Exception | None:
        with contextlib.suppress(Exception):
            # Its error is a page long.
            started.query.awaitTermination()
        with naming_job(self._name):
            ended_by = started.query.exception()
        if ended_by is None:
            if run.available_now and not self._stopping.is_set():
                self._end({name: fact for name, fact in started.facts().items() if name not in _OF_A_BATCH})
            return None
        words = str(ended_by) if run.failure is None else failure_text(run.failure)
        failure = failure_of(self._name, run.failure, words)
        failure.__cause__ = run.failure
        if not (self._stopping.is_set() or is_ours(run.failure, words) or words == self._page):
            # An unforeseen failure is logged in full, once; one that a stop caused is not.
            logger.error("%s failed: %s", self._name, words)
            self._page = words
        return failure

    def _keep(self, failure: Exception) -> None:
        if self._again and not isinstance(failure, HeadraceError):
            # A bug is never hidden.
            logger.error("%s failed", self._name, exc_info=failure)
        words = failure_text(failure).removeprefix(f"{self._name}: ")[:_SHOWN]
        self._mishap = {"error": words, "failed": datetime.now(UTC).isoformat(timespec="seconds")}


def progress_of(name: str, started: RunningJob, newest: int | None) -> dict[str, object]:
    """Return the facts of a running job, from Spark's report; ``newest`` is the log's last message, if known."""
    query = started.query
    facts: dict[str, object] = {"job": name, "state": "running" if query.isActive else "stopped"}
    last = query.lastProgress
    if last is not None:
        facts |= figures_of(json.loads(last.json), newest)
    own = dict(started.facts())
    if not facts.get("rows"):
        # The last micro-batch was empty: the job's own counts are of an earlier one.
        own.pop("rows", None)
        own.pop("rows_per_second", None)
    return facts | own


def tasks_of(spark: SparkSession, group: str) -> dict[str, object]:
    """Count the tasks of a group of Spark's jobs, and those done; nothing if there are none."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    tasks = sum(stage.numTasks for stage in known)
    return {"tasks": tasks, "tasks_done": sum(stage.numCompletedTasks for stage in known)} if tasks else {}


def figures_of(last: Mapping[str, Any], newest: int | None) -> dict[str, object]:
    """Return the figures of Spark's report on a micro-batch; ``newest`` is the log's last message, if known."""
    seq = next(filter(None, (_seq(source.get("endOffset")) for source in last["sources"])), None)
    milliseconds = last.get("durationMs", {}).get("triggerExecution", 0)
    return {
        "batch": last["batchId"],
        "time": last["timestamp"],
        "rows": last.get("numInputRows", 0),
        "rows_per_second": round(last.get("processedRowsPerSecond") or 0.0, 1),
        "batch_seconds": milliseconds / 1000,
        "seq": seq,
        "behind": None if newest is None or seq is None else max(newest - seq, 0),
    }


def _seq(offset: object) -> int | None:
    """Parse the sequence number of an offset, which Spark gives as an object or as JSON text."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    seq = offset.get("seq") if isinstance(offset, dict) else None
    return seq if isinstance(seq, int) else None
