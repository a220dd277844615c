"""A job that fails is started again by itself, after pauses that grow. Queries here are made up: no JVM is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.spark.hubs import until

from headrace.errors import PeerError, UnreachableError, UsageError
from headrace.spark import supervised_job
from headrace.spark.jobs.job import JobRun, RunningJob, find
from headrace.spark.options import HubOptions
from headrace.spark.supervised_job import LONGEST_PAUSE, STEADY_SECONDS, Pauses, SupervisedJob


class Query:
    """A query as the runner sees it."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: Exception | None = None
        self.lastProgress = None

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self._ended.is_set()

    def awaitTermination(self) -> None:  # noqa: N802
        assert self._ended.wait(60)
        if self._error is not None:
            raise self._error

    def exception(self) -> Exception | None:
        return self._error

    def end(self, error: Exception | None = None) -> None:
        self._error = error
        self._ended.set()


class OwnJob:
    """A job that starts as it is told to, one try after the other."""

    ABOUT = "a job of the test's own"
    PARAMETERS = find("measure").PARAMETERS

    def __init__(self, *tries: Exception | Query | Mapping[str, object]) -> None:
        self._tries = iter(tries)
        self.runs: list[JobRun] = []

    def start(self, run: JobRun) -> RunningJob | Mapping[str, object]:
        self.runs.append(run)
        match next(self._tries):
            case Exception() as error:
                raise error
            case Query() as query:
                made: Any = query
                return RunningJob(made, lambda: {"path": "/a"})
            case done:
                return done


Tend = Callable[..., SupervisedJob]


@pytest.fixture
def tend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tend]:
    monkeypatch.setattr(supervised_job, "FIRST_PAUSE", 0.001)
    stopping = threading.Event()
    begun: list[SupervisedJob] = []

    def begin(job: OwnJob, *, again: bool = True, available_now: bool = False) -> SupervisedJob:
        def ready() -> JobRun:
            return JobRun(None, "own", HubOptions(), {}, job.PARAMETERS, available_now)  # type: ignore[arg-type]

        begun.append(SupervisedJob("own", job, ready, again=again, stopping=stopping))
        begun[-1].start()
        return begun[-1]

    yield begin
    stopping.set()
    for each in begun:
        if each.started is not None:
            ended: Any = each.started.query
            ended.end()
        each.join(60)
        assert each.over


def running(job: SupervisedJob, restarts: int) -> bool:
    facts = job.facts(None)
    return (facts["state"], facts["restarts"]) == ("running", restarts)


def test_pauses_double_up_to_a_minute_and_begin_again_when_all_went_well() -> None:
    pauses = Pauses()
    assert [pauses.after(3) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, LONGEST_PAUSE]
    assert [pauses.after(ran) for ran in (STEADY_SECONDS - 1, STEADY_SECONDS, 3, 3)] == [60, 1, 2, 4]


def test_a_start_that_fails_is_tried_again(tend: Tend) -> None:
    query = Query()
    tries = UnreachableError("127.0.0.1:1", "nobody answers"), UsageError("/x cannot be written"), query
    job = OwnJob(*tries)
    watched = tend(job)
    until(lambda: running(watched, restarts=2))
    assert watched.begun
    assert len({id(run) for run in job.runs}) == 3
    facts = watched.facts(None)
    assert (facts["error"], facts["path"]) == ("/x cannot be written", "/a")
    news = list(watched.news())
    assert [(each["event"], each["job"], each["state"]) for each in news] == [
        ("failed", "own", "restarting")
    ] * 2
    assert [each["restarts"] for each in news] == [0, 1]
    assert "nobody answers" in str(news[0]["error"])
    assert watched.failure is None


def test_a_query_that_fails_is_started_again(tend: Tend) -> None:
    first, second = Query(), Query()
    job = OwnJob(first, second)
    watched = tend(job)
    until(lambda: running(watched, restarts=0))
    assert "error" not in watched.facts(None)
    job.runs[0].failure = KeyError("x")
    first.end(RuntimeError("a page of Java"))
    until(lambda: running(watched, restarts=1))
    assert watched.facts(None)["error"] == "KeyError: 'x'"
    second.end()
    until(lambda: watched.over)
    assert watched.facts(None)["state"] == "stopped"


def test_what_nobody_foresaw_is_told_in_full_once(tend: Tend, caplog: pytest.LogCaptureFixture) -> None:
    queries = [Query() for _ in range(4)]
    watched = tend(OwnJob(*queries))
    words = [
        "a page\nof Java",
        "a page\nof Java",
        "headrace.errors.LostRangeError: messages 1 to 2 are lost",
        "other",
    ]
    for number, text in enumerate(words[:3]):
        until(lambda number=number: running(watched, restarts=number))  # type: ignore[misc]
        queries[number].end(RuntimeError(text))
    until(lambda: running(watched, restarts=3))
    assert [record.getMessage() for record in caplog.records] == ["own failed: a page\nof Java"]
    assert "headrace up --param own.fail_on_data_loss=false" in str(watched.facts(None)["error"])


def test_a_query_that_is_cut_off_by_a_stop_has_nothing_to_tell(
    tend: Tend, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query()
    watched = tend(OwnJob(query))
    until(lambda: running(watched, restarts=0))
    watched._stopping.set()
    query.end(RuntimeError("a page\nof Java"))
    watched.join(60)
    assert watched.over
    assert (list(watched.news()), caplog.records) == ([], [])


def test_while_it_waits_its_figures_are_not_those_of_before(
    tend: Tend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_job, "FIRST_PAUSE", 3600.0)
    query = Query()
    watched = tend(OwnJob(query))
    monkeypatch.setattr(
        supervised_job,
        "progress_of",
        lambda *_: {"job": "own", "state": "running", "rows": 5, "rows_per_second": 9.0, "seq": 7},
    )
    until(lambda: running(watched, restarts=0))
    query.end(RuntimeError("no more"))
    until(lambda: watched.facts(None)["state"] == "restarting")
    facts = watched.facts(None)
    assert (facts["rows"], facts["rows_per_second"], facts["seq"], facts["error"]) == (0, 0.0, 7, "no more")
    assert next(watched.news())["seconds"] == 3600.0


@pytest.mark.parametrize("again", [True, False])
def test_a_job_that_has_an_end(tend: Tend, again: bool) -> None:
    watched = tend(OwnJob({"messages": 3}), again=again)
    until(lambda: watched.over)
    assert list(watched.news()) == [{"event": "done", "job": "own", "state": "done", "messages": 3}]
    assert watched.facts(None) == {"job": "own", "state": "done", "messages": 3, "restarts": 0}


def test_a_query_that_has_done_what_was_there_is_done(tend: Tend, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    job = OwnJob(query)
    watched = tend(job, again=False, available_now=True)
    until(lambda: running(watched, restarts=0))
    last = {"job": "own", "state": "stopped", "rows": 5, "rows_per_second": 9.0, "path": "/a"}
    monkeypatch.setattr(supervised_job, "progress_of", lambda *_: dict(last))
    query.end()
    until(lambda: watched.over)
    assert list(watched.news()) == [{"event": "done", "job": "own", "state": "done", "path": "/a"}]
    assert watched.facts(None) == {**last, "state": "done", "restarts": 0}


def test_a_query_that_is_stopped_before_it_has_done_what_was_there_is_not_done(tend: Tend) -> None:
    query = Query()
    watched = tend(OwnJob(query), again=False, available_now=True)
    until(lambda: running(watched, restarts=0))
    watched._stopping.set()
    query.end()
    until(lambda: watched.over)
    assert list(watched.news()) == []
    assert watched.facts(None)["state"] == "stopped"


def test_one_that_is_not_to_be_started_again_keeps_its_failure(tend: Tend) -> None:
    query = Query()
    watched = tend(OwnJob(query), again=False)
    query.end(RuntimeError("headrace.errors.UsageError: another log"))
    until(lambda: watched.over)
    assert (type(watched.failure), str(watched.failure)) == (UsageError, "own: another log")
    assert watched.facts(None)["state"] == "failed"
    wrong = tend(OwnJob(ZeroDivisionError("ours")), again=False)
    until(lambda: wrong.over)
    assert isinstance(wrong.failure, ZeroDivisionError)


def test_a_mistake_of_ours_is_told_with_its_trace(tend: Tend, caplog: pytest.LogCaptureFixture) -> None:
    watched = tend(OwnJob(ZeroDivisionError("ours"), Query()))
    until(lambda: running(watched, restarts=1))
    assert watched.facts(None)["error"] == "ZeroDivisionError: ours"
    assert "Traceback" in caplog.text


def test_a_spark_that_is_gone_is_a_failure_too(tend: Tend) -> None:
    class Gone(Query):
        def exception(self) -> Exception | None:
            raise type("Py4JNetworkError", (Exception,), {"__module__": "py4j.protocol"})(
                "no answer from Java"
            )

    query = Gone()
    watched = tend(OwnJob(query), again=False)
    query.end()
    until(lambda: watched.over)
    assert (type(watched.failure), str(watched.failure)) == (PeerError, "own: no answer from Java")


def test_a_job_with_an_end_is_running_once_it_is_at_work(tend: Tend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        supervised_job, "tasks_of", lambda _spark, group: {"tasks": 4, "tasks_done": len(group)}
    )
    goes_on, may_end = threading.Event(), threading.Event()

    class WithAnEnd(OwnJob):
        def start(self, run: JobRun) -> Mapping[str, object]:
            assert goes_on.wait(60)
            run.at_work = lambda client: {"through": client}
            assert may_end.wait(60)
            return {"messages": 9}

    job = tend(WithAnEnd())
    assert (job.facts(None)["state"], job.at_work) == ("starting", None)
    goes_on.set()
    until(lambda: job.at_work)
    assert job.at_work is not None
    job.noted = job.at_work(7)
    facts = job.facts(None)
    assert (facts["state"], facts["tasks"], facts["through"]) == ("running", 4, 7)
    may_end.set()
    until(lambda: job.over)
    assert (job.facts(None)["state"], job.facts(None)["messages"], job.at_work) == ("done", 9, None)
