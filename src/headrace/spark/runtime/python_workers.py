"""Tuning the Python processes in which Spark runs our code: less garbage collection, and a quiet end.

After each task of a worker, Spark's daemon collects garbage of all generations. With PySpark, Arrow and this package
imported that takes some 40 ms, for which the next task waits, several times in every micro-batch. Objects that exist
after the first task stay, so they are hidden from the collector; and again after the second, since Spark may import
more after our part of the first (pandas, when it packs a task's result).

This module is also Spark's daemon of Python workers, by the setting ``spark.python.daemon.module``
(:data:`~headrace.spark.runtime.session.QUICK`): a worker that Spark dismisses ends without printing a trace. Executors
import the installed PySpark, for the reason that :mod:`~headrace.spark.runtime.python_command` gives.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Final, TypeAlias

Work: TypeAlias = Callable[[socket.socket, bool], int]
"""A worker's main function: does the tasks that come over a socket until it is closed; returns the exit code."""

_ARCHIVE: Final = "/pyspark/python/lib/pyspark.zip"
"""Where the pip package of PySpark has its archive, from the directory that has the package."""

_TASKS: Final = 2
"""Tasks of each kind after which nothing new stays."""

_tasks_done: Counter[str] = Counter()


def hide_from_collector(kind: str) -> None:
    """Hide what the first tasks of a kind left in this process from the garbage collector."""
    if _tasks_done[kind] < _TASKS:
        _tasks_done[kind] += 1
        gc.freeze()


def quiet(work: Work) -> Work:
    """Wrap a worker's main function so that it ends without a trace when Spark closes its socket.

    A worker that is waiting for a task reports the end of a Unix socket to that socket, fails, and PySpark prints the
    error as if something had gone wrong.
    """

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except BrokenPipeError:
            return 1

    return worker


def end_quietly(main: ModuleType) -> None:
    """Make the workers of a process end quietly if ``main`` is Spark's daemon.

    Workers that plan are started by Spark's own daemon, whatever the settings say; others by this module.
    """
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        main.worker = quiet(main.worker)  # type: ignore[attr-defined]


def without_archive(path: Sequence[str]) -> list[str]:
    """Return a path of modules without the archive of a PySpark that is installed on it, too.

    >>> without_archive(["/a/pyspark/python/lib/pyspark.zip", "/b", "/a"])
    ['/b', '/a']
    >>> without_archive(["/opt/spark/python/lib/pyspark.zip", "/a"])
    ['/opt/spark/python/lib/pyspark.zip', '/a']
    """
    return [each for each in path if not each.endswith(_ARCHIVE) or each.removesuffix(_ARCHIVE) not in path]


if __name__ == "__main__":
    # Started as the daemon that the setting ``spark.python.daemon.module`` names.
    sys.path[:] = without_archive(sys.path)
    from pyspark import daemon

    end_quietly(daemon)
    daemon.manager()
else:
    # Once in a process, when our sources are first used there.
    end_quietly(sys.modules["__main__"])
