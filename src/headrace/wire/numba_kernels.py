"""How a function becomes a kernel: compiled once for explicit types, callable without the interpreter's lock.

Signatures are explicit, so nothing is compiled while the hub runs: the first import of a kernel module compiles its
kernels, which takes seconds; later imports find them in numba's cache. Each kernel without its decorator (``.py_func``)
is its own reference: plain Python on the same arrays.

Numba recompiles a kernel when its own file changes, but not when a function or constant of another file does. So a
kernel module has its own copy of constants, or its package removes stale caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba.extending

F = TypeVar("F", bound=Callable[..., object])

# Numba is only partly typed; here all of it counts as untyped.
types: Any = numba.types
extending: Any = numba.extending
_njit: Any = numba.njit

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
OFFSETS_IN = types.Array(types.int32, 1, "C", readonly=True, aligned=False)
WIDE_IN = types.Array(types.int64, 1, "C", readonly=True)
BYTES = types.uint8[::1]
INTS = types.int32[::1]
INTS_2 = types.int32[:, ::1]
WIDE = types.int64[::1]
INDEX = types.intp


def kernel(signature: object) -> Callable[[F], F]:
    """Compile a function for these types."""

    def compiled(function: F) -> F:
        result: F
        try:
            result = _njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:
            # Numba found no directory for its cache: then each start compiles, for some seconds.
            result = _njit(signature, nogil=True)(function)
        return result

    return compiled


def inline(function: F) -> F:
    """Let kernels call a function that plain Python can call too."""
    shared: F = extending.register_jitable(function)
    return shared
