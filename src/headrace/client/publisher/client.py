"""The client of a publisher door: messages with attributes, for content routing.

    async with headrace.connect("publisher://127.0.0.1:8000") as publisher:
        await publisher.publish({"x": 5, "city": "Praha"}, b"payload")

The protocol has no answer, so nothing here is acknowledged: a message that is on its way when a connection breaks may
be lost, and is not sent again, for that might double it. Closing in good order is the one moment at which it is known
that the hub has read everything. The link (``tube://``) carries attributes too, and acknowledges.

Strategy: messages are made into bytes, and with that checked, before the first of them is sent; a
:class:`~headrace.client.reconnect.Failover` keeps the way to the hub open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Self, TypeAlias, TypedDict

from headrace.client.publisher.tcp import PublisherStream
from headrace.client.reconnect import Failover
from headrace.config import Address
from headrace.errors import MalformedError, UsageError
from headrace.message import Run
from headrace.protocols import PORTS
from headrace.wire.attribute.items import ITEM, MAX_BODY
from headrace.wire.attribute.publish import Attributes, Publishes, serialize_all, serialize_attributes

DEFAULT_PORT: Final = PORTS["publisher"]

_PIECE: Final = 256
"""Messages that are written at a time: half a megabyte at most, for each is at most 2,004 bytes."""

_TURN_BYTES: Final = 1 << 18
_PUBLISH_COST: Final = 1 << 10
"""A task that publishes so much without ever having to wait lets others have a turn."""

Payload: TypeAlias = bytes | bytearray | memoryview

logger = logging.getLogger("headrace.client")


class Options(TypedDict, total=False):
    """What :class:`Publisher` takes besides its hosts."""

    timeout: float
    random: Random | None


@dataclass(slots=True)
class PublisherStats:
    """Counts since the client was made; they only grow."""

    published: int = 0
    """Messages that a connection took."""
    published_bytes: int = 0
    """Their bytes on the wire."""


class Publisher:
    """A client of a publisher door; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def publish(url):
    ...     async with headrace.connect(url) as publisher:
    ...         await publisher.publish({"city": "Praha", "x": 5}, b"hello")
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(publish(hub.url("publisher")))
    ...     [message] = hub.wait_for(1)
    >>> message.attributes, message.numbers
    ({'city': 'Praha'}, {'x': 5.0})

    ``timeout``
        How many seconds the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``random``
        Where the randomness of delays comes from.
    """

    def __init__(
        self, hosts: Sequence[Address], *, timeout: float = 10.0, random: Random | None = None
    ) -> None:
        self.stats = PublisherStats()
        """Counts of what was published."""
        self._timeout = timeout
        self._failover: Failover[PublisherStream] = Failover(hosts, self, random or Random())
        self._unyielding = 0

    async def open(self) -> Self:
        """Connect; ``async with`` does it."""
        await self._failover.open(self._timeout)
        return self

    async def close(self) -> None:
        """End the connection, once the hub has read everything; it may be called again.

        If that cannot be known (the connection breaks, or ten seconds pass), a warning is logged.
        """
        stream = self._failover.current
        await self._failover.close()
        if stream is not None and not stream.read_whole:
            logger.warning("closed before the hub had read everything: what was published last may be lost")

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; a lost one is replaced by itself."""
        return self._failover.current is not None

    @property
    def connects(self) -> int:
        """How many connections were made, the first one included."""
        return self._failover.connects

    async def publish(self, attributes: Attributes, payload: Payload = b"") -> None:
        """Publish a message: attributes, which are texts and finite numbers by name, and any bytes.

        Together they have room for about 2,000 bytes: :class:`~headrace.errors.LimitError` if they need more, and
        nothing is sent. Waits while there is no connection or no room.
        """
        await self.publish_many([(attributes, payload)])

    async def publish_many(self, messages: Iterable[tuple[Attributes, Payload]]) -> None:
        """Publish messages in order, with as few writes as may be; if one cannot be sent, none is."""
        self._failover.check()
        for count, data in list(_serialized(messages)):
            stream = await self._failover.stream()
            await stream.write(data)
            self.stats.published += count
            self.stats.published_bytes += len(data)
            self._unyielding += len(data) + _PUBLISH_COST
            if self._unyielding >= _TURN_BYTES:
                self._unyielding = 0
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until the operating system has taken everything; whether the hub has it, the protocol does not say.

        :class:`~headrace.errors.UnreachableError` if the connection was lost with something still here.
        """
        self._failover.check()
        stream = self._failover.current
        if stream is not None:
            await stream.flush()

    async def dial(self, address: Address) -> PublisherStream:
        """Connect; for the failover."""
        stream = PublisherStream(address, self)
        try:
            await stream.open()
        except BaseException:
            stream.abort()
            raise
        return stream

    async def wanted(self) -> None:
        """A lost connection is replaced at once; for the failover."""

    def ended(self) -> None:
        """Nobody waits here but for a connection; for the failover."""

    def lost(self, stream: PublisherStream, reason: str) -> None:
        """Have it replaced; for the stream."""
        self._failover.lost(stream, reason)


def max_payload(attributes: Attributes) -> int:
    """The most bytes a payload may have beside these attributes; less than none if they alone have too many."""
    try:
        return MAX_BODY - 2 * ITEM.size - len(serialize_attributes(attributes))
    except MalformedError as error:
        raise _unpublishable(error) from None


def _serialized(messages: Iterable[tuple[Attributes, Payload]]) -> Iterator[tuple[int, bytes]]:
    """Messages as bytes, some at a time, each with their number."""
    attributes: list[Attributes] = []
    payloads: list[Payload] = []
    for message in messages:
        says, payload = _checked(message)
        attributes.append(says)
        payloads.append(payload)
        if len(payloads) == _PIECE:
            yield _PIECE, _bytes(attributes, payloads)
            attributes, payloads = [], []
    if payloads:
        yield len(payloads), _bytes(attributes, payloads)


def _checked(message: object) -> tuple[Attributes, Payload]:
    match message:
        case (Mapping() as attributes, bytes() | bytearray() | memoryview() as payload):
            return attributes, payload
        case (Mapping(), other):
            raise UsageError(f"a payload is bytes, not {type(other).__name__}")
        case (other, _):
            raise UsageError(
                f"attributes are a mapping of names to texts and numbers, not {type(other).__name__}"
            )
        case _:
            raise UsageError("a message is its attributes and its payload, in this order")


def _bytes(attributes: Sequence[Attributes], payloads: Sequence[Payload]) -> bytes:
    try:
        return serialize_all(Publishes(attributes, Run.of(payloads)))
    except MalformedError as error:
        raise _unpublishable(error) from None


def _unpublishable(error: MalformedError) -> UsageError:
    return UsageError(f"attributes that cannot be published: expected {error.limit}")
