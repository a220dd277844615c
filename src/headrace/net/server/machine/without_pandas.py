"""Keeps pyarrow from importing pandas.

When pyarrow makes an array of Python values, it imports pandas, if installed, to see whether they are a Series. That
costs a third of a second and 36 MB, for nothing that a hub uses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    """Finds no pandas."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=name)
        return None


def keep_pandas_out() -> None:
    """Make pyarrow work without pandas in this process; other code can still import pandas.

    Use it only in a process that runs no user code: ``to_pandas()`` fails afterwards.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        # pyarrow tries once, and remembers.
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
