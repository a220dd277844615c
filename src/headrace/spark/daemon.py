"""Spark's daemon of Python workers, but for one thing: a worker that Spark lets go of ends without a trace.

A worker waits for its next task. Where it is connected by a Unix socket (which is quicker: see
:data:`~headrace.spark.sessions.QUICK`) it finds, when Spark closes that, nobody to tell about it, and PySpark prints
the error of that as if something had gone wrong.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Do tasks until Spark lets go."""
    try:
        return _work(sock, authenticated)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
