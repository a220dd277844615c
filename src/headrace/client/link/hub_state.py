"""The link's requests about a hub's state: its status, services, holds, durable consumers, subscriptions, snapshot.

Each request is repeated if its tube is lost before the answer: every change here is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import pyarrow as pa

from headrace.client.base import Client, Start
from headrace.client.link.connection import LinkConnection
from headrace.client.link.requests import LostTubeError, Make
from headrace.client.link.streams import check_from_seq, number_of
from headrace.log.proof.chain import Chain
from headrace.wire.link import requests as ask
from headrace.wire.link.message import SUBSCRIPTIONS, LinkMessage, rows_of

R = TypeVar("R")


class StateRequests(Client):
    """The part of a link client that is about the hub's state."""

    def __init__(self, connection: LinkConnection, credit: int, timeout: float) -> None:
        super().__init__(connection, timeout)
        self._connection = connection
        self._credit = credit

    async def status(self) -> dict[str, Any]:
        """Return what the hub reports about itself, as ``/api/status`` does."""
        answer = await self._connection.call(lambda n: ask.StatusRequest(id=n))
        return dict(answer.head["status"])

    async def report(self, name: str, facts: Mapping[str, Any]) -> None:
        """Report what this program is doing; the hub's status shows it under ``name``. It is not logged."""
        await self._connection.call(lambda n: ask.ReportRequest(id=n, name=name, facts=dict(facts)))

    async def reload(self) -> dict[str, Any]:
        """Have the hub load its settings again.

        Returns which are in force now (``changed``), which need a ``restart``, and how many connections were ``closed``
        because what they might do they may no longer.
        """
        answer = await self._connection.call(lambda n: ask.ReloadRequest(id=n))
        reloaded: dict[str, Any] = answer.head["reloaded"]
        return reloaded

    async def set_aside(self) -> list[dict[str, Any]]:
        """List what a frontend kept and its upstream hub refused for good, oldest first.

        Each has ``request``, its name; ``reason``, ``time`` (µs), ``publisher``, ``number``, ``messages``, ``bytes``
        and ``topics``. The oldest thousand are listed.
        """
        answer = await self._connection.call(lambda n: ask.AsideRequest(id=n))
        requests: list[dict[str, Any]] = answer.head["requests"]
        return requests

    async def retry_set_aside(self, request: str) -> int | None:
        """Publish a request that was set aside, as new messages; return the number of the last.

        ``None`` if it is kept again, since the upstream hub is away. If it is refused once more, it stays set aside.
        """
        answer = await self._connection.call(
            lambda n: ask.AsideRequest(id=n, action="retry", request=request)
        )
        last: int | None = answer.head.get("last")
        return last

    async def drop_set_aside(self, request: str) -> None:
        """Forget a request that was set aside, with its messages."""
        await self._connection.call(lambda n: ask.AsideRequest(id=n, action="drop", request=request))

    async def lost(self, reader: str | None = None) -> dict[str, dict[str, Any]]:
        """Return what each reader, or one, has lost: the number of ``messages``, and the newest ``ranges`` of them."""
        answer = await self._connection.call(lambda n: ask.LostRequest(id=n, reader=reader))
        return dict(answer.head["lost"])

    async def report_lost(self, reader: str, first: int, last: int) -> None:
        """Report that messages ``first`` to ``last`` were gone before ``reader`` had them, for the hub's status."""
        await self._connection.call(lambda n: ask.LostRequest(id=n, reader=reader, first=first, last=last))

    async def newest(self, publisher: str) -> int | None:
        """Return the highest number of a publisher's messages in the log; ``None`` if it has none there."""
        answer = await self._connection.call(lambda n: ask.PublisherRequest(id=n, publisher=publisher))
        newest: int | None = answer.head.get("newest")
        return newest

    async def services(self) -> list[dict[str, Any]]:
        """List the services: ``id``, ``kind``, ``created``, ``seq`` and ``bytes`` of each."""
        return await self._listed("services", lambda after: lambda n: ask.ServicesRequest(id=n, after=after))

    async def service(self, service: str) -> bytes:
        """Return the value of one service."""
        answer = await self._connection.call(lambda n: ask.ServicesRequest(id=n, service=service))
        return bytes(answer.body)

    async def create_service(self, service: str, kind: Literal["json", "last"] = "json") -> None:
        """Create a service, or offer a removed one anew, empty; returns once that is in the log.

        An existing one stays as it is; if it is of the other kind, the hub refuses with ``conflict``.
        """
        await self._connection.call(
            lambda n: ask.ServicesRequest(id=n, service=service, action="create", kind=kind)
        )

    async def remove_service(self, service: str) -> bool:
        """Stop offering a service; returns once that is in the log, ``False`` if it was removed before.

        Its subscribers still receive messages published under its id.
        """
        answer = await self._connection.call(
            lambda n: ask.ServicesRequest(id=n, service=service, action="remove")
        )
        return bool(answer.head.get("removed"))

    async def snapshot(self) -> bytes:
        """Return the hub's state, in the form of a snapshot file."""
        pieces, _ = await self._pieces(
            lambda n: ask.SnapshotRequest(id=n, credit=self._credit), lambda message: bytes(message.body)
        )
        return b"".join(pieces)

    async def chain(self, first_block: int = 0) -> Chain:
        """Return the digests of all messages, as the hub keeps them; or those of blocks from ``first_block`` on."""
        pieces, _ = await self._pieces(
            lambda n: ask.ChainRequest(id=n, first=first_block, credit=self._credit),
            lambda message: bytes(message.body),
        )
        return Chain.parse(b"".join(pieces), "the hub's chain")

    async def subscriptions(self) -> pa.Table:
        """Return every content subscription: client, connector, the place of its entry, and its fields by attribute.

        The metadata of the table's schema has ``head``, the newest message, and ``op``, the position in the log, that
        it includes.
        """
        pieces, end = await self._pieces(
            lambda n: ask.SubscriptionsRequest(id=n, credit=self._credit),
            lambda message: rows_of(message.body, SUBSCRIPTIONS),
        )
        table = pa.Table.from_batches(pieces, schema=SUBSCRIPTIONS)
        return table.replace_schema_metadata({name: str(end.get(name, 0)) for name in ("head", "op")})

    # Holds

    async def holds(self) -> dict[str, int]:
        """List the holds: the first message that each keeps from being trimmed."""
        answer = await self._connection.call(lambda n: ask.HoldsRequest(id=n))
        return dict(answer.head["holds"])

    async def hold(self, name: str, seq: int) -> None:
        """Keep messages from ``seq`` on; returns once that is in the log."""
        await self._connection.call(lambda n: ask.HoldsRequest(id=n, name=name, seq=seq))

    async def release(self, name: str) -> None:
        """Release a hold."""
        await self._connection.call(lambda n: ask.HoldsRequest(id=n, name=name, release=True))

    # Durable consumers

    async def consumers(self) -> list[dict[str, Any]]:
        """List the durable consumers in the order of their creation, and how far each has come."""
        return await self._listed(
            "consumers", lambda after: lambda n: ask.ConsumersRequest(id=n, after=after)
        )

    async def show_consumer(self, name: str) -> dict[str, Any]:
        """Return how far a consumer has come, and its terms."""
        answer = await self._connection.call(
            lambda n: ask.ConsumersRequest(id=n, consumer=name, action="show")
        )
        return dict(answer.head["consumers"][0])

    async def reset_consumer(self, name: str, from_seq: Start) -> None:
        """Rewind or skip: deliver everything from ``from_seq`` on; returns once that is in the log."""
        check_from_seq(from_seq)
        seq = await number_of(self._connection, from_seq)
        await self._connection.call(
            lambda n: ask.ConsumersRequest(id=n, consumer=name, action="reset", to=seq)
        )

    async def remove_consumer(self, name: str) -> None:
        """Remove a consumer; its members get an error."""
        await self._connection.call(lambda n: ask.ConsumersRequest(id=n, consumer=name, action="remove"))

    async def _listed(self, what: str, later_than: Callable[[int], Make[Any]]) -> list[dict[str, Any]]:
        """Gather a list that comes in parts, each of things created later than the part before."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["created"] if found else 0
            answer = await self._connection.call(later_than(after))
            more = answer.head[what]
            found += more
            if not more:
                return found

    async def _pieces(
        self, make: Make[Any], read: Callable[[LinkMessage], R]
    ) -> tuple[list[R], Mapping[str, Any]]:
        """Gather a stream's pieces as ``read`` reads them, and the head of its end."""
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
