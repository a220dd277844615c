"""The thread that appends to the log, and a cheap way to wait for it.

An append that waits for the disk must not hold the event loop. But every message needs an append, and an ordinary
executor takes longer to hand the work over than the append takes. Here each side waits for a byte in a pipe. That wakes
the other thread on the processor that is about to be free, and takes some 7 µs there and back; locks take 15 to 50.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

_MOST_SIGNALS: Final = 4096
"""Most bytes read from a pipe at a time; a byte only means that there is something to look for."""


class Writer(Protocol):
    """Does work one after another, in the order in which it comes."""

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        """Queue work; raise ``RuntimeError`` after a shutdown."""

    def wait(self, future: Future[Any], seconds: float) -> bool:
        """Wait for work, at most so long; return whether it is over."""

    def shutdown(self, wait: bool = True) -> None:
        """Take no more work."""


class WriterThread:
    """One thread, started with its first work. Only the event loop's thread submits and waits."""

    def __init__(self) -> None:
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wanted, self._want = os.pipe()
        self._ended, self._end = os.pipe()
        # If nobody waits, these signals pile up; the next waiter skips them.
        os.set_blocking(self._ended, False)
        os.set_blocking(self._end, False)
        self._signals = select.poll()
        self._signals.register(self._ended, select.POLLIN)
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        """Queue work; it is done after everything submitted before it."""
        if self._closed:
            raise RuntimeError("the writer was shut down")
        if self._thread is None:
            # A daemon: a disk that never answers must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="headrace-writer", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._work.append((work, future))
        os.write(self._want, b"\0")
        return future

    def wait(self, future: Future[Any], seconds: float) -> bool:
        """Wait for work, at most so long; return whether it is over."""
        deadline = monotonic() + seconds
        while not future.done():
            left = deadline - monotonic()
            if left <= 0:
                return False
            self._signals.poll(left * 1e3)
            with contextlib.suppress(BlockingIOError):
                os.read(self._ended, _MOST_SIGNALS)
        return True

    def shutdown(self, wait: bool = True) -> None:
        """Take no more work; submitted work is still done."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            self._close()
        else:
            os.write(self._want, b"\0")
            if wait:
                self._thread.join()

    def _run(self) -> None:
        while self._work or not self._closed:
            os.read(self._wanted, _MOST_SIGNALS)
            while self._work:
                work, future = self._work.popleft()
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 -- it is the waiter's
                    future.set_exception(error)
                with contextlib.suppress(BlockingIOError):
                    os.write(self._end, b"\0")
        self._close()

    def _close(self) -> None:
        for end in (self._wanted, self._want, self._ended, self._end):
            os.close(end)
