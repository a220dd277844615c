"""How a function becomes a kernel: compiled once for explicit types, callable without the interpreter's lock.

Signatures are explicit, so nothing is compiled while the hub runs: importing a module of kernels compiles them once,
which takes seconds, and finds them in numba's cache from then on. Each kernel without its decorator (``.py_func``) is
its own reference: plain Python on the same arrays.

Numba renews a kernel's cache when the kernel's own file changes, and not when a function or constant of another file
does: a module of kernels has its own copy of constants, or its package removes stale caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba.extending

F = TypeVar("F", bound=Callable[..., object])

# Numba is typed in parts only; here it is all taken as untyped.
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
        made: F
        try:
            made = _njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:
            # Numba found no directory to keep its cache in: then each start compiles, for some seconds.
            made = _njit(signature, nogil=True)(function)
        return made

    return compiled


def inline(function: F) -> F:
    """Let kernels call a function that plain Python can call too."""
    shared: F = extending.register_jitable(function)
    return shared
