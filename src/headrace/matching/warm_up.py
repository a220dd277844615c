"""Loading the kernels before a message has to wait for them.

Numba loads kernels from its cache, which takes a moment, or compiles them, which takes a minute the first time after an
installation. That is too long for an event loop: where :func:`is_cold`, run :func:`warm` in a thread, as early as
possible.
"""

from __future__ import annotations

import contextlib
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from time import time
from typing import Final

from headrace.matching.matcher import Matcher
from headrace.matching.matches import CLIENT_BYTES
from headrace.message import Batch, Run
from headrace.wire.sdk import predicate
from headrace.wire.sdk.predicate import Between, Equals

_KERNELS: Final = "headrace.matching.kernels"
"""The module of kernels that takes longest."""

_PACKAGE: Final = Path(__file__).parent

_SOURCES: Final = (
    *("kernels.py", "group_lookup.py", "attribute_reading.py", "row_filter.py"),
    *("index/build.py", "index/grouping.py", "index/hashing.py", "index/layout.py", "index/merging.py"),
    *("index/planning.py", "index/segment.py", predicate.__file__),
)
"""The files that kernels are made of."""


def is_cold() -> bool:
    """Whether kernels may have to be compiled, as far as can be seen without loading them.

    Numba caches them beside their modules. Where it may not write there it does so elsewhere, and they count as cold.
    """
    if _KERNELS in sys.modules:
        return False
    spec = find_spec(_KERNELS)
    if spec is None or spec.origin is None:
        return True
    cached = Path(cache_from_source(spec.origin)).parent.glob(f"{Path(spec.origin).stem}.*.nbi")
    newest = _newest_source()
    return not any(index.stat().st_mtime >= newest for index in cached)


def remove_stale_caches() -> None:
    """Remove caches that are older than any source of kernels: numba looks at a kernel's own file only."""
    newest = _newest_source()
    for index in _PACKAGE.rglob("__pycache__/*.nbi"):
        # A cache that is not ours to remove stays; another process may have removed it.
        with contextlib.suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


def _newest_source() -> float:
    """When a source was last changed. One from the future, of another clock, says nothing."""
    times = ((_PACKAGE / source).stat().st_mtime for source in _SOURCES)
    now = time()
    return max((each for each in times if each <= now), default=0.0)


def warm() -> None:
    """Load every kernel, and compile those that numba's cache has not."""
    matcher = Matcher()
    matcher.subscribe(bytes(CLIENT_BYTES), {"a": Equals("a"), "b": Between(0, 1)})
    matcher.rebuild(everything=True)
    matcher.match(Batch(Run.one(b"")))
    import headrace.matching.row_filter  # noqa: F401 -- importing compiles
