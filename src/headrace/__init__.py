"""Headrace: five wire protocols in, one verified sequence in the middle, Spark pipelines out.

    async with headrace.connect() as link:
        await link.publish(b"hello", topic="greetings")
        async for message in link.follow(from_seq=1):
            print(message.seq, message.payload)

Every name here is public. Each is imported when it is first used, so that importing the package is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.base import Client, Row
    from headrace.client.conditions import (
        AnyConditions,
        Conditions,
        above,
        any_of,
        at_least,
        at_most,
        below,
        between,
        circle,
        equals,
        exists,
        fence,
        inside,
        missing,
        not_,
        one_of,
        polygon,
        starts_with,
        where,
    )
    from headrace.client.connect import connect, connect_sync
    from headrace.client.fyrehose.client import FyrehoseClient
    from headrace.client.fyrehose.journal import JournalBounds
    from headrace.client.link.client import Extent, LinkClient
    from headrace.client.link.consumer import Consumer
    from headrace.client.link.publisher import Acknowledged, Kept, LinkPublisher
    from headrace.client.link.streams import BatchStream, EntryStream, MessageStream
    from headrace.client.publisher.client import PublisherClient
    from headrace.client.sdk.client import SdkClient
    from headrace.client.spp.client import LiveService, Offers, SppClient
    from headrace.client.sql.query import sql
    from headrace.client.stats import FyrehoseStats, PublisherStats, SdkStats
    from headrace.client.sync import (
        SyncBatchStream,
        SyncClient,
        SyncConsumer,
        SyncEntryStream,
        SyncFyrehoseClient,
        SyncIterator,
        SyncLinkClient,
        SyncLinkPublisher,
        SyncLiveService,
        SyncMessageStream,
        SyncPublisherClient,
        SyncSdkClient,
        SyncSppClient,
    )
    from headrace.errors import (
        ArchiveError,
        ClosedError,
        ConfigError,
        DamagedError,
        ForgedError,
        FullError,
        HeadraceError,
        LimitError,
        LockedError,
        LostRangeError,
        MalformedError,
        NoArchiveError,
        OvertakenError,
        PeerError,
        RefusedError,
        StorageError,
        TrimmedError,
        UnavailableError,
        UnexpectedError,
        UnreachableError,
        UsageError,
        WireError,
    )
    from headrace.message import Batch, Message, Run
    from headrace.wire.spp import Offer

__version__ = "0.1.0"

_HOMES = {
    "headrace.client.base": "Client Row",
    "headrace.client.conditions": (
        "AnyConditions Conditions above any_of at_least at_most below between circle equals exists fence inside "
        "missing not_ one_of polygon starts_with where"
    ),
    "headrace.client.connect": "connect connect_sync",
    "headrace.client.fyrehose.client": "FyrehoseClient",
    "headrace.client.fyrehose.journal": "JournalBounds",
    "headrace.client.link.client": "Extent LinkClient",
    "headrace.client.link.consumer": "Consumer",
    "headrace.client.link.publisher": "Acknowledged Kept LinkPublisher",
    "headrace.client.link.streams": "BatchStream EntryStream MessageStream",
    "headrace.client.publisher.client": "PublisherClient",
    "headrace.client.sql.query": "sql",
    "headrace.client.sdk.client": "SdkClient",
    "headrace.client.spp.client": "LiveService Offers SppClient",
    "headrace.client.stats": "FyrehoseStats PublisherStats SdkStats",
    "headrace.client.sync": (
        "SyncBatchStream SyncClient SyncConsumer SyncEntryStream SyncFyrehoseClient SyncIterator SyncLinkClient "
        "SyncLinkPublisher SyncLiveService SyncMessageStream SyncPublisherClient SyncSdkClient "
        "SyncSppClient"
    ),
    "headrace.errors": (
        "ArchiveError ClosedError ConfigError DamagedError ForgedError FullError HeadraceError LimitError "
        "LockedError LostRangeError MalformedError NoArchiveError OvertakenError PeerError RefusedError "
        "StorageError TrimmedError UnavailableError UnexpectedError UnreachableError UsageError WireError"
    ),
    "headrace.message": "Batch Message Run",
    "headrace.wire.spp": "Offer",
}
"""The names of each module that are public here."""

__all__ = [
    "Acknowledged",
    "AnyConditions",
    "ArchiveError",
    "Batch",
    "BatchStream",
    "Client",
    "ClosedError",
    "Conditions",
    "ConfigError",
    "Consumer",
    "DamagedError",
    "EntryStream",
    "Extent",
    "ForgedError",
    "FullError",
    "FyrehoseClient",
    "FyrehoseStats",
    "HeadraceError",
    "JournalBounds",
    "Kept",
    "LimitError",
    "LinkClient",
    "LinkPublisher",
    "LiveService",
    "LockedError",
    "LostRangeError",
    "MalformedError",
    "Message",
    "MessageStream",
    "NoArchiveError",
    "Offer",
    "Offers",
    "OvertakenError",
    "PeerError",
    "PublisherClient",
    "PublisherStats",
    "RefusedError",
    "Row",
    "Run",
    "SdkClient",
    "SdkStats",
    "SppClient",
    "StorageError",
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
    "TrimmedError",
    "UnavailableError",
    "UnexpectedError",
    "UnreachableError",
    "UsageError",
    "WireError",
    "__version__",
    "above",
    "any_of",
    "at_least",
    "at_most",
    "below",
    "between",
    "circle",
    "connect",
    "connect_sync",
    "equals",
    "exists",
    "fence",
    "inside",
    "missing",
    "not_",
    "one_of",
    "polygon",
    "sql",
    "starts_with",
    "where",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
