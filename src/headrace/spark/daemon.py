"""Spark's daemon of Python workers, whose workers end without a trace (:func:`~headrace.spark.workers.end_quietly`).

The setting ``spark.python.daemon.module`` names it; see :data:`~headrace.spark.sessions.QUICK`.
"""

from __future__ import annotations

from pyspark import daemon

from headrace.spark.workers import end_quietly

if __name__ == "__main__":
    end_quietly(daemon)
    daemon.manager()
