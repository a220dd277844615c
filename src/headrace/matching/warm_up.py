"""Having the kernels at hand, before anybody has to wait for them.

Numba loads kernels from its cache, which takes a moment, or compiles them, which takes a minute the first time after an
installation. That is nothing for an event loop: where :func:`is_cold`, :func:`warm` is for a thread, as early as can
be.
"""

from __future__ import annotations

import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Final

from headrace.matching.matcher import Matcher
from headrace.matching.matches import CLIENT_BYTES
from headrace.message import Batch, Run
from headrace.wire.sdk.predicate import Between, Equals

_KERNELS: Final = "headrace.matching.kernels"
"""The module of kernels that takes longest."""


def is_cold() -> bool:
    """Whether kernels may have to be compiled, as far as can be seen without loading them.

    Numba caches them beside their modules. Where it may not write there it does so elsewhere, and they count as cold.
    """
    if _KERNELS in sys.modules:
        return False
    spec = find_spec(_KERNELS)
    if spec is None or spec.origin is None:
        return True
    source = Path(spec.origin)
    written = source.stat().st_mtime
    cached = Path(cache_from_source(spec.origin)).parent.glob(f"{source.stem}.*.nbi")
    return not any(index.stat().st_mtime >= written for index in cached)


def warm() -> None:
    """Load every kernel, and compile those that numba's cache has not."""
    matcher = Matcher()
    matcher.subscribe(bytes(CLIENT_BYTES), {"a": Equals("a"), "b": Between(0, 1)})
    matcher.rebuild(everything=True)
    matcher.match(Batch(Run.one(b"")))
