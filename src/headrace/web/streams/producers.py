"""Idempotent producers: whether an append is new, a repeat, or from a stale epoch, wherever in a cluster it comes in.

A node judges an append by those of the same producer that it knows (:func:`is_repeat`). It has a new one marked as
the producer's next after those, and the hub that numbers messages takes each mark once. Whoever comes second judges
again, with the other append in its state. So does a node that lags, before it speaks of a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import web

from headrace.errors import FullError, HeadraceError
from headrace.hub.sequencer import Published
from headrace.hub.streams.stream import MAX_PRODUCERS, ProducerAppend, Stream, mark_of
from headrace.message import Batch
from headrace.net.server.process import Server
from headrace.web.answers import commit_seconds
from headrace.web.refusals import refusal
from headrace.web.streams.requests import bad, problem
from headrace.web.streams.watching import Watch


class OvertakenError(Exception):
    """Another node has appended for the same producer meanwhile."""


def is_repeat(stream: Stream, given: ProducerAppend) -> bool:
    """Whether a producer's append is there already; one that cannot be next is refused."""
    known = stream.producers.get(given.id)
    if known is None:
        if len(stream.producers) >= MAX_PRODUCERS:
            raise refusal(web.HTTPTooManyRequests, f"the stream has {MAX_PRODUCERS} producers")
        expected = 0
    elif given.epoch < known.epoch:
        raise problem(403, "a newer epoch of this producer is known", {"Producer-Epoch": str(known.epoch)})
    elif given.epoch > known.epoch:
        if given.seq != 0:
            raise bad("a new epoch begins with Producer-Seq 0")
        return False
    else:
        expected = known.seq + 1
    if given.seq < expected:
        return True
    if given.seq > expected:
        headers = {"Producer-Expected-Seq": str(expected), "Producer-Received-Seq": str(given.seq)}
        raise problem(409, f"Producer-Seq {given.seq} leaves out {expected}", headers)
    return False


class Producers:
    """Producers' appends at one node; ``stopping`` is set when the hub stops."""

    def __init__(self, server: Server, stopping: asyncio.Event) -> None:
        self._server = server
        self._stopping = stopping

    async def commit_next(self, stream: Stream, producer: str, batches: Sequence[Batch]) -> None:
        """Append a producer's batches together, as the next since those that this node has judged it by.

        The hub that numbers messages takes the first of several: each is marked as the producer's next, and the log has
        each mark once (:meth:`~headrace.hub.publishing.idempotent.IdempotentPublishing.pass_on`).
        """
        name = mark_of(stream, producer)
        newest = self._server.parts.publishers.newest(name)
        outcome: asyncio.Future[Published | HeadraceError] = asyncio.get_running_loop().create_future()

        def reply(result: Published | HeadraceError) -> None:
            if not outcome.done():
                outcome.set_result(result)

        self._server.publishing.pass_on(name, 0 if newest is None else newest + 1, batches, reply)
        try:
            async with asyncio.timeout(seconds := commit_seconds(self._server)):
                result = await outcome
        except TimeoutError:
            late = f"not committed within {seconds:g} s; it may still be"
            raise refusal(web.HTTPGatewayTimeout, late) from None
        if isinstance(result, HeadraceError):
            raise problem(507 if isinstance(result, FullError) else 503, str(result))
        if result.repeated:
            raise OvertakenError

    async def caught_up(self, stream: Stream, producer: str) -> bool:
        """Wait for a producer's appends that this node does not know of yet; ``False`` if there are none."""
        name = mark_of(stream, producer)
        outcome: asyncio.Future[int | HeadraceError | None] = asyncio.get_running_loop().create_future()

        def reply(result: int | HeadraceError | None) -> None:
            if not outcome.done():
                outcome.set_result(result)

        def known() -> int:
            newest = self._server.parts.publishers.newest(name)
            return -1 if newest is None else newest

        # As it was when the append was judged: meanwhile more may have come.
        before = known()
        deadline = asyncio.get_running_loop().time() + commit_seconds(self._server)
        with Watch(self._server.parts.streams, stream.topic) as watch, suppress(TimeoutError):
            self._server.publishing.newest(name, reply)
            async with asyncio.timeout_at(deadline):
                newest = await outcome
            if isinstance(newest, int):
                while known() < newest and await watch.changed(deadline, self._stopping):
                    pass
        return known() > before
