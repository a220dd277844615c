"""Spark Connect: what works through a client without a JVM, and what says that it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.spark.options import HubOptions
from headrace.spark.runner import Pipeline, PipelineRequest
from headrace.spark.runtime.session import _environment, _surroundings

SCRIPT = Path(__file__).with_name("connect_client.py")


@pytest.mark.slow
@pytest.mark.spark
def test_read_write_register_and_streams_through_connect(tmp_path: Path) -> None:
    with _environment(_surroundings("local[2]", running=False)):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["100", "100", "100", "100", "refused", "3"]


def test_jobs_say_that_they_need_a_jvm() -> None:
    with pytest.raises(UsageError, match="which a client of Spark Connect has not"):
        Pipeline(PipelineRequest(["measure"], HubOptions(), master="sc://127.0.0.1:15002"))
