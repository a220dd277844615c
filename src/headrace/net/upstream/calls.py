"""What a frontend asks its upstream hub beside the publishes that it relays: commits, and the names of publishers.

Each may be repeated, so it is tried on one tube after the other. A call ends when the upstream hub is away for
``patience`` seconds, or gives no answer for as long as a publish would wait for one; only an answer restarts that wait,
not a mere connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final, TypeAlias, TypeVar

from headrace.client.link.requests import LinkSession, LostTubeError, Make
from headrace.errors import HeadraceError, RefusedError, UnavailableError, UnexpectedError
from headrace.hub.publishing.relaying.backlog import silence_after, silence_of
from headrace.hub.publishing.relaying.publishes import UNKNOWN
from headrace.hub.sequencer import Commit, Opened, Opening, Published, WhenNewest, WhenOpened, WhenPublished
from headrace.message import Batch
from headrace.net.upstream.log_alignment import call
from headrace.wire.link import requests as ask
from headrace.wire.link.message import PUBLISHED, Body, LinkMessage, body_of

_AGAIN_SECONDS: Final = 0.05
"""Seconds until a request that was lost with its tube, or whose stages were, is tried again."""
_STAGE_BYTES: Final = 4 << 20

T = TypeVar("T")

Asks: TypeAlias = Callable[[Make[Any], Body | None], Awaitable[LinkMessage]]
"""Makes a request and returns the answer; raises a refusal."""


class UpstreamCalls:
    """The calls to one upstream hub."""

    def __init__(self, url: str, patience: float) -> None:
        self.unreachable = f"the upstream hub {url} has not answered"
        self._patience = patience
        self._session: LinkSession | None = None
        self._connected = asyncio.Event()
        self._problem = "the upstream hub was not reached yet"
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, session: LinkSession) -> None:
        """Make calls on this tube."""
        self._session = session
        self._connected.set()

    def lost(self, problem: str) -> None:
        """Wait for the next tube."""
        self._session, self._problem = None, problem
        self._connected.clear()

    @property
    def unfinished(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Answer nobody any more."""
        for task in tuple(self._tasks):
            task.cancel()

    def commit(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
    ) -> None:
        """Stage a batch of a query, and commit it."""

        async def work(asks: Asks) -> Published:
            name, number = token_hex(8), 0
            origin = rows[0].origin if rows else "spark"
            for each in rows:
                table = each.to_arrow().select(PUBLISHED.names)
                at, step = 0, max(1, table.num_rows * _STAGE_BYTES // max(table.nbytes, 1))
                while at < table.num_rows:
                    body = body_of(table.slice(at, step))
                    await asks(partial(_staged, query, batch, name, number), body)
                    at, number = at + step, number + 1

            def commit(request_id: int) -> ask.CommitRequest:
                return ask.CommitRequest(
                    id=request_id,
                    query=query,
                    batch=batch,
                    stages=[name] if number else [],
                    origin=origin,
                    token=terms.token,
                    client=terms.client,
                )

            return published_of(await asks(commit, None))

        self._begin(work, reply, silence_after(rows, self._patience))

    def newest(self, publisher: str, reply: WhenNewest) -> None:
        """Ask for a publisher's highest number."""

        async def work(asks: Asks) -> int | None:
            answer = await asks(lambda n: ask.PublisherRequest(id=n, publisher=publisher), None)
            newest: int | None = answer.head.get("newest")
            return newest

        self._begin(work, reply, silence_of(self._patience))

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        """Ask for a publisher's name to be opened."""
        holder, client, by = opening

        def request(request_id: int) -> ask.PublisherRequest:
            return ask.PublisherRequest(
                id=request_id, publisher=publisher, open=holder, client=client, by=by[: ask.MAX_NAME]
            )

        async def work(asks: Asks) -> Opened:
            answer = await asks(request, None)
            epoch = answer.head.get("epoch")
            if type(epoch) is not int:
                raise UnexpectedError("link", "epoch", epoch, "the epoch of the name that was opened")
            return Opened(epoch, answer.head.get("newest"))

        self._begin(work, reply, silence_of(self._patience))

    def _begin(
        self,
        work: Callable[[Asks], Awaitable[T]],
        reply: Callable[[T | HeadraceError], None],
        silence: float,
    ) -> None:
        """Do work that may be repeated; pass its outcome to ``reply``."""

        async def attempt() -> None:
            outcome: T | HeadraceError
            try:
                async with asyncio.timeout(silence) as limit:
                    outcome = await self._try(work, limit, silence)
            except TimeoutError:
                outcome = UnavailableError(f"{self.unreachable} for {round(silence, 1):g} s; {UNKNOWN}")
            reply(outcome)

        task = asyncio.ensure_future(attempt())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(
        self, work: Callable[[Asks], Awaitable[T]], limit: asyncio.Timeout, silence: float
    ) -> T | HeadraceError:
        """Try work on one tube after the other; each answer moves the limit."""
        loop = asyncio.get_running_loop()

        def on(session: LinkSession) -> Asks:
            async def asks(make: Make[Any], body: Body | None) -> LinkMessage:
                answer = await call(session, make, body)
                limit.reschedule(loop.time() + silence)
                return answer

            return asks

        deadline = loop.time() + self._patience
        while True:
            try:
                async with asyncio.timeout_at(deadline if self._session is None else None):
                    await self._connected.wait()
                if self._session is not None:
                    return await work(on(self._session))
            except TimeoutError:
                # It may have come back in this very moment.
                return UnavailableError(f"{self._problem}: try again later")
            except LostTubeError:
                await asyncio.sleep(_AGAIN_SECONDS)
                deadline = loop.time() + self._patience
            except RefusedError as error:
                if error.code != "missing":
                    return error
                # The stages are gone with the hub that had them: stage them again.
                await asyncio.sleep(_AGAIN_SECONDS)
            except HeadraceError as error:
                return error


def published_of(message: LinkMessage) -> Published:
    """Parse the answer to a publish or a commit."""
    head = message.head
    first, last, repeated, op = (head.get(name) for name in ("first", "last", "repeated", "op"))
    for name, place in (("first", first), ("last", last), ("op", op)):
        if place is not None and type(place) is not int:
            raise UnexpectedError("link", name, place, "a whole number or nothing")
    return Published(first, last, int(repeated or 0), op, kept=head.get("kept") is True)


def _staged(query: str, batch: int, stage: str, number: int, request_id: int) -> ask.StageRequest:
    return ask.StageRequest(id=request_id, query=query, batch=batch, stage=stage, number=number)
