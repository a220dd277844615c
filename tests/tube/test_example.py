from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "tube_echo.py"


def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("380000 bytes sent, 380000 came back") == 2


def test_the_example_says_how() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "what"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "talk tube://127.0.0.1:8081" in done.stderr
