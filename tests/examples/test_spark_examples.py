"""The examples for Spark do what they say, against a real hub."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.hubprocess import HubProcess

import headrace

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 280


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path_factory.mktemp("hub")) as running:
        with linked(running) as link:
            for amount in (100.0, -30.0, -80.0):
                link.publish(
                    b"booking", topic="bank", attributes={"account": "ada"}, numbers={"amount": amount}
                )
            link.publish(b"booking", topic="bank", attributes={"account": "alan"}, numbers={"amount": 5.0})
            for lat, lon in ((47.37, 8.54), (46.948, 7.44)):
                link.publish(
                    b"", topic="road", attributes={"vehicle": "42"}, numbers={"lat": lat, "lon": lon}
                )
            link.publish(b"", topic="road", attributes={"vehicle": "7"}, numbers={"lat": 0.0, "lon": 0.0})
        yield running


def linked(hub: HubProcess) -> Any:
    return headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}")


Run = Callable[[str, HubProcess], None]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run an example in the session that all tests share, with files in a directory of its own."""
    jvm, context = spark.sparkContext._jvm, spark.sparkContext._jsc
    assert jvm is not None
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(str(tmp_path)))

    def run_here(name: str, hub: HubProcess) -> None:
        monkeypatch.setattr(sys, "argv", [name, "--once", hub.doors["tube_tcp"]])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    yield run_here
    files.setWorkingDirectory(before)


def run_alone(name: str, hub: HubProcess, directory: Path) -> None:
    """Run an example as its docstring says to."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, "--once", hub.doors["tube_tcp"]],
        cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def service(hub: HubProcess, name: str) -> dict[str, Any]:
    with linked(hub) as link:
        value: dict[str, Any] = json.loads(link.service(name))
        return value


@pytest.mark.parametrize(
    ("name", "attribute", "numbers"),
    [("spark_balances.py", "account", ["amount"]), ("spark_fleet.py", "vehicle", ["lat", "lon"])],
)
def test_what_an_example_says_to_publish_is_what_it_looks_for(
    tmp_path: Path, name: str, attribute: str, numbers: list[str]
) -> None:
    said = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
    (line,) = [line.strip() for line in said.splitlines() if line.strip().startswith("headrace pub")]
    (watched,) = re.findall("headrace services watch [a-z]+/(.+)", said)
    with HubProcess.start(tmp_path) as hub:
        url = f"tube://{hub.doors['tube_tcp']}"
        subprocess.run([sys.executable, "-m", *shlex.split(line), "--url", url], check=True, timeout=SECONDS)
        with linked(hub) as link:
            ((message,),) = [rows.to_pylist() for rows in link.read(1)]
    assert dict(message["attributes"]) == {attribute: watched}
    assert sorted(dict(message["numbers"])) == numbers


def test_topics(hub: HubProcess, run: Run) -> None:
    run("spark_topics.py", hub)
    assert 1 <= service(hub, "counts/bank")["count"] <= 4
    assert 1 <= service(hub, "counts/road")["count"] <= 3


@pytest.mark.slow
def test_balances_are_kept_over_restarts(hub: HubProcess, run: Run, tmp_path: Path) -> None:
    run_alone("spark_balances.py", hub, tmp_path)
    assert service(hub, "balance/ada") == {"balance": -10.0, "bookings": 3}
    assert service(hub, "balance/alan") == {"balance": 5.0, "bookings": 1}
    with linked(hub) as link:
        link.publish(b"booking", topic="bank", attributes={"account": "ada"}, numbers={"amount": 50.0})
        run("spark_balances.py", hub)
        told = [
            json.loads(each) for rows in link.read(topic="overdrawn") for each in rows["payload"].to_pylist()
        ]
    assert service(hub, "balance/ada") == {"balance": 40.0, "bookings": 4}
    assert told == [{"account": "ada", "balance": -10.0}]


def test_fleet(hub: HubProcess, run: Run) -> None:
    run("spark_fleet.py", hub)
    found = service(hub, "fleet/42")
    assert (found["lat"], found["lon"], found["positions"]) == (46.948, 7.44, 2)
    assert found["fences"] == ["bern", "bern station"]
    assert service(hub, "fleet/7")["fences"] == []
