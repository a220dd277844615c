"""Staging many rows, in pieces that a tube can carry, ahead of the answers up to a window.

The rows of one task of a query's batch become one stage, in numbered pieces; :meth:`Stager.finish` returns its name. A
piece whose tube was lost is sent again over the next one, under the same number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from secrets import token_hex
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.client.link.client import LinkClient
from headrace.message import Run
from headrace.wire.link import requests as ask
from headrace.wire.link.message import Buffer, body_of
from headrace.wire.link.plain_rows import published_parts, published_size

PIECE: Final = 2 << 20
"""Bytes of rows in one stage, about: few enough that hub and client work at the same time."""

GATHERED: Final = 4 << 20
"""Most bytes of rows gathered for a stage: each one costs client and hub as much as some 100 KiB of rows."""

WINDOW: Final = 16 << 20
"""Bytes that may be under way."""


class Stager:
    """Stages the rows of one part of a query's batch over an open client."""

    def __init__(self, link: LinkClient, query: str, batch: int, part: int, *, window: int = WINDOW) -> None:
        self._link = link
        self._query = query
        self._batch = batch
        self._part = part
        self._window = window
        self._unanswered = 0
        self._name = token_hex(8)
        self._tasks: list[asyncio.Task[None]] = []
        self._answered = asyncio.Event()

    async def add(self, rows: pa.RecordBatch) -> None:
        """Send rows in the schema of those to be published; waits while the window is full."""
        for piece in pieces(rows):
            await self.send([body_of(piece)])

    async def send(self, body: Sequence[Buffer]) -> None:
        """Send rows as a body in parts, none of which may change; waits while the window is full."""
        size = sum(map(len, body))
        while self._unanswered and self._unanswered + size > self._window:
            self._answered.clear()
            await self._answered.wait()
            self._check()
        self._unanswered += size
        self._tasks.append(asyncio.ensure_future(self._stage(body, size, len(self._tasks))))
        # Let it be sent before more rows are made.
        await asyncio.sleep(0)

    async def finish(self) -> str:
        """Return the stage's name once all of it is there."""
        await asyncio.gather(*self._tasks)
        return self._name

    async def give_up(self) -> None:
        """Stop sending, and tell the hub to forget what it has of these rows."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.abort([self._name])

    async def _stage(self, body: Sequence[Buffer], size: int, number: int) -> None:
        try:
            await self._link.ask(
                lambda n: ask.StageRequest(
                    id=n,
                    query=self._query,
                    batch=self._batch,
                    part=self._part,
                    stage=self._name,
                    number=number,
                ),
                body,
            )
        finally:
            self._unanswered -= size
            self._answered.set()

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()


class PayloadGatherer:
    """Gathers payloads that share a topic until they are worth a stage, without copying; Spark's batches are small."""

    def __init__(self, topic: str, size: int = GATHERED) -> None:
        self._topic = topic
        self._size = size
        self._runs: list[Run] = []
        self._bytes = 0

    def add(self, run: Run) -> Iterator[list[Buffer]]:
        """Take payloads; yield the bodies that are worth sending now."""
        for piece in self._pieces(run):
            size = published_size(piece.count, piece.size, self._topic)
            if self._bytes + size > self._size:
                yield from self.rest()
            self._runs.append(piece)
            self._bytes += size

    def rest(self) -> Iterator[list[Buffer]]:
        """Yield the body of what is left, if any."""
        if self._runs:
            runs, self._runs, self._bytes = self._runs, [], 0
            yield published_parts(runs, self._topic)

    def _pieces(self, run: Run) -> Iterator[Run]:
        """Cut payloads into pieces of the size of a stage or less; a single payload may be larger."""
        if published_size(run.count, run.size, self._topic) <= self._size:
            yield run
            return
        # Where each row would begin in the body, if the rows were one after the other.
        row = published_size(1, 0, self._topic)
        places = run.offsets.astype(np.int64) + row * np.arange(run.count + 1)
        begin = 0
        while begin < run.count:
            end = int(np.searchsorted(places, places[begin] + self._size, side="right")) - 1
            end = max(end, begin + 1)
            yield run.slice(begin, end)
            begin = end


def pieces(rows: pa.RecordBatch, size: int = PIECE) -> Iterator[pa.RecordBatch]:
    """Cut rows into pieces of about ``size`` bytes or less; a single row may be larger.

    >>> rows = pa.record_batch({"payload": pa.array([b"a" * 100] * 3 + [b"b" * 500])})
    >>> [piece.num_rows for piece in pieces(rows, 250)]
    [2, 1, 1]
    """
    if rows.num_rows <= 1 or rows.nbytes <= size:
        if rows.num_rows:
            yield rows
        return
    # Even parts if rows are of even size; parts that are too large are cut again.
    step = max(1, rows.num_rows // -(-rows.nbytes // size))
    for begin in range(0, rows.num_rows, step):
        part = rows.slice(begin, step)
        if part.num_rows > 1 and part.nbytes > 2 * size:
            half = part.num_rows // 2
            yield from pieces(part.slice(0, half), size)
            yield from pieces(part.slice(half), size)
        else:
            yield part
