"""What our code does for the Python processes that Spark runs it in.

Spark's daemon collects garbage between any two tasks of a worker, all generations of it. With PySpark, Arrow and this
package imported there is much to look through and nothing to find: some 40 ms, for which the next task waits, several
times in every micro-batch. What is there once the first task is done stays: it is put out of the collector's sight.
"""

from __future__ import annotations

import gc

_settled: set[str] = set()


def settle(kind: str) -> None:
    """A task of some kind is done in this process: what it imported and made to be kept is not looked through again.

    Once for each kind: a task that is like an earlier one brings nothing to stay.
    """
    if kind not in _settled:
        _settled.add(kind)
        gc.freeze()
