"""The archive equals the log although its driver, its JVM and the hub are killed again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.archive.tables import archived
from tests.conftest import SOAK
from tests.hubprocess import HubProcess

import headrace
from headrace.errors import HeadraceError
from headrace.message import SCHEMA
from headrace.spark import history

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 200.0
KILLS = 8 if SOAK else 2
"""Of the driver with its JVM; every second time the hub is killed before."""


def rows(path: Path) -> int:
    """How many there are, by what the table says."""
    return archived(path, ["seq"]).num_rows


def seen_by_others(spark: SparkSession, path: Path) -> list[tuple[int, int, int, int]]:
    """How many messages, how many different ones, the first and the last: by Spark, DuckDB and polars."""
    counted = "count(*), count(distinct seq), min(seq), max(seq)"
    by_spark = history(spark, str(path)).selectExpr(*counted.split(", ")).collect()[0]
    messages = DeltaTable(path).to_pyarrow_dataset()
    by_duckdb = duckdb.from_arrow(messages).query("messages", f"select {counted} from messages").fetchall()[0]
    seqs = polars.scan_delta(str(path)).select("seq").collect()["seq"]
    by_polars = (len(seqs), seqs.n_unique(), seqs.min(), seqs.max())
    return [(each[0], each[1], each[2], each[3]) for each in (by_spark, by_duckdb, by_polars)]


def whole(hub: HubProcess) -> pa.Table:
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        return pa.Table.from_batches(link.read(1), SCHEMA)


@contextmanager
def traffic(hub: HubProcess) -> Iterator[None]:
    """Messages without end, whatever happens to the hub."""
    over = threading.Event()

    def publish() -> None:
        number = 0
        while not over.is_set():
            try:
                with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}", timeout=5.0) as link:
                    while not over.wait(0.05):
                        link.publish(
                            [b"message %d" % each for each in range(number, number + 200)], topic="t"
                        )
                        number += 200
            except HeadraceError:
                continue

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def test_killed_again_and_again(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(7)
    path = tmp_path / "archive"
    with HubProcess.start(tmp_path / "hub") as hub:
        line = [
            sys.executable,
            "-m",
            "headrace",
            "pipeline",
            "run",
            "archive",
            "--servers",
            hub.doors["tube_tcp"],
        ]
        line += ["--param", f"path={path}", "--param", "interval=0.1"]
        with traffic(hub):
            for attempt in range(KILLS):
                before = rows(path)
                driver = subprocess.Popen(
                    line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
                )
                try:
                    deadline = time.monotonic() + SECONDS
                    while rows(path) <= before:
                        assert driver.poll() is None
                        assert time.monotonic() < deadline
                        time.sleep(0.1)
                    # While it is being written, every reader sees each number once, from the first on.
                    for count, different, first, last in seen_by_others(spark, path):
                        assert (count, different, first) == (last, last, 1)
                    time.sleep(random.uniform(0, 1.5))  # the moment is what is tried here
                    if attempt % 2:
                        hub.kill9()
                        hub.restart()
                finally:
                    os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait()
                seen = archived(path)
                assert seen == whole(hub).slice(0, seen.num_rows)
        done = subprocess.run(
            [*line, "--available-now"], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        assert archived(path) == whole(hub)
        head = whole(hub).num_rows
        assert seen_by_others(spark, path) == [(head, head, 1, head)] * 3
