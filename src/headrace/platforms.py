"""Features that not every operating system has, each with a substitute.

No module of Headrace imports at its top what a platform lacks, so every module can be imported wherever Python runs,
and clients run there too. A hub's log needs a POSIX system.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

_CHUNK: Final = 1 << 20
_KEEP_SIZE: Final = 1
"""``FALLOC_FL_KEEP_SIZE``."""
_PR_SET_PDEATHSIG: Final = 1
_EVERYTHING: Final = 1 << 20
"""Limit on open files to assume where the system does not tell one."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop: uvloop's where it is installed, which is twice as fast, or else asyncio's."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        # Of asyncio's own loops, the only one that watches datagram sockets on every platform.
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()


def end_with_parent() -> None:
    """Have the system end this process by SIGTERM when its parent ends, and what it becomes by ``exec``.

    Only on Linux; elsewhere a process outlives a parent that was killed. It is the thread that started this process
    whose end counts.
    """
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def lock_file(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file until it is closed; raises :class:`BlockingIOError` if another process holds it."""
    import fcntl

    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def sync_data(descriptor: int) -> None:
    """Wait until a file's content survives a power failure."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
        return
    import fcntl

    if hasattr(fcntl, "F_FULLFSYNC"):
        # On macOS fsync leaves the content in the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_path(path: str | os.PathLike[str]) -> None:
    """Put a file, or the names in a directory, on the disk, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve_bytes(descriptor: int, size: int) -> None:
    """Reserve disk space for the first ``size`` bytes of a file that is open for writing."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    for at in range(os.fstat(descriptor).st_size, size, _CHUNK):
        os.pwrite(descriptor, bytes(min(_CHUNK, size - at)), at)


def reserve_ahead(descriptor: int, offset: int, size: int) -> bool:
    """Reserve disk space for a file from ``offset`` on, which may be after its end; its size stays.

    Return ``False`` where the system or the disk cannot.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    fallocate = getattr(ctypes.CDLL(None), "fallocate64", None) or ctypes.CDLL(None).fallocate
    return not fallocate(descriptor, _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(size))


def allow_open_files(wanted: int) -> int:
    """Raise the limit on this process's open files towards ``wanted``, as far as allowed; return what it is then."""
    try:
        import resource
    except ImportError:
        return max(wanted, _EVERYTHING)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        except (ValueError, OSError):
            return soft
        return raised
    return max(wanted, _EVERYTHING) if soft == resource.RLIM_INFINITY else soft


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
