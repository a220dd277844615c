"""Room in memory: past a mark publishers wait and newcomers are refused, before the system kills a process.

Everything that peers can pile up has its own bound, but the bounds of all may add up to more than there is. So the hub
looks at its own memory a few times a second. Past ``limits.memory`` it reads from no publisher, and every door but
``http`` refuses new connections and streams: connected peers are still sent what they wait for, which is what frees
memory, and the health checks answer. Below :data:`RELIEF` of the mark everything continues.

What counts is memory that only this process has: pages of the log's files that are mapped can be dropped by the system
at any time.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import platform
from collections.abc import Callable
from typing import Final

from headrace.hub.sequence import Hub
from headrace.net.server.accepting.admission import Admission

logger = logging.getLogger("headrace")

RELIEF: Final = 0.95
"""The share of the mark below which there is room again."""

_TRIM_SECONDS: Final = 5.0
"""Seconds between attempts to give unused memory back to the system, while there is too little."""


class MemoryRoom:
    """Compares the hub's memory with its mark; ``most`` is ``None`` for no mark."""

    def __init__(
        self, hub: Hub, admission: Admission, most: int | None, used: Callable[[], int] | None = None
    ) -> None:
        self.used = 0
        """Bytes at the last look."""
        self.most = most
        self.problem: str | None = None
        """Why publishers wait, if they do."""
        self._hub = hub
        self._admission = admission
        self._read = used or own_memory()
        self._tried_at = -_TRIM_SECONDS

    def look(self, now: float) -> None:
        """Make publishers wait, or let them continue."""
        self.used = self._read()
        if self.most is None:
            return
        if self.used > self.most:
            if now - self._tried_at >= _TRIM_SECONDS:
                self._tried_at = now
                give_back()
                self.used = self._read()
            if self.used > self.most:
                self._shut()
        elif self.problem is not None and self.used < RELIEF * self.most:
            self._open()

    def _shut(self) -> None:
        told = (
            f"the hub takes {self.used >> 20} MiB of memory, over {(self.most or 0) >> 20} (limits.memory):"
            " publishers wait, and new connections are refused"
        )
        if self.problem is None:
            self._hub.counters.add("memory_shortages")
            logger.error("%s", told)
        self.problem = self._admission.shut = told
        self._hub.short_of_memory = True

    def _open(self) -> None:
        logger.warning("there is room in memory again: publishers continue")
        self.problem = self._admission.shut = None
        self._hub.short_of_memory = False
        self._hub.relieved()


def own_memory() -> Callable[[], int]:
    """Return a function that reads how many bytes only this process uses; 0 if the system does not tell."""
    if not os.path.exists("/proc/self/statm"):  # noqa: PTH110 -- as below
        return lambda: 0
    page = os.sysconf("SC_PAGE_SIZE")

    def read() -> int:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 -- a few times a second
            _, resident, shared, *_ = file.read(256).split()
        return (int(resident) - int(shared)) * page

    return read


def give_back() -> None:
    """Give memory that is no longer used back to the system, as far as that is possible."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
