"""Changes of a stream that depend on earlier changes, at whatever node of a cluster they arrive.

A producer's append must be its next, a writer's sequence must grow, nothing follows the append that closes a stream,
and a stream is created once. A node judges a change by the changes that it knows (:func:`is_repeat` for producers). It
marks the change as the stream's next, and the hub that numbers messages takes each mark once. If two nodes send the
same mark, the second judges again, with the other change in its state. A node that lags also judges again before it
reports a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from aiohttp import web

from headrace.errors import HeadraceError
from headrace.hub.sequencer import Published
from headrace.hub.streams.stream import MAX_PRODUCERS, ProducerAppend, Stream, mark_of
from headrace.message import Batch
from headrace.net.server.process import Server
from headrace.web.answers import commit_seconds
from headrace.web.publishing import in_time, reply_to
from headrace.web.refusals import refusal
from headrace.web.streams.receiving import not_stored
from headrace.web.streams.requests import bad, problem
from headrace.web.streams.watching import Watch


class OvertakenError(Exception):
    """The stream was changed at another node in the meantime."""


def is_repeat(stream: Stream, given: ProducerAppend) -> bool:
    """Return whether a producer's append is in the stream already; refuse one that cannot be its next."""
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


class JudgedChanges:
    """Changes of streams at one node; ``stopping`` is set when the hub stops."""

    def __init__(self, server: Server, stopping: asyncio.Event) -> None:
        self._server = server
        self._stopping = stopping
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, topic: str) -> asyncio.Lock:
        """Return the lock that makes changes of a stream wait for one another."""
        return self._turns.setdefault(topic, asyncio.Lock())

    def known(self, topic: str, stream: int) -> int:
        """Return how many changes of a stream this node knows of."""
        newest = self._server.parts.publishers.newest(mark_of(topic, stream))
        return 0 if newest is None else newest + 1

    async def commit_next(self, topic: str, stream: int, known: int, batches: Sequence[Batch]) -> None:
        """Append batches together, as the next change of a stream after the ``known`` changes that it was judged by.

        If several are marked as the stream's next, the hub that numbers messages takes the first: the log has each mark
        once (:meth:`~headrace.hub.publishing.idempotent.IdempotentPublishing.pass_on`).
        """
        outcome: asyncio.Future[Published | HeadraceError] = asyncio.get_running_loop().create_future()
        self._server.publishing.pass_on(mark_of(topic, stream), known, batches, reply_to(outcome))
        result = await in_time(self._server, outcome)
        if isinstance(result, HeadraceError):
            raise not_stored(result)
        if result.repeated:
            raise OvertakenError

    async def caught_up(self, stream: Stream) -> bool:
        """Wait for changes of a stream that this node does not know of yet; ``False`` if there are none."""
        outcome: asyncio.Future[int | HeadraceError | None] = asyncio.get_running_loop().create_future()

        def known() -> int:
            return self.known(stream.topic, stream.id)

        # Note what the append was judged by: more changes may come while this waits.
        before = known()
        deadline = asyncio.get_running_loop().time() + commit_seconds(self._server)
        with Watch(self._server.parts.streams, stream.topic) as watch, suppress(TimeoutError):
            self._server.publishing.newest(mark_of(stream.topic, stream.id), reply_to(outcome))
            async with asyncio.timeout_at(deadline):
                newest = await outcome
            if isinstance(newest, int):
                while known() <= newest and await watch.changed(deadline, self._stopping):
                    pass
        return known() > before
