"""The public conformance suite of the Durable Streams protocol, against a running hub.

The suite is an npm package; it is installed once, beside this repository's other tools.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.hubprocess import HubProcess

ROOT = Path(__file__).parents[3]
INSTALLED = ROOT / ".durable-streams"
PACKAGE = "@durable-streams/server-conformance-tests"
VERSION = "0.3.6"
TESTS = 332
"""Tests of that version that are run: all but those of subscriptions, which are optional and a draft."""

SUITE = f"""
import {{ runConformanceTests }} from "{PACKAGE}";
runConformanceTests({{ baseUrl: process.env.HUB_URL, longPollTimeoutMs: 4000 }});
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def suite() -> Path:
    """The folder of a test file beside the installed package."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NO NPM: the Durable Streams suite is not run. Install node and npm (apt install npm)")
    folder = INSTALLED / VERSION
    if not (folder / "node_modules" / PACKAGE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{PACKAGE}@{VERSION}"]
        done = subprocess.run(install, capture_output=True, text=True, timeout=200, check=False)
        if done.returncode:
            pytest.skip(f"NO REGISTRY: the Durable Streams suite cannot be installed: {done.stderr[-500:]}")
    (folder / "suite.test.mjs").write_text(SUITE)
    return folder


def test_the_suite_passes_whole(suite: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with HubProcess.start(tmp_path, "limits.poll_seconds=1") as hub:
        command = ["node", "node_modules/vitest/vitest.mjs", "run", "suite.test.mjs", "--testTimeout=60000"]
        done = subprocess.run(
            [*command, "--reporter=json", f"--outputFile={report}"],
            cwd=suite,
            env={**os.environ, "HUB_URL": f"http://{hub.doors['http']}", "CI": "true"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    result = json.loads(report.read_text())
    failed = [
        f"{test['fullName']}: {test['failureMessages'][0][:300]}"
        for file in result["testResults"]
        for test in file["assertionResults"]
        if test["status"] == "failed"
    ]
    assert failed == [], done.stdout[-2000:]
    assert result["numPassedTests"] == TESTS
