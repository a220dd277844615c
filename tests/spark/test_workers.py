"""What is done in Spark's Python processes between tasks."""

from __future__ import annotations

import gc
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from headrace.spark import workers


def test_what_the_first_task_of_a_kind_leaves_is_not_looked_through_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(workers, "_settled", set())
    for kind in ("read", "read", "write", "read"):
        workers.settle(kind)
    assert len(frozen) == 2


def test_a_worker_that_is_let_go_says_nothing() -> None:
    script = """
import socket
from pyspark import daemon
from headrace.spark import daemon as ours
def gone(sock, authenticated):
    raise BrokenPipeError(32, "Broken pipe")
ours._work = gone
assert ours.worker(socket.socket(), True) == 1
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


def test_processes_that_plan_end_quietly_too() -> None:
    def gone(_sock: object, _authenticated: bool) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    main = ModuleType("__main__")
    main.worker = gone  # type: ignore[attr-defined]
    main.__spec__ = ModuleSpec("somebody.else", None)
    workers.end_quietly(main)
    assert main.worker is gone
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    workers.end_quietly(main)
    quiet = main.worker
    assert quiet(None, True) == 1
    workers.end_quietly(main)
    assert main.worker is quiet
