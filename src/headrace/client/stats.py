"""Counters of clients: traffic, repairs, repeats, losses and reconnections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FyrehoseStats:
    """Counts of a :class:`~headrace.FyrehoseClient` since it was made; of messages, unless stated otherwise.

    >>> import headrace
    >>> headrace.FyrehoseClient.at("fyrehose://127.0.0.1").stats.received
    0
    """

    received: int = 0
    """Messages delivered in order."""
    received_bytes: int = 0
    missing: int = 0
    """Messages that were not there when a later one came."""
    repaired: int = 0
    """Messages that came after they had been requested."""
    lost: int = 0
    """Messages reported as lost."""
    hollow: int = 0
    """Messages that came without data and were handed out: they are empty, or too long for fyrehose."""
    repeated: int = 0
    """Repeated messages, which were discarded."""
    dropped: int = 0
    """Messages that came when there was no room for them, or no consumer; requested again when there is."""
    unasked: int = 0
    """Messages from a peer other than the hub that had not been requested."""
    requests: int = 0
    """REQUESTs sent."""
    forwards: int = 0
    """FORWARDs received from the hub."""
    forwarded: int = 0
    """Messages sent to other clients in answer to FORWARDs."""
    refused: int = 0
    """Streams cut, and datagrams dropped, for bytes that break the protocol."""
    published: int = 0
    """Messages handed to a connection."""
    published_bytes: int = 0
    connects: int = 0
    """Connections that were made, the first one included."""
    disconnects: int = 0
    """Connections that were lost."""
    rests: int = 0
    """Times the client unsubscribed because its consumer took nothing."""
    unsent: int = 0
    """Datagrams that the system did not take."""


@dataclass(slots=True)
class SdkStats:
    """Counts of an :class:`~headrace.SdkClient` since it was made.

    >>> import headrace
    >>> headrace.SdkClient.at("sdk://127.0.0.1").stats
    SdkStats(received=0, received_bytes=0, repeated=0)
    """

    received: int = 0
    """Messages for the consumer."""
    received_bytes: int = 0
    repeated: int = 0
    """Messages that came again, and were dropped."""


@dataclass(slots=True)
class PublisherStats:
    """Counts of a :class:`~headrace.PublisherClient` since it was made.

    >>> import headrace
    >>> headrace.PublisherClient.at("publisher://127.0.0.1").stats
    PublisherStats(published=0, published_bytes=0)
    """

    published: int = 0
    """Messages that a connection took."""
    published_bytes: int = 0
    """Their bytes on the wire."""
