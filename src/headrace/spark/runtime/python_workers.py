"""What our code does for the Python processes that Spark runs it in.

Spark's daemon collects garbage between any two tasks of a worker, all generations of it. With PySpark, Arrow and this
package imported there is much to look through and nothing to find: some 40 ms, for which the next task waits, several
times in every micro-batch. What is there once the first task is done stays: it is put out of the collector's sight. So
is what is there once the second is: behind our part of the first, Spark may have imported more (pandas, when it packs
what a task returns).
"""

from __future__ import annotations

import gc
import socket
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Final, TypeAlias

Work: TypeAlias = Callable[[socket.socket, bool], int]
"""What PySpark's daemon has a worker do: tasks that come over a socket, until it is closed; its exit code."""

_TASKS: Final = 2
"""Of each kind: a task that is like these brings nothing to stay."""

_settled: Counter[str] = Counter()


def settle(kind: str) -> None:
    """A task of some kind is done in this process: what it imported and made to be kept is not looked through again."""
    if _settled[kind] < _TASKS:
        _settled[kind] += 1
        gc.freeze()


def quiet(work: Work) -> Work:
    """A worker's ``work`` that ends without a trace when Spark lets go of the worker.

    A worker waits for its next task. Where it is connected by a Unix socket it finds, when Spark closes that, nobody to
    tell about it, and PySpark prints the error of that as if something had gone wrong.
    """

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except BrokenPipeError:
            return 1

    return worker


def end_quietly(main: ModuleType) -> None:
    """Have the workers of a process end so, if ``main`` is Spark's daemon.

    Those that plan are Spark's own, whatever settings say; others are started by :mod:`headrace.spark.runtime.daemon`.
    """
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        main.worker = quiet(main.worker)  # type: ignore[attr-defined]


# Once in a process, when it first has to do with our sources.
end_quietly(sys.modules["__main__"])
