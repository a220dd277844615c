"""The section `limits`: what each peer may take of the hub, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from headrace.config.declaring import memory_share, setting
from headrace.config.value_types import any_network, count, list_of, or_off, seconds, size

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""The longest possible message: payload offsets are 32-bit, as in Arrow's ``binary``."""

BUDGETS: Final = (
    "connections",
    "subscriptions",
    "state_bytes",
    "staged_bytes",
    "filter_cost",
    "tracks",
    "messages_per_second",
    "bytes_per_second",
    "sent_bytes_per_second",
)
"""The limits that a principal may have of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for each peer, and for all of them together."""

    # Many clients behind one address translator are legitimate, and so is a benchmark on this machine.
    connections_per_address: int = setting(
        count(1), 1024, "Maximum connections of one address at one door, and UDP subscribers of one address."
    )
    connections: int = setting(count(1), 10_000, "Maximum connections and UDP subscribers in all.")
    message_bytes: int = setting(
        size(1, MAX_MESSAGE_BYTES), 8 << 20, "The longest message, where its protocol has no lower limit."
    )
    # Times the connections, this is the most memory that consumers can take.
    queue_bytes: int = setting(
        size(1),
        1 << 20,
        "Bytes that wait in memory for one connection; past it, the connection is fed from the log.",
    )
    unfinished_bytes: int = setting(
        size(16 << 20),
        64 << 20,
        "Bytes of incomplete messages, of all peers together. Past three quarters of it peers wait for one another, and"
        " those that fall silent in the middle of a message are cut off; past 1.4 times as much, others too.",
    )
    # The objects of 100,000 services of some kilobytes each. In memory, a JSON object takes a few times its text.
    state_bytes: int = setting(
        size(1 << 20), 512 << 20, "Bytes of all services together: their ids and the text of their objects."
    )
    state_bytes_per_client: int = setting(
        size(1), 256 << 20, "The same for the services that one client was the last to publish to."
    )
    # A thousand streams, each with a filter of a hundred wildcards and predicates.
    filter_cost_per_client: int = setting(
        count(1),
        100_000,
        "Maximum cost of the filters of one client's streams together: one for each filter, and one more for each"
        " wildcard, predicate and vertex of a polygon.",
    )
    tracks_per_client: int = setting(
        count(0), 4, "How many of the `matching.max_tracks` the fences of one client may need."
    )
    # They are on the disk, and a query cannot continue past a batch that does not fit.
    staged_bytes_per_client: int = setting(
        size(1 << 20),
        64 << 30,
        "Bytes of rows that one client's Spark queries have staged and not committed yet, all tasks together.",
    )
    # Here and below, a client is a principal, or an unauthenticated address.
    connections_per_client: int = setting(
        count(1),
        5000,
        "Maximum connections of one client, or of one unauthenticated address, at all doors together.",
    )
    subscriptions_per_client: int = setting(
        count(1),
        200_000,
        "Maximum subscriptions and streams of one client; each vertex of a polygon counts as one more.",
    )
    attributes: int = setting(count(1), 1024, "Maximum number of attributes of one message.")
    # Long enough for a service that is run once a quarter.
    consumer_seconds: float | None = setting(
        or_off(seconds(1)),
        100 * 86_400.0,
        "An unused durable consumer is removed once the oldest message that waits for it is this old.",
    )
    messages_per_second: int | None = setting(
        or_off(count(1)),
        None,
        "Maximum messages a second from one client; past it, the hub stops reading from it for a while.",
    )
    bytes_per_second: int | None = setting(
        or_off(size(1)),
        None,
        "Maximum bytes a second from one client; past it, the hub stops reading from it for a while.",
    )
    sent_bytes_per_second: int | None = setting(
        or_off(size(1)), None, "Maximum bytes a second to one client; past it, the client has to wait."
    )
    memory: int | None = setting(
        or_off(size(64 << 20)),
        memory_share,
        "Bytes of memory past which publishers wait and new connections are refused.",
        shown="three quarters of the memory of the machine, or of its control group",
    )
    poll_seconds: float = setting(
        seconds(0.01),
        4.0,
        "How long a read of a stream over HTTP waits for something new (`live=long-poll`).",
    )
    handshake_seconds: float = setting(
        seconds(0.1), 10.0, "How long a new connection may take to authenticate or negotiate."
    )
    idle_seconds: float = setting(
        seconds(0.1),
        120.0,
        "How long a peer may be silent before it is cut off, where its protocol has heartbeats."
        " A TCP peer that has vanished is found within about this time.",
    )
    # The original's SDK clients and dispatchers send a heartbeat every 300 s.
    routing_idle_seconds: float = setting(
        seconds(0.1),
        900.0,
        "The same for SDK clients, matchers and dispatchers, at the `sdk`, `router` and `dispatcher` doors.",
    )
    # A publisher may connect long before it has anything to send, and some protocols never acknowledge.
    silent_seconds: float = setting(
        seconds(0.1),
        900.0,
        "How long a TCP peer may be connected without having sent anything, where its protocol has neither a login nor"
        " heartbeats.",
    )
    slow_seconds: float = setting(
        seconds(0.1),
        30.0,
        "A TCP peer that takes no byte, or leaves a packet unfinished, for this long is cut off.",
    )
    proxies: tuple[IPv4Network | IPv6Network, ...] = setting(
        list_of(any_network()),
        (),
        "The proxies in front of this hub. Their connections begin with a PROXY protocol header (version 2), or at"
        " `http` have `Forwarded`, and count as coming from the address named there. Others are not believed.",
    )
    drain_seconds: float = setting(
        seconds(0), 10.0, "How long a stopping hub may take to flush what it holds."
    )
