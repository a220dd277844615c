"""How a hub's process keeps the memory that it has used.

Large messages and staged rows come and go, tens of megabytes at a time. glibc gives such memory back to the system as
soon as it is free, and gets it again with the next message: a fault and a page of zeros for every 4 KiB, which costs
five times as much as copying the message in. A hub that has once needed the memory soon needs it again, so it keeps it,
up to a bound.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

KEPT_BYTES: Final = 256 << 20
"""How much may stay unused at the end of the heap: what staged rows may take. What lies before memory that is in use
stays as well, as it always did."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MMAP_BYTES: Final = 32 << 20
"""What is larger than this is given back at once whatever is set; it is the most that glibc takes."""


_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
"""By these whoever starts a process says how glibc is to treat its memory."""


def keep_memory() -> bool:
    """Have this process keep what it has used; return whether that is so.

    It is not where another C library is used, or where the environment says otherwise.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _VARIABLES):
        return False
    libc = ctypes.CDLL(None)
    settings = {
        # One heap for all threads: each would keep as much in one of its own.
        _M_ARENA_MAX: 1,
        # One without the other would be undone by glibc's own guess at the first large message.
        _M_TRIM_THRESHOLD: KEPT_BYTES,
        _M_MMAP_THRESHOLD: _MMAP_BYTES,
    }
    return all(libc.mallopt(name, value) for name, value in settings.items())
