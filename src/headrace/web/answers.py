"""Questions and answers of the JSON API: a body in JSON, a number in the address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from aiohttp import web

from headrace.errors import FullError, StorageError
from headrace.hub.sequencer import is_kept
from headrace.message import Batch
from headrace.web.refusals import refusal

if TYPE_CHECKING:
    from headrace.net.server.process import Server

COMMIT_SECONDS: Final = 10.0
"""Seconds that a request waits for its commit."""

BODY_SECONDS: Final = 10.0
"""Seconds that the body of a request in JSON may take."""

T = TypeVar("T")


def as_json(content: object, status: int = 200) -> web.Response:
    """Make an uncached JSON answer. It ends with a line end, for requests made from a terminal."""
    return web.Response(
        body=msgspec.json.encode(content) + b"\n",
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


async def body_as(request: web.Request, kind: type[T], expected: str, seconds: float = BODY_SECONDS) -> T:
    """Read a request's body as JSON of this type; refuse it by what is ``expected``."""
    try:
        async with asyncio.timeout(seconds):
            return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.DecodeError, ValueError, TimeoutError) as error:
        raise refusal(web.HTTPBadRequest, f"{expected}: {error}") from None


def number_in(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """Return a number in a request's address; refuse one that is invalid or out of range."""
    given = request.query.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 20 and low <= int(given) <= high):
        raise refusal(web.HTTPBadRequest, f"{name}={given}: expected a number from {low} to {high}")
    return int(given)


def commit_seconds(server: Server) -> float:
    """Return how long a request waits for its commit; a frontend that stores messages keeps them earlier."""
    settings = server.settings
    return COMMIT_SECONDS + (settings.node.upstream_seconds if settings.upstream.store else 0)


def too_late(seconds: float) -> web.HTTPError:
    """Make the answer to a request whose commit takes too long."""
    return refusal(web.HTTPGatewayTimeout, f"not committed within {seconds:g} s; it may still be")


def failed(error: StorageError) -> web.Response:
    """Answer that the log could not take something."""
    # 507 Insufficient Storage: nothing is lost, and the hub keeps trying.
    return as_json({"error": str(error)}, status=507 if isinstance(error, FullError) else 500)


def published(result: Batch | StorageError) -> web.Response:
    """Answer with a message's number, with 202 Accepted if a frontend keeps it, or with the error."""
    if isinstance(result, StorageError):
        return failed(result)
    if is_kept(result):
        return as_json({"kept": True}, status=202)
    return as_json({"seq": result.last})
