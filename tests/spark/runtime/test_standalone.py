"""On a real master with two workers: the jobs do what they do elsewhere, and executors may be killed at any moment."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests import jvm
from tests.archive.tables import archived
from tests.conftest import SOAK
from tests.forking import completed
from tests.ports import lasting_port
from tests.spark.hubs import Hub, until

from headrace.errors import UsageError
from headrace.message import SCHEMA
from headrace.spark.runtime.standalone import command

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[3] / "examples" / "spark-cluster" / "cluster.py"
DRIVER = Path(__file__).with_name("copying.py")
SECONDS = 280
KILLS = 8 if SOAK else 2


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    spec = importlib.util.spec_from_file_location("cluster", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in ({} if SOAK else jvm.cluster_variables()).items():
                patch.setenv(name, value)
            url = stack.enter_context(example.cluster(lasting_port(), memory="1g"))
        yield url


def test_a_port_that_is_taken_is_told_at_once() -> None:
    """Spark's master takes the next one then, and the workers go to whoever has this one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, EXAMPLE, str(port)], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"port {port} is taken: python {EXAMPLE} PORT chooses another\n"


def test_a_cluster_ends_with_the_process_that_started_it() -> None:
    """However that ends: a killed one cannot stop what it has started."""
    example = subprocess.Popen([sys.executable, EXAMPLE, str(lasting_port())], stdout=subprocess.DEVNULL)
    started: list[psutil.Process] = []
    try:
        parent = psutil.Process(example.pid)

        def jvms() -> list[psutil.Process]:
            return [
                each for each in parent.children() if "org.apache.spark.deploy" in " ".join(each.cmdline())
            ]

        until(lambda: len(jvms()) == 3)
        started = parent.children()
    finally:
        example.kill()
        example.wait()
    _, left = psutil.wait_procs(started, timeout=30)
    for each in left:
        each.kill()
    assert not left


def whole(hub: Hub) -> pa.Table:
    with hub.link() as link:
        return pa.Table.from_batches(link.read(1), SCHEMA)


def committed(path: Path) -> list[Path]:
    """The files of a stream's that Spark has committed, as its log has them; others may be there, of killed tasks."""
    logs = [log.read_text() for log in (path / "_spark_metadata").glob("[0-9]*")]
    entries = [json.loads(line) for log in logs for line in log.splitlines() if line.startswith("{")]
    return [Path(name) for name in sorted({entry["path"].removeprefix("file:") for entry in entries})]


def executors() -> list[int]:
    """The processes that do the tasks: the workers' children."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected master or worker"),
        (["slave"], "expected master or worker"),
        (["worker", "--cores", "1"], "needs its master's URL"),
    ],
)
def test_what_is_asked_wrongly(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        command(arguments)


def test_a_worker_works_where_it_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = command(["worker", "--cores", "1", "spark://10.0.0.1:7077"])
    assert line[1:] == [
        "org.apache.spark.deploy.worker.Worker", "--work-dir", f"{tmp_path}/spark-work", "--cores", "1",
        "spark://10.0.0.1:7077",
    ]  # fmt: skip
    assert "--work-dir" not in command(["worker", "-d", "here", "spark://10.0.0.1:7077"])


@pytest.mark.slow
def test_jobs_on_two_workers(master: str, hub: Hub, tmp_path: Path) -> None:
    hub.publish([b"x" * 100] * 50_000, topic="bulk")
    head = hub.head().head
    line = [sys.executable, "-m", "headrace", "pipeline", "run", "archive", "verify", "--available-now"]
    line += ["--servers", hub.servers, "--master", master, "--param", f"path={tmp_path}/out"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(each) for each in done.stdout.splitlines()]
    order = [each["event"] for each in events if each["event"] != "progress"]
    assert order == ["starting", "started", "done", "done", "stopped"]
    for job in ("archive", "verify"):
        *before, last = [each for each in events if each.get("job") == job]
        assert (last["event"], last["state"]) == ("done", "done")
        assert before[-1]["through"] == last["through"] >= head
    kept = archived(tmp_path / "out" / "archive")
    assert kept.num_rows >= head
    assert kept == whole(hub).slice(0, kept.num_rows)
    assert ds.dataset(tmp_path / "out" / "verify", format="parquet").count_rows() == 0
    with hub.link() as link:
        assert link.holds() == {"archive": kept.num_rows + 1}
    told = completed(["pipeline", "status", "--servers", hub.servers, "--json"], seconds=60)
    assert json.loads(told.stdout)["state"] == "stopped"


@pytest.mark.slow
def test_executors_killed_at_random_moments(master: str, hub: Hub, tmp_path: Path) -> None:
    """Archive, sink and files have each message once, whichever executor is killed whenever."""
    rng = random.Random(20261116)
    sent: list[bytes] = []
    stderr = tmp_path / "driver.txt"
    with stderr.open("wb") as errors:
        driver = subprocess.Popen(
            [sys.executable, DRIVER, master, hub.servers, tmp_path],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    assert driver.stdin is not None
    try:
        with driver.stdin as stdin, hub.link() as link:

            def publish() -> None:
                batch = [f"message {len(sent) + each}".encode() for each in range(rng.randrange(1, 40))]
                link.publish(batch, topic="in")
                sent.extend(batch)

            def copied() -> int:
                assert driver.poll() is None, stderr.read_text()[-4000:]
                return sum(rows.num_rows for rows in link.read(1, topic="out"))

            publish()
            # A driver, executors and their Python processes have to start first.
            until(lambda: copied() == len(sent), seconds=150)
            killed: set[int] = set()
            for index in range(KILLS):
                # A moment is so many messages after another executor has come, or after work has gone on with it.
                until(lambda: set(executors()) - killed)
                if index % 2:
                    until(lambda: copied() == len(sent))
                for _ in range(rng.randrange(1, 120)):
                    publish()
                victim = rng.choice(sorted(set(executors()) - killed))
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)
                publish()
            assert len(killed) == KILLS
            until(lambda: copied() == len(sent))
            last = link.head().head
            until(lambda: archived(tmp_path / "archive").num_rows >= last)
            until(
                lambda: (
                    sum(pq.ParquetFile(file).metadata.num_rows for file in committed(tmp_path / "files"))
                    >= len(sent)
                )
            )
            stdin.close()
            assert driver.wait(60) == 0, stderr.read_text()[-4000:]
            out = [payload for rows in link.read(1, topic="out") for payload in rows["payload"].to_pylist()]
    finally:
        driver.kill()
        driver.wait()
    assert sorted(out) == sorted(sent)
    files = committed(tmp_path / "files")
    assert pq.read_table(files).sort_by("seq")["payload"].to_pylist() == sent
    kept = archived(tmp_path / "archive")
    assert kept == whole(hub).slice(0, kept.num_rows)
