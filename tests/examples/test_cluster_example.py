"""The example of a cluster, as somebody starts it who has never seen one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forking import completed
from tests.hubprocess import STOP_SECONDS
from tests.ports import lasting_row
from tests.system.observing import eventually

import headrace
from headrace.errors import HeadraceError

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster" / "run.py"


@pytest.fixture
def example(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    base = lasting_row(*(100 * node + door for node in range(3) for door in range(11)))
    command = [sys.executable, str(EXAMPLE), "--data", str(tmp_path), "--port", str(base)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, base
        finally:
            if process.poll() is None:
                process.terminate()


@pytest.mark.slow
def test_three_nodes_start_with_one_command_and_end_with_ctrl_c(
    example: tuple[subprocess.Popen[str], int],
) -> None:
    process, base = example
    hosts = ",".join(f"127.0.0.1:{base + 100 * node + 8}" for node in range(3))

    def published() -> bool:
        try:
            with headrace.connect_sync(f"tube://{hosts}") as link:
                first, last = link.publish([b"hello"])
                return bool(first == last)
        except HeadraceError:
            return False

    eventually("the cluster takes a message", published)
    done = completed(["cluster", "status", "--url", f"tube://{hosts}", "--json"], seconds=60)
    facts = json.loads(done.stdout)
    assert {node["name"] for node in facts["nodes"]} == {"a", "b", "c"}
    assert facts["primary"] in ("a", "b", "c")
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=STOP_SECONDS)
    # Each of them was told once, and stopped in good order.
    assert process.returncode == 0
    assert f"headrace pub --url tube://{hosts}" in printed
    for node in "abc":
        assert any(line.startswith(f"{node}: ") and "stopping" in line for line in said.splitlines())
