"""Hubs and runs for tests of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.hubprocess import HubProcess

from headrace.spark import register
from headrace.spark.jobs.job import JobRun, RunningJob, find
from headrace.spark.options import HubOptions

Play = Callable[..., Mapping[str, object]]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def play(spark: SparkSession, tmp_path: Path) -> Play:
    """Run a job over what there is now, to its end; returns its facts."""
    register(spark)

    def run(job: str, servers: str, **params: Any) -> Mapping[str, object]:
        told = {
            "path": str(tmp_path / job),
            **{name.rstrip("_"): str(value) for name, value in params.items()},
        }
        running = JobRun(spark, job, HubOptions(servers), told, find(job).PARAMETERS, available_now=True)
        result = find(job).start(running)
        if not isinstance(result, RunningJob):
            return result
        try:
            result.query.awaitTermination()
        finally:
            result.query.stop()
        return result.facts()

    return run
