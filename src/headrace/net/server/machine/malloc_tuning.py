"""Tuning malloc so that a hub keeps the memory it has used.

Large messages and staged rows take tens of megabytes at a time. glibc returns such memory to the system as soon as it
is free, and requests it again for the next message. That is a page fault for every 4 KiB, five times the cost of
copying the message. A hub soon needs the memory again, so it keeps it, up to a bound.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

KEPT_BYTES: Final = 256 << 20
"""Bytes that may stay unused at the end of the heap: as much as staged rows may take."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MMAP_BYTES: Final = 32 << 20
"""The largest threshold that glibc takes: larger blocks are given back at once."""

_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
"""Environment variables by which a user tunes glibc."""


def keep_memory() -> bool:
    """Make this process keep the memory it has used; return ``False`` with another C library or a user's own tuning."""
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _VARIABLES):
        return False
    libc = ctypes.CDLL(None)
    settings = {
        # One heap for all threads: with one each, each would keep as much.
        _M_ARENA_MAX: 1,
        # Both: setting one alone leaves the other to glibc, which adapts it at the first large message.
        _M_TRIM_THRESHOLD: KEPT_BYTES,
        _M_MMAP_THRESHOLD: _MMAP_BYTES,
    }
    return all(libc.mallopt(name, value) for name, value in settings.items())
