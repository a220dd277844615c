"""Staging many rows: sent ahead of the answers, up to a window, in pieces that a tube can carry.

The rows of one task of a query's batch become stages, in order; :meth:`Stager.finish` names them once the hub has them
all. A piece whose tube was lost is staged again over the next one: a stage that nobody commits is forgotten by the hub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from headrace.client.tube import LinkClient
from headrace.wire import link_requests as ask
from headrace.wire.link import body_of

PIECE: Final = 2 << 20
"""Bytes of rows in one stage, about: few enough that hub and client work side by side."""

WINDOW: Final = 16 << 20
"""Bytes that may be under way."""


class Stager:
    """Stages the rows of one part of a query's batch, over a client that is open."""

    def __init__(self, link: LinkClient, query: str, batch: int, part: int, *, window: int = WINDOW) -> None:
        self._link = link
        self._query = query
        self._batch = batch
        self._part = part
        self._window = window
        self._unanswered = 0
        self._tasks: list[asyncio.Task[str]] = []
        self._answered = asyncio.Event()

    async def add(self, rows: pa.RecordBatch) -> None:
        """Send rows in the schema of those to be published; waits while the window is full."""
        for piece in pieces(rows):
            body = body_of(piece)
            while self._unanswered and self._unanswered + body.nbytes > self._window:
                self._answered.clear()
                await self._answered.wait()
                self._check()
            self._unanswered += body.nbytes
            self._tasks.append(asyncio.ensure_future(self._stage(body)))
            # Let it be sent before Spark is asked for more.
            await asyncio.sleep(0)

    async def finish(self) -> list[str]:
        """The names of the stages, in order, once all are there."""
        return list(await asyncio.gather(*self._tasks))

    async def give_up(self) -> None:
        """Send no more; the hub forgets what it has of these rows by itself."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stage(self, body: Any) -> str:
        try:
            answer = await self._link.ask(
                lambda n: ask.Stage(id=n, query=self._query, batch=self._batch, part=self._part), body
            )
            return str(answer.head["stage"])
        finally:
            self._unanswered -= body.nbytes
            self._answered.set()

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()


def pieces(rows: pa.RecordBatch, size: int = PIECE) -> Iterator[pa.RecordBatch]:
    """Rows in pieces of about ``size`` bytes or less; a row that is larger alone stays alone.

    >>> rows = pa.record_batch({"payload": pa.array([b"a" * 100] * 3 + [b"b" * 500])})
    >>> [piece.num_rows for piece in pieces(rows, 250)]
    [2, 1, 1]
    """
    if rows.num_rows <= 1 or rows.nbytes <= size:
        if rows.num_rows:
            yield rows
        return
    # Even parts if rows are of even size; those that are not are cut again.
    step = max(1, rows.num_rows // -(-rows.nbytes // size))
    for begin in range(0, rows.num_rows, step):
        part = rows.slice(begin, step)
        if part.num_rows > 1 and part.nbytes > 2 * size:
            half = part.num_rows // 2
            yield from pieces(part.slice(0, half), size)
            yield from pieces(part.slice(half), size)
        else:
            yield part
