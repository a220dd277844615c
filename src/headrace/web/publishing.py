"""Publish what a request brings: make a batch of it, and wait until it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from headrace.errors import StorageError
from headrace.message import Batch, Run, envelope_rows, map_column
from headrace.net.server.process import Server
from headrace.protocols import HTTP
from headrace.web.answers import commit_seconds
from headrace.web.refusals import refusal


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
        server.hub.submit(batch, _setter(outcomes[place]), tied=place + 1 < len(batches))
    try:
        async with asyncio.timeout(seconds := commit_seconds(server)):
            results: Sequence[Batch | StorageError] = await asyncio.gather(*outcomes)
    except TimeoutError:
        late = f"not committed within {seconds:g} s; it may still be"
        raise refusal(web.HTTPGatewayTimeout, late) from None
    return next((result for result in results if isinstance(result, StorageError)), results[-1])


def _setter(outcome: asyncio.Future[Batch | StorageError]) -> Callable[[Batch | StorageError], None]:
    def done(result: Batch | StorageError) -> None:
        if not outcome.done():
            outcome.set_result(result)

    return done
