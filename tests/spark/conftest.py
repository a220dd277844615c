"""One Spark session for all tests of a process: a JVM takes seconds to start and a gigabyte to live in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.hubs import Hub

from headrace.spark import session
from headrace.spark.links import close_links


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("local[2]", app="headrace tests", memory="1g")
    yield made
    made.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Hub]]:
    """Start hubs, each under a name of its own; they end with the test."""
    hubs: list[Hub] = []

    def begin(*sets: str, name: str = "hub") -> Hub:
        hubs.append(Hub.start(tmp_path / name, *sets))
        return hubs[-1]

    try:
        yield begin
    finally:
        close_links()
        for hub in hubs:
            hub.__exit__(None, None, None)


@pytest.fixture
def hub(start: Callable[..., Hub]) -> Hub:
    return start()
