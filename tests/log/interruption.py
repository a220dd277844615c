"""A failure at a chosen step: calls that change a directory are counted, and one of them is the last."""

from __future__ import annotations

import itertools
from typing import Any


class PowerFailureError(Exception):
    """The step that was to fail."""


class Interruption:
    """Wraps functions so that call number ``step`` of all of them together, counted from 0, raises ``error``."""

    def __init__(self, step: int, error: Exception | None = None) -> None:
        self._step = step
        self._error = PowerFailureError() if error is None else error
        self._steps = itertools.count()

    def __call__(self, original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if next(self._steps) == self._step:
                raise self._error
            return original(*args, **kwargs)

        return run
