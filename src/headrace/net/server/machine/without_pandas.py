"""Arrow without pandas.

pyarrow imports pandas, where it is installed, as soon as an array is made of Python values, to see whether they are a
Series: a third of a second and 36 MB that a hub has no use for.
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
    """Have pyarrow do without pandas in this process; other code can still import it.

    It is for a process that runs none of its user's code: ``to_pandas()`` fails afterwards.
    """
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        # pyarrow tries once, and remembers.
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
