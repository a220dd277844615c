"""stdin and stdout beside an event loop: neither may block it, or a client would miss its keepalives.

A terminal or a pipe is read once when it is ready, or written to with as little as it is sure to take. A file is always
ready, and cannot be waited for. Neither is ever made non-blocking, because that would change it for every other process
that has it, the user's shell among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from headrace.errors import UsageError

_READ: Final = 1 << 16

_SURE: Final = select.PIPE_BUF
"""Bytes that a ready pipe takes without blocking."""


async def lines(fd: int, longest: int) -> AsyncIterator[list[bytes]]:
    """Read the lines of a file, without their ends, as many at a time as are there."""
    rest = b""
    number = 0
    while chunk := await _read(fd):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in (*whole, rest):
            number += 1
            if len(line) > longest:
                raise UsageError(f"line {number} has more than {longest} bytes, the most a message may have")
        number -= 1
        if whole:
            yield whole
    if rest:
        yield [rest]


class PipeWriter:
    """Writes to a file descriptor without blocking the event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._waits = self._pipe or os.isatty(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write all of it; the event loop runs on while the reader is slow."""
        view = memoryview(data)
        while view:
            if self._waits and not self._poll.poll(0):
                loop = asyncio.get_running_loop()
                await _ready(self._fd, loop.add_writer, loop.remove_writer)
            view = view[os.write(self._fd, view[:_SURE] if self._waits else view) :]

    @contextlib.contextmanager
    def while_read(self) -> Iterator[None]:
        """Raise ``BrokenPipeError`` in the current task as soon as nobody reads the pipe any more.

        Otherwise that would show only at the next write, which may be hours away.
        """
        task = asyncio.current_task()
        if not self._pipe or task is None:
            yield
            return
        loop = asyncio.get_running_loop()
        gone = False

        def notice() -> None:
            # A socket is also ready when something arrives on it; that is not ours to read.
            nonlocal gone
            loop.remove_reader(self._fd)
            if not gone and _hung_up(self._fd):
                gone = True
                task.cancel()

        loop.add_reader(self._fd, notice)
        try:
            yield
        except asyncio.CancelledError:
            if gone and task.uncancel() == 0:
                raise BrokenPipeError from None
            raise
        finally:
            loop.remove_reader(self._fd)


def _hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    # epoll refuses what is always ready: files, and devices such as /dev/null.
    with contextlib.suppress(PermissionError):
        await _ready(fd, loop.add_reader, loop.remove_reader)
    return os.read(fd, _READ)


async def _ready(
    fd: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], bool]
) -> None:
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)
