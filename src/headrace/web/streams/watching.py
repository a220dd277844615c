"""Waiting until a topic has a new message, or its stream changes."""

from __future__ import annotations

import asyncio

from headrace.hub.streams.streams import Streams


class Watch:
    """Waits until a topic has a new message, or its stream changes."""

    def __init__(self, streams: Streams, topic: str) -> None:
        self._streams = streams
        self._topic = topic
        self._changed = asyncio.Event()

    def __enter__(self) -> Watch:
        self._streams.watch(self._topic, self._changed.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.unwatch(self._topic, self._changed.set)

    async def changed(self, deadline: float, stopping: asyncio.Event) -> bool:
        """Wait for a change since the last one; ``False`` if there is none until the deadline."""
        waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(stopping.wait())]
        left = deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(waits, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        happened = self._changed.is_set() and not stopping.is_set()
        self._changed.clear()
        return happened
