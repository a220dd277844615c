"""The clients for code without an event loop: the same methods, which block.

:mod:`headrace.client.sync_base` explains how. A test compares each class with its asynchronous one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar, cast, overload

import pyarrow as pa

from headrace.client.conditions import AnyConditions
from headrace.client.fyrehose.client import FyrehoseClient
from headrace.client.link.client import LinkClient
from headrace.client.link.consumer import Consumer
from headrace.client.link.publisher import LinkPublisher
from headrace.client.link.streams import BatchStream, EntryStream, MessageStream
from headrace.client.publisher.client import PublisherClient
from headrace.client.sdk.client import SdkClient
from headrace.client.spp.client import Json, LiveService, SppClient
from headrace.client.spp.object_copy import Kind
from headrace.client.stats import FyrehoseStats, PublisherStats, SdkStats
from headrace.client.sync_base import (
    Ahead,
    AtUrl,
    Begun,
    Blocking,
    Making,
    Property,
    SyncClient,
    SyncContext,
    SyncIterator,
    SyncPart,
    SyncReceiver,
)
from headrace.message import Batch, Message
from headrace.wire.spp import Offer

__all__ = [
    "Begun",
    "SyncBatchStream",
    "SyncClient",
    "SyncConsumer",
    "SyncEntryStream",
    "SyncFyrehoseClient",
    "SyncIterator",
    "SyncLinkClient",
    "SyncLinkPublisher",
    "SyncLiveService",
    "SyncMessageStream",
    "SyncPublisherClient",
    "SyncSdkClient",
    "SyncSppClient",
]

V = TypeVar("V")


class SyncFyrehoseClient(SyncReceiver[FyrehoseClient, Message]):
    """A :class:`~headrace.FyrehoseClient` whose methods block.

    >>> import headrace, headrace.testing
    >>> with headrace.testing.Hub() as hub, hub.connect_sync("fyrehose://", from_seq=1) as client:
    ...     client.publish(b"hello")
    ...     next(client).payload
    b'hello'
    """

    at = AtUrl(FyrehoseClient.at)
    stats = Property[FyrehoseStats](FyrehoseStats)
    publish = Blocking(FyrehoseClient.publish)
    batches = Making(FyrehoseClient.batches, SyncIterator[Batch])


class SyncSdkClient(SyncReceiver[SdkClient, Message]):
    """A :class:`~headrace.SdkClient` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("sdk://") as client, hub.connect_sync("tube://") as link:
    ...     client.subscribe({"city": "Praha"})
    ...     _ = link.publish(b"hello", attributes={"city": "Praha"})
    ...     next(client).payload
    b'hello'
    """

    at = AtUrl(SdkClient.at)
    stats = Property[SdkStats](SdkStats)
    client_id = Property[str](SdkClient.client_id)
    cursor = Property["int | None"](SdkClient.cursor)
    subscribe = Blocking(SdkClient.subscribe)
    unsubscribe = Blocking(SdkClient.unsubscribe)
    subscriptions = Property[Mapping[str, AnyConditions]](SdkClient.subscriptions)


class SyncPublisherClient(SyncClient[PublisherClient]):
    """A :class:`~headrace.PublisherClient` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("publisher://") as client:
    ...     client.publish(b"hello", attributes={"x": 5})
    ...     [message.numbers for message in hub.wait_for(1)]
    [{'x': 5.0}]
    """

    at = AtUrl(PublisherClient.at)
    stats = Property[PublisherStats](PublisherStats)
    publish = Blocking(PublisherClient.publish)
    flush = Blocking(PublisherClient.flush)


class SyncLiveService(SyncContext, SyncIterator[V]):
    """A :class:`~headrace.LiveService` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("spp://") as client:
    ...     client.publish({"speed": 61}, topic="fleet/42")
    ...     with client.subscribe("fleet/42") as service:
    ...         service.value
    {'speed': 61}
    """

    id = Property[str]()
    kind = Property["Kind | None"](LiveService.kind)
    removed = Property[bool](LiveService.removed)
    conflated = Property[int](LiveService.conflated)
    close = Blocking(LiveService.close)

    def open(self) -> Self:
        """Subscribe and wait for the object; ``with`` does it."""
        return self.__enter__()

    @property
    def value(self) -> V | None:
        """The object: a ``dict`` (not to be changed) or ``bytes``; ``None`` before it is known."""
        return self._thread.look(lambda: cast("LiveService[V]", self._async).value)


class SyncSppClient(SyncClient[SppClient]):
    """An :class:`~headrace.SppClient` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("spp://") as client:
    ...     client.publish({"speed": 61}, topic="fleet/42")
    ...     next(client.offers()).service
    'fleet/42'
    """

    at = AtUrl(SppClient.at)
    offered = Property["tuple[str, ...]"](SppClient.offered, opens=True)
    publish = Blocking(SppClient.publish)
    offers = Making(SppClient.offers, SyncIterator[Offer])

    @overload
    def subscribe(self, service: str, kind: Literal["json"]) -> SyncLiveService[Json]: ...

    @overload
    def subscribe(self, service: str, kind: Literal["last"]) -> SyncLiveService[bytes]: ...

    @overload
    def subscribe(self, service: str, kind: None = None) -> SyncLiveService[Json | bytes]: ...

    def subscribe(self, service: str, kind: Kind | None = None) -> SyncLiveService[Any]:
        """Return a service's live object; ``with`` subscribes, and waits until the service is offered.

        ``kind`` is for objects that do not show it themselves: ``"last"`` for JSON text that each change replaces,
        without merging.
        """
        self._prepare()
        return SyncLiveService(self, self._thread.look(lambda: self._async.subscribe(service, kind)))


class SyncBatchStream(SyncContext, SyncIterator[pa.RecordBatch]):
    """A :class:`~headrace.BatchStream` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     _ = link.publish([b"a", b"b"])
    ...     [rows.num_rows for rows in link.read()]
    [2]
    """

    cursor = Property["int | None"]()
    begun = Blocking(BatchStream.begun)
    to_arrow = Blocking(BatchStream.to_arrow)
    to_pandas = Blocking(BatchStream.to_pandas)
    close = Blocking(BatchStream.aclose)


class SyncEntryStream(SyncContext, SyncIterator[pa.RecordBatch]):
    """A :class:`~headrace.EntryStream` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     link.hold("billing", 1)
    ...     [rows.column("seq").to_pylist() for rows in link.entries(0, 0, topic="hold/*")]
    [[0]]
    """

    position = Property["int | None"]()
    close = Blocking(EntryStream.aclose)


class SyncMessageStream(SyncContext, SyncIterator[Message]):
    """A :class:`~headrace.MessageStream` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link, link.follow(from_seq=1) as stream:
    ...     _ = link.publish(b"hello")
    ...     next(stream).payload, stream.cursor
    (b'hello', 2)
    """

    cursor = Property["int | None"](MessageStream.cursor)
    begun = Blocking(MessageStream.begun)
    close = Blocking(MessageStream.aclose)
    batches = Making(MessageStream.batches, SyncBatchStream)


class SyncConsumer(SyncContext, SyncIterator[Message]):
    """A :class:`~headrace.Consumer` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link, link.consumer("billing") as consumer:
    ...     _ = link.publish(b"one mill wheel")
    ...     consumer.ack(next(consumer))
    True
    """

    name = Property[str]()
    leave = Blocking(Consumer.leave)
    ack = Blocking(Consumer.ack)
    nack = Blocking(Consumer.nack)
    batches = Making(Consumer.batches, SyncIterator[pa.RecordBatch])

    def join(self) -> Self:
        """Join; ``with`` does it. The consumer is created if there is none of this name."""
        return self.__enter__()


class SyncLinkPublisher(SyncPart):
    """A :class:`~headrace.LinkPublisher` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     publisher = link.publisher("orders")
    ...     ahead = publisher.send(b"sent ahead")
    ...     publisher.publish(b"acknowledged").first, ahead.result().first
    (2, 1)
    """

    name = Property[str]()
    unacknowledged = Property[int](LinkPublisher.unacknowledged)
    publish = Blocking(LinkPublisher.publish)
    send = Ahead(LinkPublisher.send)
    flush = Blocking(LinkPublisher.flush)


class SyncLinkClient(SyncClient[LinkClient]):
    """A :class:`~headrace.LinkClient` whose methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     link.publish(b"hello", topic="greetings").first, link.head().head
    (1, 1)
    """

    at = AtUrl(LinkClient.at)
    log = Property[str](LinkClient.log, opens=True)
    publish = Blocking(LinkClient.publish)
    publisher = Making(LinkClient.publisher, SyncLinkPublisher)
    flush = Blocking(LinkClient.flush)
    head = Blocking(LinkClient.head)
    first_at = Blocking(LinkClient.first_at)
    read = Making(LinkClient.read, SyncBatchStream)
    follow = Making(LinkClient.follow, SyncMessageStream)
    entries = Making(LinkClient.entries, SyncEntryStream)
    consumer = Making(LinkClient.consumer, SyncConsumer)
    stage = Blocking(LinkClient.stage)
    commit = Blocking(LinkClient.commit)
    abort = Blocking(LinkClient.abort)
    ask = Blocking(LinkClient.ask)
    status = Blocking(LinkClient.status)
    reload = Blocking(LinkClient.reload)
    set_aside = Blocking(LinkClient.set_aside)
    retry_set_aside = Blocking(LinkClient.retry_set_aside)
    drop_set_aside = Blocking(LinkClient.drop_set_aside)
    report = Blocking(LinkClient.report)
    lost = Blocking(LinkClient.lost)
    report_lost = Blocking(LinkClient.report_lost)
    newest = Blocking(LinkClient.newest)
    services = Blocking(LinkClient.services)
    service = Blocking(LinkClient.service)
    match = Making(LinkClient.match, SyncIterator[pa.RecordBatch])
    service_as_of = Blocking(LinkClient.service_as_of)
    service_bisect = Blocking(LinkClient.service_bisect)
    create_service = Blocking(LinkClient.create_service)
    remove_service = Blocking(LinkClient.remove_service)
    snapshot = Blocking(LinkClient.snapshot)
    chain = Blocking(LinkClient.chain)
    subscriptions = Blocking(LinkClient.subscriptions)
    holds = Blocking(LinkClient.holds)
    hold = Blocking(LinkClient.hold)
    release = Blocking(LinkClient.release)
    consumers = Blocking(LinkClient.consumers)
    show_consumer = Blocking(LinkClient.show_consumer)
    reset_consumer = Blocking(LinkClient.reset_consumer)
    remove_consumer = Blocking(LinkClient.remove_consumer)
