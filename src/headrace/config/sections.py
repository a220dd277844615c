"""Every setting there is, by section: its kind, default and doc.

A section is a frozen dataclass whose fields are settings. The whole that they make is
:class:`~headrace.config.settings.Settings`.
"""

# ruff: noqa: RUF009 -- every call below that stands as a default gives a dataclasses.field().
from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

from headrace.config.value_types import (
    Address,
    Kind,
    Secret,
    address,
    choice,
    client_id,
    count,
    flag,
    hubs,
    list_of,
    network,
    or_off,
    origin,
    parameter,
    path,
    seconds,
    secret,
    size,
    table_of,
    text,
    told,
)
from headrace.protocols import PORTS, SCHEMES

MAX_NAME_BYTES = 64
"""The longest name of a node: it travels in parcels of at most 255 bytes, several names to a parcel."""

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""The longest message there can be: payload offsets are 32-bit, as Arrow's ``binary`` has them."""

ROLES = ("sequence", "fyrehose", "spp", "tube", "publisher", "matcher", "dispatcher", "connector")
"""What a process can be: the hub that numbers messages, doors, and the parts of content routing."""

T = TypeVar("T")
Fsync = Literal["always", "interval", "never"]
Engine = Literal["hub", "spark"]


def setting(kind: Kind[T], default: T | Callable[[], T], doc: str, *, shown: str = "") -> T:
    """One setting of a section; ``shown`` is the default in words, where its value is not the same everywhere."""
    metadata = {"kind": kind, "doc": doc, "shown": shown}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def door(port: int, doc: str) -> Address | None:
    """One setting of ``listen``."""
    kind = or_off(address("host:port (IPv6 in brackets, port 0 for a free one)"))
    return setting(kind, Address("127.0.0.1", port), doc)


def host_name() -> str:
    """This machine's name, cut to what a node's may have."""
    name = platform.node().encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")
    return name if name and name.isprintable() else "headrace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where each door listens; `off` keeps it shut."""

    fyrehose: Address | None = door(PORTS["fyrehose"], "The backbone: UDP and TCP on the same port number.")
    spp: Address | None = door(PORTS["spp"], "Services.")
    parcel: Address | None = door(PORTS["parcel"], "The cluster's parcels.")
    sdk: Address | None = door(PORTS["sdk"], "Attribute pub/sub: the connector's side toward SDK clients.")
    router: Address | None = door(
        PORTS["router"], "Attribute pub/sub: the connector's side toward dispatchers."
    )
    dispatcher: Address | None = door(
        PORTS["dispatcher"], "Attribute pub/sub: matchers and other dispatchers."
    )
    publisher: Address | None = door(PORTS["publisher"], "Attribute pub/sub: publishers.")
    status: Address | None = door(
        PORTS["status"], "Attribute pub/sub: a matcher's node and vnode information."
    )
    tube_ws: Address | None = door(PORTS["tube_ws"], "The link over WebSocket.")
    tube_tcp: Address | None = door(
        PORTS["tube_tcp"], "The link over TCP: other hubs, the command line and Spark."
    )
    http: Address | None = door(
        PORTS["http"], "The dashboard, `/api/status`, `/metrics` and the health checks."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """How messages are kept."""

    fsync: Fsync = setting(
        choice("always", "interval", "never"),
        "interval",
        "When messages are forced to disk: before they are committed, every `log.fsync_interval` seconds, or"
        " when the system does. A killed hub loses none of them in any case; a power cut none under `always`.",
    )
    fsync_interval: float = setting(seconds(0.001), 0.05, "Seconds between syncs under `interval`.")
    # Large enough to compress and read well; small enough that trimming goes in small steps, and that
    # sealing one is about a second's work in the background.
    segment_bytes: int = setting(size(1), 256 << 20, "A segment of this many bytes is sealed.")
    segment_seconds: float = setting(seconds(0.001), 60.0, "A segment of this age is sealed if not empty.")
    # A hub that nobody has configured must not fill the disk it is tried on.
    retain_bytes: int | None = setting(
        or_off(size(1)),
        16 << 30,
        "The most the log takes on disk: past it the oldest segments are removed, and holds on them broken.",
    )
    # The size bounds the disk already; an age to forget at is an operator's decision.
    retain_seconds: float | None = setting(
        or_off(seconds(0.001)), None, "Sealed segments this old are removed unless held."
    )
    # As often as segments are sealed: a restart reads a snapshot and about one segment.
    snapshot_seconds: float = setting(
        seconds(0.001), 60.0, "Seconds between snapshots of services, cursors and publishers' numbers."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Named live objects."""

    auto: bool = setting(flag(), False, "Whether a message with an unknown topic creates a `last` service.")
    max: int = setting(count(0), 100_000, "The most services there may be.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fyrehose:
    """The backbone's door."""

    allow: tuple[IPv4Network, ...] = setting(
        list_of(network()),
        (),
        "Addresses that a KEEPALIVE from elsewhere may subscribe; under `auth.required`, the only ones served.",
    )
    coalesce: bool = setting(
        flag(),
        False,
        "Whether a datagram to any client may carry several packets; else only to clients that send such.",
    )
    subscriber_seconds: float = setting(seconds(0.1), 5.0, "How long a KEEPALIVE subscribes for.")
    request_limit: int = setting(count(1), 1024, "The most messages one REQUEST over UDP is served.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """Who may come in."""

    required: bool = setting(flag(), False, "Whether clients must prove who they are.")
    clients: Mapping[str, Secret] = setting(
        table_of(secret("a client id of 24 hex digits and a key that is not empty", 1), client_id),
        lambda: MappingProxyType({}),
        'Keys by client id: `auth.clients.<id> = "<key>"`. Each source adds to those of the weaker ones.',
    )
    preauth: bool = setting(
        flag(),
        False,
        "Whether `/sdk/sub/preauth` answers under `auth.required`; it hands a token to whoever asks.",
    )
    origins: tuple[str, ...] = setting(
        list_of(origin()),
        (),
        "Origins of web pages that may use `listen.tube_ws`, beside those of the address it listens on.",
    )
    sha1: bool = setting(flag(), False, "Whether HMAC-SHA1 tokens, as old clients make them, are taken.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Routing by content."""

    engine: Engine = setting(
        choice("hub", "spark"), "hub", "Who matches messages: the hub itself, or Spark's matcher fleet."
    )
    keep_seconds: float = setting(
        seconds(0), 300.0, "How long the subscription of a client that has gone away is kept for it."
    )
    max_subscriptions: int = setting(count(0), 1_000_000, "The most subscriptions there may be.")
    max_predicates: int = setting(count(1), 64, "The most attributes one subscription may name.")
    # Read at some 100 MB a second, this is seconds of work for one client, and not minutes.
    replay: int = setting(
        count(0), 1_000_000, "How many of the newest messages are looked through for a client's `after`."
    )
    json_attributes: bool = setting(
        flag(), False, "Whether the top-level strings and numbers of a JSON payload count as attributes."
    )
    dispatchers: tuple[Address, ...] = setting(
        list_of(address("host:port, or host for port 6000", PORTS["dispatcher"], 1)),
        (),
        "Where a matcher pushes what is for clients elsewhere: the first of these that answers.",
    )
    peers: tuple[Address, ...] = setting(
        list_of(address("host:port, or host for port 5500", PORTS["status"], 1)),
        (),
        "The status doors of the other matchers, which share the subscriptions with this one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """Passing on what matchers push."""

    connectors: tuple[Address, ...] = setting(
        list_of(address("host:port, or host for port 7353", PORTS["router"], 1)),
        (),
        "The router doors of the connectors that this dispatcher passes messages to.",
    )
    peers: tuple[Address, ...] = setting(
        list_of(address("host:port, or host for port 6000", PORTS["dispatcher"], 1)),
        (),
        "The dispatchers that have other connectors.",
    )
    queue_bytes: int = setting(
        size(1),
        16 << 20,
        "Bytes that wait for one connector or dispatcher; past it, its connection is closed.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What `headrace up` runs in Spark beside the hub."""

    jobs: tuple[str, ...] = setting(
        list_of(choice("archive", "verify", "measure")),
        ("measure", "verify", "archive"),
        "Its jobs; with none, the hub runs alone. They write to the folder `pipeline` of `node.data`.",
    )
    master: str = setting(
        text(1, 255),
        "auto",
        "The Spark master; `auto` is this machine, with one core left to the hub.",
    )
    memory: str = setting(text(1, 16), "1g", "The Spark driver's memory, which on this machine is all of it.")
    params: Mapping[str, str] = setting(
        table_of(told(), parameter, deep=True),
        lambda: MappingProxyType({}),
        "What its jobs are told: `pipeline.params.<job>.<name>`, or for each that takes it `pipeline.params.<name>`; "
        "`headrace up --param` adds to it. `headrace pipeline jobs` lists the names.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This hub."""

    name: str = setting(
        text(1, MAX_NAME_BYTES),
        host_name,
        "Its name, another for each node of a cluster: the 16-bit id of parcels and messages is made from it.",
        shown="the host's name",
    )
    roles: tuple[str, ...] = setting(
        list_of(choice(*ROLES)),
        ROLES,
        "What this process does; `--roles` sets it. Doors that belong to none of these stay shut.",
        shown="all",
    )
    data: Path = setting(
        path(), Path("headrace-data"), "The directory of its log and state; `--data` sets it."
    )
    upstream: tuple[str, ...] = setting(
        hubs({scheme: PORTS[SCHEMES[scheme]] for scheme in ("tube", "fyrehose", "fyrehose+udp")}),
        (),
        "The hub that numbers messages for this one, which is then a frontend; `--upstream` sets it.",
    )
    upstream_seconds: float = setting(
        seconds(0), 10.0, "How long publishers wait for a lost upstream hub before they are refused."
    )
    upstream_client: str = setting(
        text(0, 24),
        "",
        "The client id, one of `auth.clients`, with which a frontend proves itself to its upstream hub.",
        shown="none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hubs that keep one sequence together."""

    name: str = setting(text(1, MAX_NAME_BYTES), "headrace", "Nodes of another cluster are refused.")
    key: Secret = setting(
        secret("text; empty for none", 0), Secret(""), "What nodes prove to each other that they know."
    )
    peers: tuple[Address, ...] = setting(
        list_of(address("host:port, or host for port 7878", PORTS["parcel"], 1)),
        (),
        "The nodes that vote; this one may be among them.",
    )
    address: Address | None = setting(
        or_off(
            address("host:port, or host for port 7878; off for where the door listens", PORTS["parcel"], 1)
        ),
        None,
        "Where the other nodes reach this one, if that is not where its door listens.",
    )
    publish_seconds: float = setting(
        seconds(0), 10.0, "How long publishers wait for a primary before they are refused."
    )
    tls_cert: Path | None = setting(or_off(path()), None, "This node's certificate, for TLS between nodes.")
    tls_key: Path | None = setting(or_off(path()), None, "The certificate's key.")
    tls_ca: Path | None = setting(or_off(path()), None, "Who must have signed the other nodes' certificates.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one peer, and all of them together, may cost."""

    # Many clients behind one address translator are legitimate, and so is a benchmark on this machine.
    connections_per_address: int = setting(
        count(1), 1024, "The most connections and UDP subscribers of one address."
    )
    connections: int = setting(count(1), 10_000, "The most connections and UDP subscribers in all.")
    message_bytes: int = setting(
        size(1, MAX_MESSAGE_BYTES), 8 << 20, "The longest message, where its protocol has no lower limit."
    )
    # Times the connections, this is the most memory that consumers can take.
    queue_bytes: int = setting(
        size(1), 1 << 20, "Bytes that wait in memory for one connection; past it, the log feeds it."
    )
    handshake_seconds: float = setting(
        seconds(0.1), 10.0, "How long a new connection may take to authenticate or negotiate."
    )
    idle_seconds: float = setting(
        seconds(0.1),
        120.0,
        "How long a peer may be silent before it is cut off, where its protocol has heartbeats.",
    )
    slow_seconds: float = setting(
        seconds(0.1),
        30.0,
        "A TCP peer that takes no byte, or leaves a packet unfinished, for this long is cut off.",
    )
    drain_seconds: float = setting(seconds(0), 10.0, "How long a stopping hub flushes what it holds.")


DOORS = tuple(item.name for item in fields(Listen))
"""The doors' names."""
