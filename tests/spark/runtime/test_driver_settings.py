"""How many tasks run at a time, as the source learns it when it plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.platforms import usable_cores
from headrace.spark.runtime import driver_settings
from headrace.spark.runtime.driver_settings import size_of, tasks_at_a_time
from headrace.spark.runtime.session import _environment, _surroundings

SCRIPT = Path(__file__).with_name("planned_partitions.py")


@pytest.mark.slow
@pytest.mark.spark
def test_plans_are_for_the_sessions_size_however_the_source_was_registered() -> None:
    with _environment(_surroundings("local[5]", running=False)):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "local[5]"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["5", "5", "5"]


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, None),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[*]"}, usable_cores()),
        ({"spark.master": "local[ 3 , 2 ]"}, 3),
        ({"spark.master": "local[3]", "spark.default.parallelism": "7"}, 7),
        ({"spark.master": "yarn", "spark.executor.instances": "4"}, 4),
        (
            {
                "spark.master": "yarn",
                "spark.dynamicAllocation.maxExecutors": "4",
                "spark.executor.cores": "2",
            },
            8,
        ),
        ({"spark.master": "k8s://x", "spark.executor.instances": "many"}, None),
        ({"spark.master": "spark://x:7077", "spark.cores.max": "0"}, None),
    ],
)
def test_settings_that_say_how_many(settings: dict[str, str], size: int | None) -> None:
    assert size_of(settings) == size


def test_without_a_jvm_it_is_what_the_session_said_or_this_machine() -> None:
    driver_settings.driver_settings.cache_clear()
    assert tasks_at_a_time() == usable_cores()
    assert tasks_at_a_time(17) == 17


def test_settings_are_read_from_the_file_that_the_driver_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Kubernetes; other drivers have those of their machine."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.cores.max 9\nspark.cores.max   6\nspark.executor.cores=2\nother 3\n"
    )
    (tmp_path / "spark.properties").write_text(
        "#Java wrote this\nspark.master=k8s\\://https\\://10.0.0.1\\:443\nspark.executor.instances=5\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    machine = {"spark.cores.max": "6", "spark.executor.cores": "2"}
    assert driver_settings._of_file(["java", "--name", "x"], tmp_path) == machine
    assert driver_settings._of_file(["java", "--properties-file"], tmp_path) == machine
    for name in ("spark.properties", str(tmp_path / "spark.properties")):
        given = driver_settings._of_file(["java", "--properties-file", name], tmp_path)
        assert given == {"spark.master": "k8s://https://10.0.0.1:443", "spark.executor.instances": "5"}
    assert driver_settings._of_file(["java", "--properties-file", "gone"], tmp_path) == {}


@pytest.mark.parametrize(
    "main", ["deploy.SparkSubmit", "deploy.yarn.ApplicationMaster", "deploy.worker.Worker"]
)
def test_the_drivers_jvm_is_found_among_the_parents(tmp_path: Path, main: str) -> None:
    """A process stands for the JVM: it has its arguments."""
    (tmp_path / "spark.properties").write_text("spark.executor.instances 5\n")
    work = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', "
        "'from headrace.spark.runtime.driver_settings import driver_settings; print(len(driver_settings()))'])"
    )
    arguments = [f"org.apache.spark.{main}", "--properties-file", "spark.properties", "--conf", "spark.b=1"]
    done = subprocess.run(
        [sys.executable, "-c", work, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["0" if main.endswith("Worker") else "2"]
