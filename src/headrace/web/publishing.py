"""Publishes messages of requests: makes batches of them, and waits for their commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from aiohttp import web

from headrace.errors import StorageError
from headrace.message import Batch, Run, envelope_rows, map_column
from headrace.net.server.process import Server
from headrace.protocols import HTTP
from headrace.web.answers import commit_seconds, too_late

T = TypeVar("T")


def message_batch(
    request: web.Request,
    topic: str,
    payload: bytes,
    texts: Mapping[str, str] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> Batch:
    """Make a batch of one message, published by the peer of a request."""
    columns = None
    if texts or numbers:
        maps = {
            "attributes": map_column("attributes", [dict(texts or {})]),
            "numbers": map_column("numbers", [dict(numbers or {})]),
        }
        columns = envelope_rows(maps)
    return Batch(Run.of([payload]), origin=HTTP, publisher=str(request.remote), topic=topic, columns=columns)


async def committed(server: Server, *batches: Batch) -> Batch | StorageError:
    """Submit batches that stand together; return the last once all are committed, or the error of one."""
    outcomes: list[asyncio.Future[Batch | StorageError]] = [
        asyncio.get_running_loop().create_future() for _ in batches
    ]
    for place, batch in enumerate(batches):
        server.hub.submit(batch, reply_to(outcomes[place]), tied=place + 1 < len(batches))
    results: Sequence[Batch | StorageError] = await in_time(server, asyncio.gather(*outcomes))
    return next((result for result in results if isinstance(result, StorageError)), results[-1])


def reply_to(outcome: asyncio.Future[T]) -> Callable[[T], None]:
    """Return a callback that sets an outcome, unless nobody waits for it any more."""

    def done(result: T) -> None:
        if not outcome.done():
            outcome.set_result(result)

    return done


async def in_time(server: Server, outcome: Awaitable[T]) -> T:
    """Wait for the outcome of a commit; raise the answer if it takes too long."""
    try:
        async with asyncio.timeout(seconds := commit_seconds(server)):
            return await outcome
    except TimeoutError:
        raise too_late(seconds) from None
