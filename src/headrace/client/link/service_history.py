"""A service's past: its object as it was after each message, from the log.

Services are a function of the log, so the hub's own code (:class:`~headrace.hub.services.objects.Services`) makes the
object again from the messages under its id and the entries about it. Only what the hub refused because all services
together were too many or too large is not known here: other services are not looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.client.link.backtest import Backtest
from headrace.client.link.streams import BatchStream, EntryStream
from headrace.errors import UsageError
from headrace.hub.services.entries import PART, POLICY
from headrace.hub.services.objects import Service, Services
from headrace.matching import Matcher
from headrace.message import Batch, Run
from headrace.wire.sdk.predicate import Alternatives

LOOKED_AT: Final = 512
"""Objects whose conditions are judged at a time."""

ReadMessages = Callable[[str], BatchStream]
ReadEntries = Callable[[str], EntryStream]


class PastService(NamedTuple):
    """A service's object as it was from a message on."""

    seq: int
    value: bytes | None
    """The whole object; ``None`` where the service was not offered."""


async def service_states(
    service: str, messages: ReadMessages, entries: ReadEntries
) -> AsyncIterator[tuple[int, Service | None]]:
    """Yield each message that may have changed a service, and the service as it was after it.

    ``messages`` and ``entries`` read what the log has of a topic.
    """
    services = Services()
    orders = [
        order for topic in (POLICY, f"{PART}/{service}") async for order in _orders(entries(topic), topic)
    ]
    orders.sort()
    coming = iter([*orders, None])
    following = next(coming)
    async with messages(service) as stream:
        async for rows in stream:
            for seq, topic, payload in _columns(rows, "seq", "topic", "payload"):
                while following is not None and following.seq < seq:
                    services.apply(following.name, following.payload, following.seq, following.op)
                    yield following.seq, services.get(service)
                    following = next(coming)
                if topic == service:
                    services.follow(Batch(Run.one(payload), first=seq, topic=topic))
                    yield seq, services.get(service)
    while following is not None:
        services.apply(following.name, following.payload, following.seq, following.op)
        yield following.seq, services.get(service)
        following = next(coming)


async def first_held(
    states: AsyncIterator[tuple[int, Service | None]], wanted: Alternatives
) -> PastService | None:
    """Find the message after which a service's object first satisfied conditions on its top-level members."""
    backtest = Backtest(wanted, json_attributes=True)
    if backtest.has_fences:
        raise UsageError("a fence is about a key that moves, and not about a service's object")
    matcher = backtest.matcher
    some: list[PastService] = []
    async for seq, service in states:
        if service is not None:
            some.append(PastService(seq, service.snapshot))
        if len(some) == LOOKED_AT:
            if (found := _first(matcher, some)) is not None:
                return found
            some = []
    return _first(matcher, some)


class _Order(NamedTuple):
    op: int
    seq: int
    name: str
    payload: bytes


async def _orders(stream: EntryStream, wanted: str) -> AsyncIterator[_Order]:
    async with stream:
        async for rows in stream:
            for op, seq, topic, payload in _columns(rows, "op", "seq", "topic", "payload"):
                if topic == wanted:
                    yield _Order(op, seq, topic.removeprefix(f"{PART}/"), payload)


def _columns(rows: pa.RecordBatch, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def _first(matcher: Matcher, some: list[PastService]) -> PastService | None:
    batch = Batch(Run.of([each.value or b"" for each in some]))
    offsets = matcher.match(batch).offsets
    return next(
        (each for each, begin, end in zip(some, offsets, offsets[1:], strict=False) if end > begin), None
    )
