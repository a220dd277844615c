"""What is done in Spark's Python processes between tasks."""

from __future__ import annotations

import gc
import socket
from collections import Counter
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from headrace.spark.runtime import python_workers


def test_what_the_first_tasks_of_a_kind_leave_is_not_looked_through_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(python_workers, "_tasks_done", Counter())
    for kind in ("read", "read", "write", "read", "read", "write", "write"):
        python_workers.hide_from_collector(kind)
    assert len(frozen) == 4


def gone(_sock: socket.socket, _authenticated: bool) -> int:
    raise BrokenPipeError(32, "Broken pipe")


def test_a_worker_that_is_let_go_says_nothing() -> None:
    with socket.socket() as sock:
        assert python_workers.quiet(gone)(sock, True) == 1
        assert python_workers.quiet(lambda _sock, _authenticated: 0)(sock, True) == 0


def test_processes_that_plan_end_quietly_too() -> None:
    main = ModuleType("__main__")
    main.worker = gone  # type: ignore[attr-defined]
    main.__spec__ = ModuleSpec("somebody.else", None)
    python_workers.end_quietly(main)
    assert main.worker is gone
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    python_workers.end_quietly(main)
    with socket.socket() as sock:
        assert main.worker(sock, True) == 1
