"""``pipeline`` and ``up`` as their users have them: processes, signals, files, the hub's status."""

from __future__ import annotations

import json
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.archive import tables
from tests.cli.conftest import Command, Run
from tests.hubprocess import HubProcess

import headrace
from headrace.cli.operate.pipeline import run as pipeline_run
from headrace.cli.operate.pipeline.progress import live_line
from headrace.cli.operate.pipeline.run import _LiveLine, parse_params, run_for_hub
from headrace.cli.run import up
from headrace.cli.terminal.child_process import ChildProcess
from headrace.config import load
from headrace.errors import UsageError
from headrace.spark.runner import Pipeline

SECONDS = 240.0


def until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about within {seconds:g} s"
        time.sleep(0.05)
    return result


def status(hub: HubProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{hub.doors['http']}/api/status", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def publish(hub: HubProcess, count: int, **options: Any) -> None:
    with headrace.connect_sync(hub.url("tube_tcp").replace("tube_tcp", "tube")) as link:
        link.publish([b"message"] * count, **options)


def archived(path: Path) -> list[int]:
    seqs: list[int] = tables.archived(path, ["seq"]).column("seq").to_pylist()
    return seqs


def test_params() -> None:
    assert parse_params(["a=1", "b.c=x=y", "a=2"]) == {"a": "2", "b.c": "x=y"}
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_params(["path"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["archiv"], "did you mean archive?"),
        (["nothing"], "there are archive, verify"),
        (["archive", "--param", "pth=x"], "did you mean path?"),
        (
            ["archive", "--param", "verify.path=x"],
            "verify.path: verify is not among the jobs to run, which are archive",
        ),
        (
            ["verify", "measure", "--table-format", "delta"],
            "--table-format is for archive, which is not among the jobs",
        ),
        (["decode"], "decode: name the captures:"),
        (["match", "--available-now"], "match has no end"),
        (["archive", "--param", "path"], "expected NAME=VALUE"),
    ],
)
def test_asking_wrongly_is_told_before_spark_starts(
    command: Command, arguments: list[str], told: str
) -> None:
    done = command("pipeline", "run", *arguments)
    assert done.returncode == 2
    assert told in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1


def test_jobs(run: Run, shown: Run) -> None:
    listed = json.loads(run("pipeline", "jobs").stdout)
    assert {"archive", "verify", "measure"} <= set(listed)
    assert listed["archive"]["parameters"]["interval"]["default"] == "60"
    assert listed["verify"]["parameters"]["path"]["default"] == "pipeline/verify in the data directory"
    assert listed["replay"]["parameters"]["path"]["default"] == "pipeline/archive in the data directory"
    told = shown("pipeline", "jobs").stdout
    assert "interval" in told
    assert all(f"(pipeline/{each} in the data directory)" in told for each in ("archive", "match", "decode"))


def test_every_job_has_an_example(run: Run) -> None:
    told = run("pipeline", "run", "--help").stdout
    assert all(
        f"headrace pipeline run {job}" in told for job in ("archive", "verify", "match", "replay", "decode")
    )


def test_no_pipeline_is_told(hub: HubProcess, shown: Run) -> None:
    result = shown("pipeline", "status", "--servers", hub.doors["tube_tcp"])
    assert (result.exit_code, result.stdout) == (1, "no pipeline has reported to this hub\n")


@pytest.mark.parametrize(
    ("state", "jobs", "code"),
    [
        ("running", {"archive": {"state": "running", "batch": 3}, "replay": {"state": "done"}}, 0),
        ("running", {"archive": {"state": "starting", "restarts": 0}}, 0),
        # Which is over, and what it failed with then is still told.
        ("running", {"archive": {"state": "running", "restarts": 2, "error": "no room", "batch": 4}}, 0),
        ("stopped", {"archive": {"state": "stopped", "restarts": 2, "error": "no room"}}, 0),
        (
            "running",
            {"measure": {"state": "running"}, "archive": {"state": "restarting", "error": "no room"}},
            3,
        ),
        ("running", {"archive": {"state": "starting", "restarts": 2, "error": "no room"}}, 3),
        ("running", {"archive": {"state": "running", "restarts": 2, "error": "no room"}}, 3),
        ("stopped", {"archive": {"state": "failed", "error": "no room"}}, 3),
        ("failed", {"archive": {"state": "stopped"}}, 3),
    ],
)
def test_a_script_learns_whether_all_is_well(
    hub: HubProcess, run: Run, shown: Run, state: str, jobs: dict[str, Any], code: int
) -> None:
    facts = {"state": state, "pid": 7, "since": "now", "master": "local[2]", "ui": None}
    told = {name: {"job": name, **job} for name, job in jobs.items()}
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        link.report("pipeline", {**facts, "jobs": told})
    for look in (run, shown):
        result = look("pipeline", "status", "--servers", hub.doors["tube_tcp"])
        assert (result.exit_code, result.stderr) == (code, "")
        assert "archive" in result.stdout


def test_when_a_pipeline_stopped_is_told(hub: HubProcess, shown: Run) -> None:
    facts = {"state": "stopped", "pid": 7, "since": "noon", "until": "one", "master": "local[2]", "jobs": {}}
    for state in ("stopped", "failed"):
        with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
            link.report("pipeline", {**facts, "state": state})
        told = shown("pipeline", "status", "--servers", hub.doors["tube_tcp"]).stdout
        assert told == f"{state} at one; it was started at noon on local[2]\n"


CLIENT = "00112233445566778899aabb"
WITH_AUTH = ("auth.required=true", f"auth.clients.{CLIENT}=s3cret")


def test_a_hub_that_wants_to_know_who_asks(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubProcess.start(tmp_path, *WITH_AUTH) as hub:
        servers = f"tube://{hub.doors['tube_tcp']}"
        done = command("pipeline", "run", "archive", "--servers", servers)
        assert (done.returncode, done.stdout) == (1, b"")
        assert "the hub serves only clients it knows: give a client id and its key" in done.stderr.decode()
        asked = ("pipeline", "status", "--servers", servers, "--client-id", CLIENT)
        monkeypatch.setenv("HEADRACE_KEY", "s3cret")
        assert json.loads(command(*asked, "--json").stdout) == {"state": "none", "jobs": {}}


def test_the_pipeline_of_a_hub_with_clients_says_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key comes from the settings, and goes by the environment to all that Spark starts."""
    settings = load(sets=WITH_AUTH, environ={})
    for name in ("HEADRACE_CLIENT_ID", "HEADRACE_KEY"):
        monkeypatch.setenv(name, "")
    with pytest.raises(UsageError, match=r"set HEADRACE_CLIENT_ID to one of auth\.clients"):
        run_for_hub(settings)
    monkeypatch.setenv("HEADRACE_CLIENT_ID", CLIENT)
    met: list[str] = []

    def run(_pipeline: Pipeline) -> None:
        met.append(os.environ["HEADRACE_KEY"])

    monkeypatch.setattr(Pipeline, "run", run)
    monkeypatch.setattr(pipeline_run, "stop_on_signals", lambda *_, **__: None)
    run_for_hub(settings)
    assert met == ["s3cret"]


@pytest.mark.parametrize(
    ("arguments", "restart"),
    [
        (["archive"], False),
        (["archive", "archive"], False),
        (["archive", "verify"], True),
        ([], True),
        (["archive", "verify", "--available-now"], False),
    ],
)
def test_who_is_started_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], restart: bool
) -> None:
    met: list[bool] = []
    monkeypatch.setattr(Pipeline, "run", lambda pipeline: met.append(pipeline._asked.restart))
    monkeypatch.setattr(pipeline_run, "stop_on_signals", lambda *_, **__: None)
    assert run("pipeline", "run", *arguments).exit_code == 0
    assert met == [restart]


def test_up_goes_on_without_a_pipeline_that_nobody_named(tmp_path: Path) -> None:
    with HubProcess.start(tmp_path, *WITH_AUTH, command="up") as hub:
        until(lambda: "the hub continues without it" in hub.stderr, "the pipeline to be given up")
        hub.terminate()
    assert "the pipeline has no client id" in hub.stderr


@pytest.fixture
def own_hub(tmp_path: Path) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path / "hub") as hub:
        yield hub


@pytest.mark.spark
@pytest.mark.slow
def test_live_and_idle(own_hub: HubProcess, tmp_path: Path, run: Run) -> None:
    """What is there, then what comes, each once; no traffic, no work; a signal, a good end."""
    servers = own_hub.doors["tube_tcp"]
    line = [sys.executable, "-m", "headrace", "pipeline", "run", "--servers", servers]
    line += ["--param", f"path={tmp_path}/out", "--param", "interval=0.5"]
    publish(own_hub, 1000, topic="numbers")
    live = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        publish(own_hub, 500, topic="numbers", attributes={"place": "Bern"})

        def all_measured() -> bool:
            if live.poll() is not None:
                pytest.fail("\n".join(live.communicate()), pytrace=False)
            hour = status(own_hub)["measure"].get("hour")
            return hour is not None and hour["messages"] == 1500

        until(all_measured, "all to be measured")
        measured = status(own_hub)["measure"]["hour"]
        assert measured["topics"] == [{"topic": "numbers", "messages": 1500}]
        assert measured["attributes"] == [{"name": "place", "value": "Bern", "messages": 500}]
        assert set(measured["lag"]) == {"p50", "p90", "p99", "max"}
        until(lambda: _settled(own_hub), "all jobs to have caught up")
        before, files = status(own_hub), _files(tmp_path / "out")
        # Long enough for many triggers of each job: nothing may move.
        age = before["uptime"]
        until(lambda: status(own_hub)["uptime"] > age + 3, "three seconds")
        after = status(own_hub)
        assert (after["head"], after["tail"]) == (before["head"], before["tail"])
        assert _files(tmp_path / "out") == files
        told = json.loads(run("pipeline", "status", "--servers", servers).stdout)
        assert told["state"] == "running"
        assert "verify" in told["jobs"]
        live.send_signal(signal.SIGTERM)
        output, complaints = live.communicate(timeout=60)
        assert live.returncode == 0, complaints
        assert [json.loads(each)["event"] for each in output.splitlines()[-2:]] == ["stopping", "stopped"]
    finally:
        live.kill()
        live.wait()
    seqs = archived(tmp_path / "out" / "archive")
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) > 1500
    assert ds.dataset(tmp_path / "out" / "verify", format="parquet").count_rows() == 0


@pytest.mark.spark
@pytest.mark.slow
def test_a_replay_tells_how_far_it_is_and_ends_when_it_is_told(own_hub: HubProcess, tmp_path: Path) -> None:
    publish(own_hub, 2000, topic="t")
    servers, path = own_hub.doors["tube_tcp"], tmp_path / "archive"
    with headrace.connect_sync(f"tube://{servers}") as link:
        tables.add(tables.ledger("delta", path, link.log), pa.Table.from_batches(link.read(1)))
        line = [sys.executable, "-m", "headrace", "pipeline", "run", "replay", "--servers", servers]
        line += ["--param", f"path={path}"]
        with subprocess.Popen([*line, "--param", "rate=50"], stdout=subprocess.PIPE, text=True) as replaying:

            def through() -> int:
                assert replaying.poll() is None
                found = status(own_hub).get("pipeline", {}).get("jobs", {}).get("replay", {})
                return found.get("through") or 0

            first = until(through, "a replay that says how far it is")
            until(lambda: through() > first, "a replay that goes on")
            replaying.terminate()
            told, _ = replaying.communicate(timeout=60)
        events = [json.loads(each) for each in told.splitlines()]
        assert (replaying.returncode, events[-1]["event"]) == (0, "stopped")
        progress = [each for each in events if each["event"] == "progress"]
        assert [each["state"] for each in progress if each.get("through")][:1] == ["running"]
        assert progress[-1]["tasks_done"] < progress[-1]["tasks"]
        assert not [each for each in events if each["event"] == "done"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=True)
        result = next(each for each in map(json.loads, done.stdout.splitlines()) if each["event"] == "done")
        assert 0 < result["messages"] < 2000
        replayed = [number for rows in link.read(1, origin="replay") for number in rows["number"].to_pylist()]
        assert replayed == list(range(1, 2001))


@pytest.mark.spark
@pytest.mark.slow
def test_up_keeps_hub_and_pipeline_running(tmp_path: Path, run: Run) -> None:
    """What fails or is killed is started again, and nothing else: a job that cannot begin, one that fails later, a hub,
    a pipeline, a JVM. One signal stops all, even while Spark starts, and nothing is left."""
    path = tmp_path / "archive"
    path.write_text("in the way")
    told = (
        "--param",
        f"archive.path={path}",
        "--param",
        "archive.interval=0.5",
        "--param",
        "measure.interval=0.5",
    )
    sets = ("pipeline.jobs=archive,measure", "pipeline.params.starting=1")
    with HubProcess.start(tmp_path, *sets, command="up", options=told) as hub:
        watcher = psutil.Process(hub.pid)

        def jobs() -> dict[str, Any]:
            found = _running(hub)
            return {} if found is None else dict(found["jobs"])

        def archive_is(state: str) -> bool:
            return bool(jobs().get("archive", {}).get("state") == state)

        def publish_and_measure(count: int) -> None:
            with headrace.connect_sync(hub.url("tube_tcp").replace("tube_tcp", "tube")) as link:
                last = link.publish([b"message"] * count).last
            until(lambda: (jobs().get("measure", {}).get("seq") or 0) >= last, "the other job to do its work")

        publish_and_measure(100)
        until(lambda: archive_is("restarting"), "the failure to be told")
        assert str(path) in jobs()["archive"]["error"]
        shown = run("pipeline", "status", "--servers", hub.doors["tube_tcp"], "--json")
        assert str(path) in json.loads(shown.stdout)["jobs"]["archive"]["error"]
        assert shown.exit_code == 3
        path.unlink()
        until(lambda: len(archived(path)) >= 100, "all to be archived once nothing is in the way")
        until(lambda: archive_is("running"), "the job to run")
        before = jobs()
        assert before["archive"]["restarts"] >= 1

        aside = path.rename(tmp_path / "aside")
        path.write_text("in the way again")
        publish_and_measure(100)
        until(lambda: archive_is("restarting"), "the query to fail")
        publish_and_measure(100)
        path.unlink()
        aside.rename(path)
        until(lambda: len(archived(path)) >= 300, "the rest to be archived")
        until(lambda: archive_is("running"), "the job to run again")
        after = jobs()
        assert after["archive"]["restarts"] > before["archive"]["restarts"]
        assert (after["measure"]["restarts"], after["measure"]["state"]) == (0, "running")
        assert "error" not in after["measure"]

        first = until(lambda: _running(hub), "the pipeline to run")
        os.kill(first["pid"], signal.SIGKILL)
        inner = json.loads(hub.ready_file.read_bytes())["pid"]
        assert inner != hub.pid
        os.kill(inner, signal.SIGKILL)
        until(lambda: hub.ready_file.exists() and _pid(hub.ready_file) not in (None, inner), "another hub")
        assert {k: v for k, v in json.loads(hub.ready_file.read_bytes()).items() if k != "pid"} == hub.doors
        publish(hub, 100)
        second = until(lambda: _running(hub), "another pipeline to run")
        assert second["pid"] != first["pid"]
        until(lambda: len(archived(path)) >= 400, "all to be archived")

        def java() -> list[psutil.Process]:
            # One of them may end while it is looked at.
            with suppress(psutil.NoSuchProcess):
                return [child for child in watcher.children(recursive=True) if "java" in child.name()]
            return []

        (killed,) = java()
        killed.kill()
        until(lambda: {each.pid for each in java()} - {killed.pid}, "the JVM of a third pipeline")
        said = hub.stderr
        children = watcher.children(recursive=True)
        assert len(children) >= 3  # hub, pipeline, its JVM
        hub.terminate()
        _, left = psutil.wait_procs(children, timeout=20)
        assert left == []
    assert archived(path) == list(range(1, len(archived(path)) + 1))
    assert "archive is started again in 1 s" in said
    assert "the hub ended with -9" in said
    assert "the pipeline ended with -9" in said
    assert "the pipeline ended with 1" in said
    stopping = hub.stderr.removeprefix(said)
    assert "does not stop" not in stopping
    assert "Traceback" not in stopping


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        (("--param", "archive.pth=x"), "no parameter 'archive.pth'; did you mean path?"),
        (("--param", "match.path=x"), "match.path: match is not among the jobs to run"),
        (("--set", "pipeline.params.archive.intervall=5"), "did you mean interval?"),
        (("--param", "path"), "expected NAME=VALUE"),
        (("--param", "Path=x"), "pipeline.params.Path = 'x' (from --param)"),
    ],
)
def test_up_tells_what_no_job_takes_before_anything_runs(
    command: Command, tmp_path: Path, told: tuple[str, str], complaint: str
) -> None:
    done = command("up", "--data", tmp_path / "data", *told)
    assert done.returncode == 2
    assert complaint in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_machine_without_pyspark_is_told_so(command: Command, tmp_path: Path, hub: HubProcess) -> None:
    (tmp_path / "pyspark.py").write_text('raise ModuleNotFoundError("there is none", name="pyspark")')
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    line = [sys.executable, "-m", "headrace", "pipeline", "run", "--servers", hub.doors["tube_tcp"]]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "headrace: there is no PySpark: pip install '.[spark]' in Headrace's repository brings it along\n"
    )


def test_the_pipeline_is_stopped_while_the_hub_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is under way in Spark waits for a hub that does not come back, until it is killed."""
    told: list[str] = []

    class Ended:
        """A process that ends when it is told to."""

        pid = sentinel = 0
        is_alive = staticmethod(lambda: False)

        def __init__(self, name: str) -> None:
            self._name = name

        def join(self, _seconds: float = 0) -> None:
            told.append(f"{self._name} is waited for")

    monkeypatch.setattr(ChildProcess, "signal", lambda child, _: told.append(f"{child.name} is told"))
    monkeypatch.setattr(ChildProcess, "kill", lambda _: None)
    monkeypatch.setattr(multiprocessing.connection, "wait", lambda *_: told.append("either is waited for"))
    watcher = up._Watcher(load(environ={}), Path("ready.json"), banner=False)
    watcher._hub.process, watcher._pipeline.process = Ended("hub"), Ended("pipeline")  # type: ignore[assignment]
    watcher.stop()
    assert watcher.watch() == 0
    assert told == [
        "pipeline is told",
        "either is waited for",
        "hub is told",
        "pipeline is waited for",
        "hub is waited for",
    ]


def test_a_hub_that_cannot_start_is_not_tried_again(hub: HubProcess, command: Command) -> None:
    done = command("up", "--data", hub.data, "--set", "pipeline.jobs=")
    assert done.returncode == 1
    assert f"is in use by process {hub.pid}" in done.stderr.decode()


def test_stopping_the_hub_stops_up(tmp_path: Path) -> None:
    with HubProcess.start(tmp_path, "pipeline.jobs=", command="up") as hub:
        inner = json.loads(hub.ready_file.read_bytes())["pid"]
        assert inner != hub.pid
        watcher = hub._process
        assert watcher is not None
        os.kill(inner, signal.SIGTERM)
        assert watcher.wait(SECONDS) == 0
        hub._process = None  # it has ended, as it should


def _running(hub: HubProcess) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = status(hub)["pipeline"]
    except (OSError, KeyError):
        return None
    return found if found["state"] == "running" and found["age"] < 3 else None


def _settled(hub: HubProcess) -> bool:
    """Whether every job has read all messages there are and waits."""
    found = status(hub)
    jobs = found["pipeline"]["jobs"]
    return len(jobs) == 3 and all(job.get("behind") == 0 and not job.get("rows") for job in jobs.values())


def _files(path: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}


def _pid(ready_file: Path) -> int | None:
    try:
        return int(json.loads(ready_file.read_bytes())["pid"])
    except (OSError, ValueError):
        return None


def test_the_live_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that changes for what goes on, lines that stay for what has happened."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    line = _LiveLine()
    line.show({"event": "starting", "jobs": ["archive", "verify"], "master": "local[2]"})
    line.show({"event": "started", "jobs": ["archive", "verify"], "ui": "http://127.0.0.1:4040"})
    facts = {"event": "progress", "rows_per_second": 1250.4, "behind": 12, "batch_seconds": 0.25}
    line.show({**facts, "job": "archive"})
    line.show({**facts, "job": "verify", "behind": None, "findings": 1})
    monkeypatch.setenv("COLUMNS", "40")
    line.show({**facts, "job": "archive"})
    line.show({"event": "done", "job": "replay", "state": "done", "messages": 3})
    failed = {"job": "archive", "state": "restarting", "restarts": 1, "error": "no room", "seconds": 2.0}
    line.show({"event": "failed", **failed})
    line.show({**facts, "job": "verify", "restarts": 2})
    line.show({"event": "stopped", "jobs": []})
    line.end()
    starting, started, live, done, failure, again, stopped, _ = capsys.readouterr().out.split("\n")
    assert starting == "starting Spark on local[2] …"
    assert started == "running archive, verify; Spark's pages: http://127.0.0.1:4040"
    assert live.split("\r\x1b[2K")[1:] == [
        "archive 1,250/s, 12 behind, 0.25 s a batch",
        "archive 1,250/s, 12 behind, 0.25 s a batch · verify 1,250/s, 0.25 s a batch, 1 finding",
        "archive 12 behind · verify 1 finding",
    ]
    assert (done, stopped) == ("replay: messages 3", "stopped")
    assert failure == "archive: no room; archive is started again in 2 s"
    assert again.split("\r\x1b[2K")[1:] == ["archive restarting · verify 12 behind"]


@pytest.mark.parametrize("behind", [9, 123_456_789])
def test_every_job_is_seen_at_80_columns(behind: int) -> None:
    facts = {
        "state": "running",
        "rows_per_second": 98765,
        "behind": behind,
        "batch_seconds": 12.5,
        "restarts": 12,
    }
    jobs = [{"job": name, **facts} for name in ("archive", "verify", "measure")]
    jobs[1]["findings"] = 3
    line = live_line(jobs, 80)
    assert len(line) < 80
    assert [part.split(" ")[0] for part in line.split(" · ")] == ["archive", "verify", "measure"]
    assert "3 findings" in line
    assert "…" not in line
    assert len(live_line(jobs, 10)) < 10


def test_ctrl_c_while_spark_starts_prints_no_traceback() -> None:
    program = """
import logging, os, signal
from types import SimpleNamespace
from headrace.cli.operate.pipeline.run import stop_on_signals
from headrace.cli.terminal.stderr import LogFormat, LogLevel, log_to_stderr

log_to_stderr(LogFormat.TEXT, LogLevel.INFO)
stop_on_signals(SimpleNamespace(starting=True, stop=lambda: None), watched=True)
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    # As Py4J does while it waits for the JVM.
    logging.getLogger("py4j.clientserver").exception("KeyboardInterrupt while sending command.")
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
