"""Receiving what a request appends: its body, the message it makes, what it costs the client, and its commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Final

import msgspec
from aiohttp import hdrs, web

from headrace.errors import FullError, HeadraceError, StorageError
from headrace.message import Batch
from headrace.net.server.process import Server
from headrace.web.access.rights import principal_of
from headrace.web.publishing import committed, message_batch
from headrace.web.refusals import refusal
from headrace.web.streams.bodies import NO_JSON, json_values
from headrace.web.streams.requests import bad, problem

_SLOWEST_RATE: Final = 1 << 16
"""Least bytes of a body per second."""


async def read_body(server: Server, request: web.Request) -> bytes:
    """Read a request's body; refuse a client that sends above its rate, or so slowly that it keeps others out."""
    limits, loop = server.settings.limits, asyncio.get_running_loop()
    account = server.accounts.of(principal_of(request), str(request.remote))
    if (pause := account.wait(loop.time())) > 0:
        account.paused += 1
        refused = refusal(web.HTTPTooManyRequests, "above the rate of this client: send again later")
        refused.headers[hdrs.RETRY_AFTER] = str(ceil(pause))
        raise refused
    size = request.content_length
    seconds = limits.slow_seconds + (limits.message_bytes if size is None else size) / _SLOWEST_RATE
    try:
        async with asyncio.timeout(seconds):
            body = await request.read()
    except TimeoutError:
        server.hub.counters.refuse("http", "stalled", str(request.remote), "the body does not come")
        raise refusal(web.HTTPRequestTimeout, "the body does not come") from None
    account.receive(len(body), 1, loop.time())
    return body


def message_of(
    server: Server, request: web.Request, topic: str, body: bytes, attributes: dict[str, str] | None = None
) -> Batch:
    """Make the message that a request publishes; raise the answer if it is too large."""
    most = server.settings.limits.message_bytes
    if len(body) > most:
        raise web.HTTPRequestEntityTooLarge(most, len(body))
    if not attributes:
        return message_batch(request, topic, body)
    if len(attributes) > (limit := server.settings.limits.attributes):
        raise bad(f"a message has at most {limit} attributes")
    return message_batch(request, topic, body, *_sorted(attributes))


@contextmanager
def charged(server: Server, request: web.Request, topic: str, size: int) -> Iterator[None]:
    """Charge the client for the growth of a stream's state, or refuse the request."""
    account = server.accounts.of(principal_of(request), str(request.remote))
    has, most = account.state_bytes + account.state_pending, account.most_state_bytes
    if size and has + size > most:
        account.refused += 1
        detail = f"the client has {has} bytes of state of {most} (limits.state_bytes_per_client)"
        server.hub.counters.refuse("http", "state_bytes", str(request.remote), detail)
        raise refusal(web.HTTPTooManyRequests, detail)
    account.state_pending += size
    try:
        yield
    finally:
        account.state_pending -= size
    if size:
        server.parts.streams.charge(topic, account, size)


async def store(server: Server, batches: Sequence[Batch]) -> Batch:
    """Append batches together; return the last of them as it was committed or kept."""
    result = await committed(server, *batches)
    if isinstance(result, StorageError):
        raise not_stored(result)
    return result


def not_stored(error: HeadraceError) -> web.HTTPError:
    """Make the answer to an append that the log did not take."""
    return problem(507 if isinstance(error, FullError) else 503, str(error))


def count_values(body: bytes) -> int:
    """Return how many values an append has; refuse it if it is not JSON."""
    try:
        return len(json_values(body))
    except NO_JSON as error:
        raise bad(f"this is not JSON: {error}") from None


def is_json(body: bytes) -> bool:
    """Return whether an append is JSON with at least one value."""
    try:
        return bool(json_values(body))
    except NO_JSON:
        return False


def _sorted(attributes: dict[str, str]) -> tuple[dict[str, str], dict[str, float]]:
    """Separate numeric attributes from texts, as the command line does."""
    texts: dict[str, str] = {}
    numbers: dict[str, float] = {}
    for name, value in attributes.items():
        try:
            number = msgspec.json.decode(value, type=float)
        except msgspec.DecodeError:
            quoted = len(value) > 1 and value[0] == value[-1] == '"'
            texts[name] = value[1:-1] if quoted else value
        else:
            numbers[name] = number
    return texts, numbers
