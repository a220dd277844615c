"""Receivers of a tube's messages: an object that is called, for speed, or a queue that is awaited, for ease."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.errors import HeadraceError, UsageError

Received = bytes | bytearray
"""A message belongs to its receiver; the tube keeps no reference to it."""

MESSAGE_COST = 128
"""Memory that a message takes beside its bytes: a flood of empty ones fills a queue too."""


class Receiver(Protocol):
    """An object that a tube calls in its event loop.

    Calls come from the loop itself, or from within ``attach``, ``resume_reading`` and closing; never from ``write``.

    >>> from headrace import tube
    >>> class Letters:
    ...     def __init__(self):
    ...         self.all, self.over = [], asyncio.Event()
    ...     def on_message(self, message):
    ...         self.all.append(bytes(message))
    ...     def on_room(self):
    ...         pass
    ...     def on_end(self, error):
    ...         self.over.set()
    >>> async def post():
    ...     letters = Letters()
    ...     async def take(end):
    ...         end.attach(letters)
    ...         await letters.over.wait()  # the tube is closed when this ends
    ...     async with tube.serve(take, port=0) as server:
    ...         async with tube.connect(f"tube://{server.addresses[0]}") as client:
    ...             client.write(b"dear")
    ...             client.write(b"Ada")
    ...     return letters.all
    >>> asyncio.run(post())
    [b'dear', b'Ada']
    """

    def on_message(self, message: Received, /) -> None:
        """Take a message. Call the tube's ``pause_reading`` to get no more for now."""

    def on_room(self) -> None:
        """Go on sending: the tube is no longer ``paused``. May come without need."""

    def on_end(self, error: HeadraceError | None, /) -> None:
        """Take note that no more messages come: either side closed the tube (``None``), or it broke.

        After ``None`` from the peer of a TCP server, sending may still go on; see ``Tube.closed``.
        """


class ReceiveQueue:
    """The receiver behind ``async for``: keeps messages until they are taken, within a bound of bytes.

    Past the bound the tube is not read, until half of it is free again. One message may exceed the bound,
    so that every message can pass.
    """

    def __init__(self, bound: int, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._bound = bound
        self._pause = pause
        self._resume = resume
        self._messages: deque[Received] = deque()
        self._size = 0
        self.full = False
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def on_message(self, message: Received) -> None:
        """Keep a message."""
        self._messages.append(message)
        self._size += len(message) + MESSAGE_COST
        if self._size >= self._bound and not self.full:
            self.full = True
            self._pause()
        self._wake()

    def on_room(self) -> None:
        """Do nothing: senders await room."""

    def on_end(self, _error: HeadraceError | None) -> None:
        """Let :meth:`get` end after what is kept."""
        self._ended = True
        self._wake()

    def discard(self) -> None:
        """Forget what is kept."""
        self._messages.clear()
        self._size = 0

    async def get(self) -> Received | None:
        """Return the next message, or ``None`` after the last. Cancelling this loses nothing."""
        while not self._messages:
            if self._ended:
                return None
            if self._waiter is not None:
                raise UsageError("somebody else is already waiting for this tube's next message")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def hand_over(self, to: Receiver) -> None:
        """Give all kept messages to another receiver."""
        if self._waiter is not None:
            raise UsageError("somebody is waiting for this tube's next message")
        while self._messages:
            to.on_message(self._take())

    def _take(self) -> Received:
        message = self._messages.popleft()
        self._size -= len(message) + MESSAGE_COST
        if self.full and self._size <= self._bound // 2:
            self.full = False
            self._resume()
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
