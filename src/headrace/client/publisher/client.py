"""The client of a publisher door: messages with attributes, for content routing.

    async with headrace.connect("publisher://") as client:
        await client.publish(b"payload", attributes={"x": 5, "city": "Praha"})

The protocol has no answer, so nothing here is acknowledged: a message that is on its way when a connection breaks may
be lost, and is not sent again, since that might double it. Only closing in good order shows that the hub has read
everything. The link (``tube://``) carries attributes too, and acknowledges.

Strategy: messages are serialized, and so checked, before the first of them is sent; a
:class:`~headrace.client.reconnect.Failover` keeps the way to the hub open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final, Self, Unpack, cast

from headrace.client.base import Attributes, Client, Courtesy, Payload, Row, parse_url
from headrace.client.reconnect import Failover
from headrace.client.stats import PublisherStats
from headrace.client.tcp import WRITE_BYTES, TcpConnection
from headrace.client.tls import RenewedContext, TlsOptions, client_tls
from headrace.config import Address
from headrace.errors import MalformedError, UnreachableError, UsageError
from headrace.message import Run
from headrace.wire.attribute.items import ITEM, MAX_BODY
from headrace.wire.attribute.publish import Publishes, serialize_all, serialize_attributes

_PIECE: Final = 256
"""Messages that are written at a time: half a megabyte at most, since each is at most 2,004 bytes."""

_TURN_BYTES: Final = 1 << 18
_PUBLISH_COST: Final = 1 << 10
"""A task that publishes this many bytes without ever having to wait yields to others."""

logger = logging.getLogger("headrace.client")


class PublisherOptions(TlsOptions, total=False):
    """The options of a :class:`PublisherClient`."""

    timeout: float
    random: Random | None


class PublisherClient(Client):
    """A client of a publisher door; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def publish(url):
    ...     async with headrace.connect(url) as client:
    ...         await client.publish(b"hello", attributes={"city": "Praha", "x": 5})
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(publish(hub.url("publisher")))
    ...     [message] = hub.wait_for(1)
    >>> message.attributes, message.numbers
    ({'city': 'Praha'}, {'x': 5.0})

    ``timeout``
        Seconds that the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``ca``, ``cert``, ``cert_key``, ``pin``
        Files for TLS, where the scheme says so: :class:`~headrace.client.tls.TlsOptions`.
    ``random``
        The source of randomness for delays.
    """

    DOORS: ClassVar = {"publisher": "publisher", "publisher+tls": "publisher"}

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        timeout: float = 10.0,
        random: Random | None = None,
        tls: RenewedContext | None = None,
    ) -> None:
        self._tls = tls
        self.stats = PublisherStats()
        """Counts of what was published."""
        self._failover: Failover[PublisherConnection] = Failover(hosts, random or Random(), self._dial)
        super().__init__(self._failover, timeout)
        self._courtesy = Courtesy(_TURN_BYTES, _PUBLISH_COST)

    @classmethod
    def at(
        cls, url: str = "publisher://", hosts: str | None = None, **options: Unpack[PublisherOptions]
    ) -> Self:
        """Make the client of a hub by its URL; see :func:`headrace.connect`."""
        scheme, addresses = parse_url(url, hosts, cls.DOORS)
        given: Any = options
        return cls(addresses, tls=client_tls(scheme, given), **given)

    async def close(self) -> None:
        """Close the connection once the hub has read everything; it may be called again.

        If that cannot be known (the connection breaks, or ten seconds pass), a warning is logged.
        """
        connection = self._failover.current
        await super().close()
        if connection is not None and not connection.read_whole:
            logger.warning("closed before the hub had read everything: what was published last may be lost")

    async def publish(
        self,
        payload: Payload | Row | Iterable[Payload | Row] = b"",
        *,
        attributes: Attributes | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Publish one or many messages, in order, with attributes: texts and finite numbers by name.

        A message as a dictionary (:class:`~headrace.Row`) may have its own attributes. Payload and attributes have
        room for about 2,000 bytes together: :class:`~headrace.errors.LimitError` if one message needs more, and none
        is sent. Waits while there is no connection or no room.
        """
        self._failover.check()
        for count, data in list(_serialized(payload, attributes or {}, numbers or {})):
            connection = await self._failover.connection()
            connection.write(data)
            await connection.room()
            self.stats.published += count
            self.stats.published_bytes += len(data)
            await self._courtesy.sent(len(data))

    async def flush(self) -> None:
        """Wait until the operating system has taken everything; the protocol does not tell whether the hub has it.

        :class:`~headrace.errors.UnreachableError` if the connection was lost with something still here.
        """
        self._failover.check()
        connection = self._failover.current
        if connection is not None:
            await connection.flush()

    async def _dial(self, address: Address) -> PublisherConnection:
        return await PublisherConnection(address, self._failover.lost).open(self._tls)


class PublisherConnection(TcpConnection, asyncio.Protocol):
    """A TCP connection to a publisher door, on which the hub never says anything."""

    async def flush(self) -> None:
        """Wait until the operating system has it all; :class:`~headrace.errors.UnreachableError` if it never will."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=0)
            try:
                await self._room.wait()
            finally:
                if not self._transport.is_closing():
                    self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        if self.ended is not None:
            raise UnreachableError(str(self.address), f"{self.ended}; what was published last may be lost")


def max_payload(attributes: Attributes) -> int:
    """Return the maximum bytes of a payload beside these attributes; negative if they alone are too long."""
    try:
        return MAX_BODY - 2 * ITEM.size - len(serialize_attributes(attributes))
    except MalformedError as error:
        raise _unpublishable(error) from None


def _serialized(
    given: Payload | Row | Iterable[Payload | Row], attributes: Attributes, numbers: Mapping[str, float]
) -> Iterator[tuple[int, bytes]]:
    """Serialize messages, some at a time; yield the bytes and the number of messages."""
    if isinstance(given, bytes | bytearray | memoryview | Mapping):
        messages = [cast("Payload | Row", given)]
    else:
        messages = list(given)
    for begin in range(0, len(messages), _PIECE):
        piece = [_split(each, attributes, numbers) for each in messages[begin : begin + _PIECE]]
        try:
            data = serialize_all(Publishes([each for each, _ in piece], Run.of(each for _, each in piece)))
        except MalformedError as error:
            raise _unpublishable(error) from None
        yield len(piece), data


def _split(
    message: Payload | Row, attributes: Attributes, numbers: Mapping[str, float]
) -> tuple[Attributes, Payload]:
    row: Row = message if isinstance(message, Mapping) else {"payload": message}
    if unknown := set(row) - {"payload", "attributes", "numbers"}:
        raise UsageError(f"a message has payload, attributes, numbers here, not {', '.join(sorted(unknown))}")
    payload = row.get("payload", b"")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise UsageError(f"a payload is bytes, not {type(payload).__name__}")
    both = row.get("attributes", attributes), row.get("numbers", numbers)
    for each in both:
        if not isinstance(each, Mapping):
            raise UsageError(
                f"attributes are a mapping of names to texts and numbers, not {type(each).__name__}"
            )
    return ({**both[0], **both[1]} if both[1] else both[0]), payload


def _unpublishable(error: MalformedError) -> UsageError:
    return UsageError(f"attributes that cannot be published: expected {error.limit}")
