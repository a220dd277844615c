"""What a type checker knows of the public names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_users_program_is_fully_typed() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/typed/program.py"],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (
        0,
        "Success: no issues found in 1 source file\n",
    )
