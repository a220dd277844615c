"""What a pipeline is told, and what it says when something fails; no JVM is needed for that."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from headrace.errors import PeerError, RefusedError, StorageError, UnreachableError, UsageError
from headrace.spark import datasource, runner
from headrace.spark.failures import failure_of, naming_job
from headrace.spark.jobs.job import JOBS, JobRun, find, parameters_of
from headrace.spark.options import HubOptions
from headrace.spark.runner import Pipeline, PipelineRequest
from headrace.spark.source.range_rows import GO_ON
from headrace.spark.supervised_job import progress_of


def jobs(*names: str) -> dict[str, Any]:
    return {name: find(name) for name in names}


def test_every_job_says_what_it_is() -> None:
    for name in JOBS:
        job = find(name)
        assert job.ABOUT
        assert "path" in job.PARAMETERS
        assert all(parameter.doc for parameter in job.PARAMETERS.values())


def test_who_is_told_what() -> None:
    assert parameters_of(jobs("archive"), {"path": "/a"}) == {"archive": {"path": "/a"}}
    told = parameters_of(jobs("archive", "verify"), {"archive.interval": "5", "path": "/a/", "interval": "2"})
    assert told == {
        "archive": {"path": "/a/archive", "interval": "5"},
        "verify": {"path": "/a/verify", "interval": "2"},
    }
    # What one of several takes is for that one.
    assert parameters_of(jobs("archive", "verify"), {"hold": "h"}) == {"archive": {"hold": "h"}, "verify": {}}


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("hld", "hold"),
        ("archive.hld", "hold"),
        ("archiv.path", "no parameter 'archiv.path'"),
        ("verify.path", "verify.path: verify is not among the jobs to run, which are archive"),
    ],
)
def test_a_parameter_that_is_none(key: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parameters_of(jobs("archive"), {key: "x"})


@pytest.mark.parametrize(
    ("name", "key", "value", "told"),
    [
        ("archive", "interval", "abc", "archive: interval = abc: expected a number of 0.01 or more"),
        ("archive", "archive.size", "0", "archive: size = 0: expected a number of 1 or more"),
        (
            "archive",
            "starting",
            "first",
            "archive: starting = first: expected earliest, latest or a sequence number",
        ),
        ("archive", "starting", "9" * 99, "expected earliest, latest or a sequence number"),
        (
            "archive",
            "table_format",
            "detla",
            "archive: table_format = detla: expected delta, iceberg or parquet",
        ),
        ("verify", "fail_on_data_loss", "no", "verify: fail_on_data_loss = no: expected true or false"),
        ("match", "shares", "few", "match: shares = few: expected a number of 1 or more"),
        ("replay", "rate", "inf", "replay: rate = inf: expected a number of 0 or more"),
        ("replay", "from", "yesterday", "replay: 'yesterday': expected a sequence number or a time"),
    ],
)
def test_a_value_that_cannot_be_is_told_before_anything_runs(
    name: str, key: str, value: str, told: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        Pipeline(PipelineRequest([name], HubOptions(), params={key: value}))


def test_values_that_can_be() -> None:
    params = {"starting": "7", "interval": "0.5", "table_format": "Delta", "hold": "", "size": ""}
    assert Pipeline(PipelineRequest(["archive"], HubOptions(), params=params))._given["archive"] == params


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"master": "lcoal[2]"}, "master = lcoal[2]: expected local[N], spark://HOST:PORT"),
        ({"master": "127.0.0.1:7077"}, "master = 127.0.0.1:7077: expected local[N], spark://HOST:PORT"),
        ({"memory": "1x"}, "memory = 1x: expected a size such as 800m or 2g"),
        ({"memory": "2"}, "memory = 2: expected a size such as 800m or 2g"),
    ],
)
def test_a_spark_that_cannot_be_is_told_before_anything_runs(asked: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        Pipeline(PipelineRequest(["archive"], HubOptions(), **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2,3]", "spark://a:7077,b:7077", "yarn", "k8s://https://a:6443"]
)
def test_masters(master: str) -> None:
    Pipeline(PipelineRequest(["archive"], HubOptions(), master=master, memory="512M"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["decode"], "decode: name the captures: --param captures=DIR"),
        (["decode", "captures=/nope"], "decode: /nope has no captures (*.capture, *.pcap, *.cap)"),
        (["decode", "captures=file:///nope"], "decode: file:///nope has no captures"),
        (
            ["decode", "captures=s3://mill/captures", "ports=1=door"],
            "decode: ports '1=door': expected PORT=DOOR",
        ),
        (["replay", "path=/nope"], "replay: /nope: there is no archive"),
        (["replay"], "replay: headrace-data/pipeline/archive: there is no archive"),
        (
            ["replay", "from=20", "until=10"],
            "replay: until = 10 is before from = 20: there is nothing between",
        ),
        (
            ["replay", "from=2026-01-31T12:00:00Z", "until=2026-01-31"],
            "replay: until = 2026-01-31 is before from = 2026-01-31T12:00:00Z: there is nothing between",
        ),
        (["replay", "rate=5", "speed=5"], "replay: rate and speed exclude one another"),
        (["match"], "match has no end"),
    ],
)
def test_what_a_job_cannot_begin_with_is_told_before_anything_runs(asked: list[str], told: str) -> None:
    name, *params = asked
    given = {key: value for key, _, value in (each.partition("=") for each in params)}
    with pytest.raises(UsageError, match=re.escape(told)):
        Pipeline(PipelineRequest([name], HubOptions(), params=given, available_now=True))
    # It may be there when it is started again.
    Pipeline(PipelineRequest([name], HubOptions(), params=given, available_now=True, restart=True))


def test_what_a_job_can_begin_with(tmp_path: Path) -> None:
    (tmp_path / "archive" / "_delta_log").mkdir(parents=True)
    asked = {"path": f"{tmp_path}/archive", "from": "10", "until": "10", "rate": "5", "speed": "0"}
    Pipeline(PipelineRequest(["replay"], HubOptions(), params=asked))
    Pipeline(PipelineRequest(["replay"], HubOptions(), root=str(tmp_path)))
    Pipeline(
        PipelineRequest(
            ["replay"], HubOptions(), params={"path": "s3://mill/archive", "from": "9", "until": "2026-01-31"}
        )
    )
    Pipeline(PipelineRequest(["decode"], HubOptions(), params={"captures": "s3://mill/captures"}))
    Pipeline(PipelineRequest(["match"], HubOptions(), params={"dispatchers": "a:1, b"}))
    with pytest.raises(UsageError, match="match: 'a:b' is not an address"):
        Pipeline(PipelineRequest(["match"], HubOptions(), params={"dispatchers": "a:b"}))


@pytest.fixture
def captures(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "one.capture").touch()
    return {"captures": str(tmp_path)}


def test_a_spark_that_does_not_start_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, captures: dict[str, str]
) -> None:
    """The JVM has told the rest itself."""

    def session(*_: object, **__: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(runner, "session", session)
    with pytest.raises(
        PeerError, match=r"^Spark does not start on local\[1\]: \[JAVA_GATEWAY_EXITED\] [^\n]+$"
    ):
        Pipeline(
            PipelineRequest(["decode"], HubOptions("127.0.0.1:1"), master="local[1]", params=captures)
        ).run()
    assert not caplog.records


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), PeerError("gone")], ids=repr)
def test_a_spark_that_is_told_to_stop_with_the_pipeline_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, captures: dict[str, str]
) -> None:
    """As systemd does, which tells every process of a unit."""
    told: list[Any] = []
    pipeline = Pipeline(PipelineRequest(["decode"], HubOptions("127.0.0.1:1"), params=captures), told.append)

    def session(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(runner, "session", session)
    with pytest.raises(PeerError):
        pipeline.run()
    pipeline.stop()
    pipeline.run()
    assert [each["event"] for each in told] == ["starting", "starting", "stopped"]


def test_a_session_that_ends_while_the_pipeline_is_stopped_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasource, "register", lambda _: None)
    monkeypatch.setattr(runner, "_hush_queries", lambda _: None)
    pipeline = Pipeline(PipelineRequest([], HubOptions()))
    ended: Any = _Session()
    ended.stopped = True
    ended.sparkContext.uiWebUrl = None
    pipeline.stop()
    pipeline._run(ended)
    pipeline._stopping.clear()
    with pytest.raises(PeerError, match="the Spark session has ended"):
        pipeline._run(ended)


def test_when_it_ended_is_among_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(PipelineRequest([], HubOptions()))
    times = iter(["later"])
    monkeypatch.setattr(runner, "_now", lambda: next(times))
    monkeypatch.setattr(runner, "session", lambda *_, **__: _Session())
    monkeypatch.setattr(pipeline, "_run", lambda _: None)
    monkeypatch.setattr(pipeline, "_reporting", contextlib.nullcontext)
    assert pipeline.facts()["until"] is None
    pipeline.run()
    assert (pipeline.facts()["state"], pipeline.facts()["until"]) == ("stopped", "later")


def test_a_job_that_is_none() -> None:
    with pytest.raises(UsageError, match="did you mean measure"):
        Pipeline(PipelineRequest(["mesure"], HubOptions()))


def test_numbers_and_truths() -> None:
    run = JobRun(None, "archive", HubOptions(), {"interval": "-1"}, find("archive").PARAMETERS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"interval = -1: expected a number of 0\.01 or more"):
        run.number("interval")
    assert run.truth("fail_on_data_loss") is True
    assert run.param("hold") == "archive"


def test_a_hub_that_is_away_is_told_before_a_jvm_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.runner.session", lambda *_, **__: pytest.fail("a JVM was started"))
    with pytest.raises(UnreachableError):
        Pipeline(PipelineRequest(["archive"], HubOptions("127.0.0.1:1", patience=0.1))).run()


class _Session:
    """As much of a session as a look needs."""

    def __init__(self) -> None:
        self.stopped = False
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self.stopped))
        self.sparkContext = self


def test_a_look() -> None:
    """What the hub knows to be lost is among a job's facts; a session that is gone ends the pipeline."""
    told: list[Any] = []
    pipeline = Pipeline(PipelineRequest(["measure"], HubOptions()), told.append)
    facts = {"job": "measure", "state": "running", "batch": 1}
    news = [{"event": "failed", "job": "measure"}]
    job: Any = SimpleNamespace(news=lambda: iter(news), facts=lambda _newest: dict(facts), failure=None)
    pipeline._supervised = {"measure": job}
    pipeline._lost = {"measure": {"messages": 2, "ranges": [[1, 2]]}, "another": {}}
    session: Any = _Session()
    pipeline._look(session)
    expected = {**facts, "lost": {"messages": 2, "ranges": [[1, 2]]}}
    assert pipeline.facts()["jobs"] == {"measure": expected}
    assert told == [*news, {"event": "progress", **expected}]
    # That it is done is the last that is said of it.
    news[:] = [{"event": "done", "job": "measure"}]
    facts["batch"] = 2
    told.clear()
    pipeline._look(session)
    assert [each["event"] for each in told] == ["progress", "done"]
    news.clear()
    job.failure = StorageError("measure: no room")
    with pytest.raises(StorageError, match="no room"):
        pipeline._look(session)
    session.stopped = True
    with pytest.raises(PeerError, match="the Spark session has ended"):
        pipeline._look(session)


def test_failures_are_sentences() -> None:
    ours = failure_of("archive", StorageError("no room"), "a page of Java")
    assert (type(ours), str(ours)) == (PeerError, "archive: no room")
    wrongly = failure_of("archive", UsageError("another log"), "")
    assert (type(wrongly), str(wrongly)) == (UsageError, "archive: another log")
    told = "[STREAM_FAILED] …\nTraceback\nheadrace.errors.UsageError: this is log a, not b\n\tat org.apache"
    assert str(failure_of("verify", None, told)) == "verify: this is log a, not b"
    told = "…\nheadrace.errors.LostRangeError: messages 1 to 9 are lost: gone\n\tat org.apache"
    assert str(failure_of("archive", None, told)).startswith(
        "archive: messages 1 to 9 are lost: gone. To skip them"
    )
    told = f"…\nheadrace.errors.LostRangeError: messages 1 to 9 are lost: gone{GO_ON}\n\tat org.apache"
    assert str(failure_of("archive", None, told)).startswith(
        "archive: messages 1 to 9 are lost: gone. To skip them"
    )
    assert (
        str(failure_of("verify", ValueError("x"), "\n[STREAM_FAILED] why\nmore"))
        == "verify: [STREAM_FAILED] why"
    )
    killed = failure_of("own", None, "Broken pipe\n=== Streaming Query ===\nIdentifier: own")
    assert str(killed).startswith("own: a Python process that plans for Spark has ended")
    trace = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File x\n"
    assert str(failure_of("own", None, f"{trace}KeyError: 'x'\n\tat org")) == "own: KeyError: 'x'"
    lost = failure_of(
        "own", None, f"{trace}pyarrow.lib.ArrowException: a\n{trace}a.b.OwnError: why\nmore: Error: z"
    )
    assert str(lost) == "own: OwnError: why"
    java = "An error occurred while calling o118.start.\n: java.io.IOException: no room for a/b\n\tat org.apache.A.b"
    assert str(failure_of("own", None, java)) == "own: IOException: no room for a/b"
    awaited = (
        "An error occurred while calling o1.start.\n"
        ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n\tat a.B.c\n"
        "Caused by: java.lang.RuntimeException: one\n\tat d\nCaused by: java.io.OptionalDataException\n\tat e"
    )
    assert (
        str(failure_of("own", None, awaited))
        == "own: SparkException: Exception thrown in awaitResult: OptionalDataException"
    )
    with pytest.raises(PeerError, match=r"^replay: no \(code\)$"), naming_job("replay"):
        raise RefusedError("code", "no")
    with pytest.raises(ZeroDivisionError), naming_job("replay"):
        1 / 0  # noqa: B018 - a mistake of ours is never hidden


@pytest.mark.parametrize("offset", ['{"log": "x", "seq": 90}', {"log": "x", "seq": 90}])
def test_progress(offset: object) -> None:
    import json

    last = {
        "batchId": 7,
        "timestamp": "2026-01-31T12:00:00.000Z",
        "numInputRows": 50,
        "processedRowsPerSecond": 100.04,
        "durationMs": {"triggerExecution": 500},
        "sources": [{"endOffset": offset}],
    }
    query = SimpleNamespace(isActive=True, lastProgress=SimpleNamespace(json=json.dumps(last)))
    started: Any = SimpleNamespace(query=query, facts=lambda: {"path": "/a"})
    assert progress_of("archive", started, 100) == {
        "job": "archive",
        "state": "running",
        "batch": 7,
        "time": "2026-01-31T12:00:00.000Z",
        "rows": 50,
        "rows_per_second": 100.0,
        "batch_seconds": 0.5,
        "seq": 90,
        "behind": 10,
        "path": "/a",
    }
    query.lastProgress = None
    assert progress_of("archive", started, None) == {"job": "archive", "state": "running", "path": "/a"}
