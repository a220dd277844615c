"""What our code does for the Python processes that Spark runs it in.

Spark's daemon collects garbage between any two tasks of a worker, all generations of it. With PySpark, Arrow and this
package imported there is much to look through and nothing to find: some 40 ms, for which the next task waits, several
times in every micro-batch. What is there once the first task is done stays: it is put out of the collector's sight.
"""

from __future__ import annotations

import gc
import socket
import sys
from types import ModuleType

_settled: set[str] = set()


def settle(kind: str) -> None:
    """A task of some kind is done in this process: what it imported and made to be kept is not looked through again.

    Once for each kind: a task that is like an earlier one brings nothing to stay.
    """
    if kind not in _settled:
        _settled.add(kind)
        gc.freeze()


def end_quietly(main: ModuleType) -> None:
    """Have a process of Spark's own daemon end without a trace when Spark lets go of it.

    The same as :mod:`headrace.spark.daemon`, for those processes that Spark starts by its own module whatever its
    settings say: they plan, and have nobody to tell when their socket is closed. ``main`` is their main module.
    """
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != "pyspark.daemon" or getattr(main.worker, "quiet", False):
        return
    work = main.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            code: int = work(sock, authenticated)
        except BrokenPipeError:
            return 1
        return code

    worker.quiet = True  # type: ignore[attr-defined]
    main.worker = worker  # type: ignore[attr-defined]


end_quietly(sys.modules["__main__"])
