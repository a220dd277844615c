"""What a hub keeps beside its messages, as its link shows and changes it.

That is its status, services, holds, durable consumers and subscriptions by content, and a snapshot of all of it. Each
request is asked again where its tube is lost before the answer: whatever changes something here may be said twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

import pyarrow as pa

from headrace.client.link.connection import Connection
from headrace.client.link.requests import LostTubeError, Make
from headrace.client.link.streams import check_seq
from headrace.wire.link import requests as ask
from headrace.wire.link.message import SUBSCRIPTIONS, LinkMessage, rows_of

R = TypeVar("R")


class StateRequests:
    """The part of a client of the link that is about the hub's state."""

    def __init__(self, connection: Connection, credit: int) -> None:
        self._connection = connection
        self._credit = credit

    async def status(self) -> dict[str, Any]:
        """What the hub knows about itself, as ``/api/status`` has it."""
        answer = await self._connection.call(lambda n: ask.StatusRequest(id=n))
        return dict(answer.head["status"])

    async def report(self, name: str, facts: Mapping[str, Any]) -> None:
        """Say what this program is doing; the hub's status shows it under ``name``, and it is in no log."""
        await self._connection.call(lambda n: ask.ReportRequest(id=n, name=name, facts=dict(facts)))

    async def lost(self, reader: str | None = None) -> dict[str, dict[str, Any]]:
        """What each reader, or one, found gone and passed over: ``messages``, and the newest ``ranges`` of them."""
        answer = await self._connection.call(lambda n: ask.LostRequest(id=n, reader=reader))
        return dict(answer.head["lost"])

    async def report_lost(self, reader: str, first: int, last: int) -> None:
        """Say that messages ``first`` to ``last`` were gone before ``reader`` had them; the hub's status shows it."""
        await self._connection.call(lambda n: ask.LostRequest(id=n, reader=reader, first=first, last=last))

    async def newest(self, publisher: str) -> int | None:
        """The highest number that a publisher's messages in the log have; ``None`` if it has none there."""
        answer = await self._connection.call(lambda n: ask.PublisherRequest(id=n, publisher=publisher))
        newest: int | None = answer.head.get("newest")
        return newest

    async def services(self) -> list[dict[str, Any]]:
        """The services there are: ``id``, ``kind``, ``created``, ``seq`` and ``bytes`` of each."""
        return await self._listed("services", _list_services)

    async def service(self, service: str) -> bytes:
        """The value of one service."""
        answer = await self._connection.call(lambda n: ask.ServicesRequest(id=n, service=service))
        return bytes(answer.body)

    async def create_service(self, service: str, kind: Literal["json", "last"] = "json") -> None:
        """Create a service, or offer a removed one anew, empty; returns once that is in the log.

        One that is there stays as it is; if it is of the other kind, that is refused with ``conflict``.
        """
        await self._connection.call(
            lambda n: ask.ServicesRequest(id=n, service=service, action="create", kind=kind)
        )

    async def remove_service(self, service: str) -> bool:
        """Offer a service no longer; returns once that is in the log, ``False`` if it was removed before.

        Whoever has subscribed to it goes on getting what is published under its id.
        """
        answer = await self._connection.call(
            lambda n: ask.ServicesRequest(id=n, service=service, action="remove")
        )
        return bool(answer.head.get("removed"))

    async def snapshot(self) -> bytes:
        """The hub's state, as a snapshot file has it."""
        pieces, _ = await self._pieces(
            lambda n: ask.SnapshotRequest(id=n, credit=self._credit), lambda message: bytes(message.body)
        )
        return b"".join(pieces)

    async def subscriptions(self) -> pa.Table:
        """Every subscription by content: client, connector, the entry that says so, and its fields by attribute.

        The metadata of the table's schema has ``head``, the last log entry that it includes.
        """
        pieces, end = await self._pieces(
            lambda n: ask.SubscriptionsRequest(id=n, credit=self._credit),
            lambda message: rows_of(message.body, SUBSCRIPTIONS),
        )
        table = pa.Table.from_batches(pieces, schema=SUBSCRIPTIONS)
        return table.replace_schema_metadata({"head": str(end.get("head", 0))})

    # Holds

    async def holds(self) -> dict[str, int]:
        """The holds there are: the first message that each keeps from being trimmed."""
        answer = await self._connection.call(lambda n: ask.HoldsRequest(id=n))
        return dict(answer.head["holds"])

    async def hold(self, name: str, seq: int) -> None:
        """Keep messages from ``seq`` on; returns once that is in the log."""
        await self._connection.call(lambda n: ask.HoldsRequest(id=n, name=name, seq=seq))

    async def release(self, name: str) -> None:
        """Let go of a hold."""
        await self._connection.call(lambda n: ask.HoldsRequest(id=n, name=name, release=True))

    # Durable consumers

    async def consumers(self) -> list[dict[str, Any]]:
        """The durable consumers there are, in the order of their creation, and how far each has come."""
        return await self._listed("consumers", _list_consumers)

    async def show_consumer(self, name: str) -> dict[str, Any]:
        """How far a consumer has come, and its terms."""
        answer = await self._connection.call(
            lambda n: ask.ConsumersRequest(id=n, consumer=name, action="show")
        )
        return dict(answer.head["consumers"][0])

    async def reset_consumer(self, name: str, to: int) -> None:
        """Have everything from ``to`` on delivered, again or after all; returns once that is in the log."""
        check_seq("to", to)
        await self._connection.call(
            lambda n: ask.ConsumersRequest(id=n, consumer=name, action="reset", to=to)
        )

    async def remove_consumer(self, name: str) -> None:
        """Remove a consumer; its members are told."""
        await self._connection.call(lambda n: ask.ConsumersRequest(id=n, consumer=name, action="remove"))

    async def _listed(
        self, what: str, ask_after: Callable[[int, int], ask.ServicesRequest | ask.ConsumersRequest]
    ) -> list[dict[str, Any]]:
        """All of a list that comes in parts, each of those created after the last of the part before."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["created"] if found else 0
            answer = await self._connection.call(partial(ask_after, after))
            more = answer.head[what]
            found += more
            if not more:
                return found

    async def _pieces(
        self, make: Make[Any], read: Callable[[LinkMessage], R]
    ) -> tuple[list[R], Mapping[str, Any]]:
        """A stream whole, piece by piece as ``read`` reads them, and what its end says."""
        while True:
            session = await self._connection.session()
            inbox = session.stream(make, self._credit)
            pieces = []
            try:
                while (message := await inbox.get()) is not None:
                    pieces.append(read(message))
            except LostTubeError:
                continue
            finally:
                inbox.cancel()
            return pieces, inbox.last


def _list_services(after: int, request_id: int) -> ask.ServicesRequest:
    return ask.ServicesRequest(id=request_id, after=after)


def _list_consumers(after: int, request_id: int) -> ask.ConsumersRequest:
    return ask.ConsumersRequest(id=request_id, after=after)
