"""One job of a pipeline: started, watched and, where that is wanted, started again by itself when it fails.

Jobs are independent of one another. Each has a thread of its own: whatever one waits for, a hub that is away or the
pause before its next try, keeps no other waiting. All share one Spark session; a session that has ended is not for a
job to notice, but for who started it.

A job that fails is started again after a pause, which doubles from try to try. That holds for what does not get better
by itself too (a path that cannot be written, another log's checkpoint, messages that are gone): somebody may mend it,
and until then it costs a look a minute. A job that has run for a good while begins with the first pause again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.spark.failures import failure_of, is_ours, plainly, told
from headrace.spark.jobs.job import Job, Run, Started
from headrace.spark.progress import progress_of, tasks_of

logger = logging.getLogger("headrace")

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
STEADY_SECONDS: Final = 120.0
"""A job that has run for so long begins with the first pause again."""

_OF_A_BATCH: Final = ("rows", "rows_per_second")
"""Facts of a job's last micro-batch, which say nothing of all that it has done."""
_SHOWN: Final = 500
"""Characters of an error that a status repeats."""


class Pauses:
    """How long to wait before the next try.

    >>> pauses = Pauses()
    >>> [pauses.after(ran) for ran in (0, 5, 5, 300, 5)]
    [1.0, 2.0, 4.0, 1.0, 2.0]
    """

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def after(self, ran: float) -> float:
        """The pause after a try that failed when it had run for ``ran`` seconds."""
        pause = FIRST_PAUSE if ran >= STEADY_SECONDS else self._next
        self._next = min(pause * 2, LONGEST_PAUSE)
        return pause


class Tended:
    """A job, its newest query, and how it came to that. What is public may be asked for from any thread."""

    def __init__(
        self, name: str, job: Job, ready: Callable[[], Run], *, again: bool, stopping: threading.Event
    ) -> None:
        self._name = name
        self._job = job
        self._ready = ready
        """Prepares the session for the job, and says what a run of it is told."""
        self._again = again
        self._stopping = stopping
        self._pauses = Pauses()
        self._thread = threading.Thread(target=self._live, name=f"headrace-{name}", daemon=True)
        self._news: SimpleQueue[dict[str, object]] = SimpleQueue()
        self._page = ""
        """What a query was last found to have failed with, in full."""
        self._restarts = 0
        self._mishap: dict[str, object] = {}
        """The newest failure, for the status."""
        self._state: str | None = "starting"
        """``None`` where Spark knows: the query runs, or has ended as it should."""
        self._done: Mapping[str, object] = {}
        self._run: Run | None = None
        self.noted: Mapping[str, object] = {}
        """What the hub was found to know of a job that has an end; for who asks it (:attr:`at_work`)."""
        self.started: Started | None = None
        self.failure: Exception | None = None
        """What ended a job that is not started again."""

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for its end, which comes soon after that of its query."""
        self._thread.join(seconds)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return not self._thread.is_alive()

    @property
    def begun(self) -> bool:
        """Whether its first micro-batch, or the first try, has come to an end."""
        return self.over or bool(self._mishap) or (
            self.started is not None and self.started.query.lastProgress is not None
        )  # fmt: skip

    @property
    def at_work(self) -> Callable[[Any], Mapping[str, object]] | None:
        """What to ask the hub about a job that has an end, while it is at work."""
        return None if self._run is None or self._state != "starting" else self._run.at_work

    def news(self) -> Iterator[dict[str, object]]:
        """What has happened since the last time: that it is done, or failed."""
        with contextlib.suppress(Empty):
            while True:
                yield self._news.get_nowait()

    def facts(self, newest: int | None) -> dict[str, object]:
        """What there is to say of it; ``newest`` is the last message there is, if that is known."""
        # In this order: a state that is left to Spark comes after the query that has it.
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
                # Those were of the query before.
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
            self._news.put({"event": "failed", **self._about(), "seconds": pause})
            if self._stopping.wait(pause):
                return
            self._restarts += 1
            self._state = "starting"

    def _run_once(self) -> Exception | None:
        """Run the job to its end; returns what it failed with."""
        try:
            with plainly(self._name):
                run = self._run = self._ready()
                result = self._job.start(run)
            if isinstance(result, Started):
                self.started, self._state = result, None
                return self._watch(run, result)
        except Exception as error:  # noqa: BLE001 - whoever looks raises it, or says that it is tried again
            return error
        self._end(result)
        return None

    def _end(self, result: Mapping[str, object]) -> None:
        self._done, self._state = result, "done"
        self._news.put({"event": "done", "job": self._name, "state": "done", **result})

    def _watch(self, run: Run, started: Started) -> Exception | None:
        with contextlib.suppress(Exception):
            # What this raises is a page long.
            started.query.awaitTermination()
        with plainly(self._name):
            ended_by = started.query.exception()
        if ended_by is None:
            if run.available_now and not self._stopping.is_set():
                self._end({name: fact for name, fact in started.facts().items() if name not in _OF_A_BATCH})
            return None
        words = str(ended_by) if run.failure is None else told(run.failure)
        failure = failure_of(self._name, run.failure, words)
        failure.__cause__ = run.failure
        if not (self._stopping.is_set() or is_ours(run.failure, words) or words == self._page):
            # What nobody foresaw is told in full; the same again, and again, is not, nor what is cut off by a stop.
            logger.error("%s failed: %s", self._name, words)
            self._page = words
        return failure

    def _keep(self, failure: Exception) -> None:
        if self._again and not isinstance(failure, HeadraceError):
            # A mistake of ours is never hidden.
            logger.error("%s failed", self._name, exc_info=failure)
        words = told(failure).removeprefix(f"{self._name}: ")[:_SHOWN]
        self._mishap = {"error": words, "failed": datetime.now(UTC).isoformat(timespec="seconds")}

    def _about(self) -> dict[str, object]:
        return {"job": self._name, "state": self._state, "restarts": self._restarts, **self._mishap}
