"""The benchmark of one worker and two runs to its end; ``match`` reads each message once, in two tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.scaling import JOBS
from tests import jvm
from tests.conftest import SOAK


@pytest.mark.slow
@pytest.mark.spark
def test_a_cluster_of_two_workers(tmp_path: Path) -> None:
    """In a process of its own: this one's session has another master."""
    told = tmp_path / "figures.json"
    line = [sys.executable, "-m", "bench", "scaling", "--quick", "--json", str(told)]
    environ = {**os.environ, **({} if SOAK else jvm.cluster_variables())}
    done = subprocess.run(
        line,
        env=environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert told.exists(), done.stderr
    loop, *scaled, read = (
        {row["name"]: row for row in table["rows"]}
        for table in json.loads(told.read_text())["scaling"]["tables"]
    )
    assert loop["2 processes"]["ratio"] > 0
    assert len(scaled) == len(JOBS)
    assert all(job["2 workers"]["rows/s"] > 0 for job in scaled)
    assert read["2 workers"]["reads/message"] == 1.0
