"""Spark's daemon of Python workers, whose workers end quietly (:mod:`headrace.spark.runtime.python_workers`).

The setting ``spark.python.daemon.module`` names it; see :data:`~headrace.spark.runtime.session.QUICK`.
"""

from __future__ import annotations

from pyspark import daemon

from headrace.spark.runtime.python_workers import end_quietly

if __name__ == "__main__":
    end_quietly(daemon)
    daemon.manager()
