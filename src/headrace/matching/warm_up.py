"""Loading the kernels before a message has to wait for them.

Numba loads kernels from its cache, which takes a moment, or compiles them, which takes half a minute after an
installation. Until then plain Python does their work, which is enough for some hundred subscriptions: where there are
more and kernels are cold (:func:`is_cold`), run :func:`warm` in a thread and wait for it.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from time import time
from typing import Final

from headrace.matching.matcher import Matcher
from headrace.matching.matches import CLIENT_BYTES
from headrace.message import Batch, Run
from headrace.wire.numba_kernels import is_loaded, load
from headrace.wire.sdk import fence, predicate, program, push_labels, region
from headrace.wire.sdk.predicate import Between, Equals

_KERNELS: Final = "headrace.matching.kernels"
"""The kernel module that takes longest to compile."""

_PACKAGE: Final = Path(__file__).parent

_SOURCES: Final = (
    *("kernels.py", "group_lookup.py", "attribute_reading.py", "row_filter.py", "sightings.py", "owners.py"),
    *("index/build.py", "index/grouping.py", "index/hashing.py", "index/layout.py", "index/merging.py"),
    *("index/planning.py", "index/segment.py", "index/shapes.py"),
    *(predicate.__file__, region.__file__, fence.__file__, program.__file__, push_labels.__file__),
)
"""The files whose code is compiled into kernels."""

_MODULES: Final = (
    *(f"headrace.matching.{source.removesuffix('.py').replace('/', '.')}" for source in _SOURCES[:-5]),
    push_labels.__name__,
)


def is_cold() -> bool:
    """Whether kernels may have to be compiled, as far as can be seen without loading them.

    Numba caches them beside their modules. If it cannot write there it caches elsewhere, and they count as cold.
    """
    if is_loaded(_KERNELS):
        return False
    spec = find_spec(_KERNELS)
    if spec is None or spec.origin is None:
        return True
    cached = Path(cache_from_source(spec.origin)).parent.glob(f"{Path(spec.origin).stem}.*.nbi")
    newest = _newest_source()
    return not any(index.stat().st_mtime >= newest for index in cached)


def remove_stale_caches() -> None:
    """Remove caches that are older than any source of kernels: numba checks a kernel's own file only."""
    newest = _newest_source()
    for index in _PACKAGE.rglob("__pycache__/*.nbi"):
        # We may lack the permission, or another process may have removed it.
        with contextlib.suppress(OSError):
            if index.stat().st_mtime < newest:
                index.unlink()


def _newest_source() -> float:
    """When a source was last changed; a time in the future, from another clock, is ignored."""
    times = ((_PACKAGE / source).stat().st_mtime for source in _SOURCES)
    now = time()
    return max((each for each in times if each <= now), default=0.0)


def warm() -> None:
    """Load every kernel, and compile those that numba has not cached."""
    for module in _MODULES:
        import_module(module)
    load(*_MODULES)
    matcher = Matcher()
    matcher.subscribe(bytes(CLIENT_BYTES), {"a": Equals("a"), "b": Between(0, 1)})
    matcher.rebuild(everything=True)
    matcher.match(Batch(Run.one(b"")))
