"""Settings by section, each with its type, default and doc; `auth`, `access` and `limits` have modules of their own.

A section is a frozen dataclass whose fields are settings; :class:`~headrace.config.settings.Settings` holds them all.
"""

# ruff: noqa: RUF009 -- every default that is a call below gives a dataclasses.field().
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import IPv4Network
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from headrace.config.declaring import MAX_NAME_BYTES, door, host_name, setting
from headrace.config.value_types import (
    Address,
    PeerAddress,
    Secret,
    address,
    choice,
    count,
    flag,
    hub_urls,
    list_of,
    network,
    or_off,
    parameter_name,
    parameter_value,
    path,
    peer_address,
    seconds,
    secret,
    size,
    spark_name,
    table_of,
    text,
)
from headrace.protocols import PORTS, SCHEMES

ROLES = ("sequence", "fyrehose", "spp", "tube", "publisher", "matcher", "dispatcher", "connector")
"""The roles of a process: the hub that numbers messages, doors, and the parts of content routing."""

Fsync = Literal["always", "interval", "never"]
Engine = Literal["hub", "spark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where each door listens; `off` keeps it shut."""

    fyrehose: Address | None = door(
        PORTS["fyrehose"], "The backbone: UDP and TCP on one port number; on IPv6, TCP only."
    )
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
        " when the system does. A killed hub loses none in any case; a power cut loses none under `always`.",
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
        "Maximum bytes of the log on disk: past it the oldest segments are removed, and holds on them are broken.",
    )
    # The size bounds the disk already; an age to forget at is an operator's decision.
    retain_seconds: float | None = setting(
        or_off(seconds(0.001)), None, "Sealed segments this old are removed unless held."
    )
    # Someone with an archive wants to lose nothing: messages that it lacks stay on the disk.
    archive: str | None = setting(
        or_off(text(1, 2048)),
        None,
        "The path or URI of the log's archive: only archived messages are removed here, and they are still served.",
    )
    # As often as segments are sealed: a restart reads a snapshot and about one segment.
    snapshot_seconds: float = setting(
        seconds(0.001), 60.0, "Seconds between snapshots of services, cursors and publishers' numbers."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Named live objects."""

    auto: bool = setting(flag(), False, "Whether a message with an unknown topic creates a `last` service.")
    max: int = setting(count(0), 100_000, "Maximum number of services.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fyrehose:
    """The backbone's door."""

    allow: tuple[IPv4Network, ...] = setting(
        list_of(network()),
        (),
        "Addresses that a KEEPALIVE or REQUEST of others may name, and that need no CHALLENGE; under `auth.required`,"
        " the only ones served.",
    )
    coalesce: bool = setting(
        flag(),
        False,
        "Whether a datagram to any client may carry several packets; otherwise only to clients that send such.",
    )
    subscriber_seconds: float = setting(seconds(0.1), 5.0, "How long a KEEPALIVE subscribes for.")
    request_limit: int = setting(
        count(1), 1024, "Maximum number of messages that answer one REQUEST over UDP."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Content routing."""

    engine: Engine = setting(
        choice("hub", "spark"), "hub", "What matches messages: the hub itself, or Spark's matcher fleet."
    )
    keep_seconds: float = setting(
        seconds(0), 300.0, "How long the subscription of a disconnected client is kept."
    )
    max_subscriptions: int = setting(count(0), 1_000_000, "Maximum number of subscriptions.")
    max_predicates: int = setting(
        count(1), 64, "Maximum number of attributes that one subscription may name."
    )
    # Read at about 100 MB a second, this is seconds of work for one client, not minutes.
    replay: int = setting(
        count(0), 1_000_000, "How many of the newest messages are searched for a client's `after`."
    )
    json_attributes: bool = setting(
        flag(), False, "Whether the top-level strings and numbers of a JSON payload count as attributes."
    )
    # Two hubs that differ in this would see different events.
    fence_window: int = setting(
        count(1),
        1_000_000,
        "How many messages back a fence looks for the previous position of a key; a key not seen for longer is"
        " forgotten. Set it alike in every process that matches.",
    )
    # With a million keys each, a hundred megabytes.
    max_tracks: int = setting(
        count(0),
        16,
        "Maximum number of kinds of moving things that all fences may need together. A kind is three attribute names:"
        " a key and two coordinates.",
    )
    dispatchers: tuple[Address, ...] = setting(
        list_of(address("host:port, or host for port 6000", PORTS["dispatcher"], 1)),
        (),
        "Where a matcher sends messages for clients of other hubs: the first of these that answers.",
    )
    peers: tuple[Address, ...] = setting(
        list_of(address("host:port, or host for port 5500", PORTS["status"], 1)),
        (),
        "The status doors of the other matchers, which share the subscriptions with this one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """Passing matched messages on to connectors."""

    connectors: tuple[PeerAddress, ...] = setting(
        list_of(peer_address("host:port or ID@host:port; without a port, 7353", PORTS["router"], 8)),
        (),
        "The router doors of the connectors that this dispatcher passes messages to."
        " For a connector that never answers a handshake, give its 8-character id.",
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
    """The Spark jobs that `headrace up` runs beside the hub."""

    jobs: tuple[str, ...] = setting(
        list_of(choice("archive", "verify", "measure")),
        ("measure", "verify", "archive"),
        "The jobs; with none, the hub runs alone. They write to the folder `pipeline` of `node.data`.",
    )
    master: str = setting(
        text(1, 255),
        "auto",
        "The Spark master; `auto` is this machine, with one core left to the hub.",
    )
    memory: str = setting(
        text(1, 16), "1g", "The Spark driver's memory, which in local mode is all there is."
    )
    params: Mapping[str, str] = setting(
        table_of(parameter_value(), parameter_name, deep=True),
        lambda: MappingProxyType({}),
        "The jobs' parameters: `pipeline.params.<job>.<name>`, or `pipeline.params.<name>` for every job that has it."
        " `headrace up --param` adds to them; `headrace pipeline jobs` lists them.",
    )
    conf: Mapping[str, str] = setting(
        table_of(parameter_value("a setting of Spark's, and its value"), spark_name, deep=True),
        lambda: MappingProxyType({}),
        "Spark's own settings, which win over Headrace's: `pipeline.conf.spark.<name>`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This hub."""

    name: str = setting(
        text(1, MAX_NAME_BYTES),
        host_name,
        "Its name, unique in a cluster: the 16-bit id in parcels and messages is made from it.",
        shown="the host's name",
    )
    roles: tuple[str, ...] = setting(
        list_of(choice(*ROLES)),
        ROLES,
        "The parts that this process runs; `--roles` sets it. Doors that belong to none of them stay shut.",
        shown="all",
    )
    data: Path = setting(
        path(), Path("headrace-data"), "The directory of its log and state; `--data` sets it."
    )
    upstream: tuple[str, ...] = setting(
        hub_urls(
            {
                scheme: PORTS[SCHEMES[scheme]]
                for scheme in ("tube", "fyrehose", "fyrehose+udp", "tube+tls", "fyrehose+tls")
            }
        ),
        (),
        "The hub that numbers messages for this one, which is then a frontend; `--upstream` sets it.",
    )
    upstream_seconds: float = setting(
        seconds(0), 10.0, "How long publishers wait for a lost upstream hub before they are refused."
    )
    upstream_client: str = setting(
        text(0, 24),
        "",
        "The client id, of `auth.clients` or of a principal, with which a frontend authenticates to its upstream hub.",
        shown="none",
    )
    upstream_translated: bool = setting(
        flag(),
        False,
        "Whether an address translator stands between this hub and a `fyrehose+udp` upstream hub.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Messages that a frontend keeps while its upstream hub is away."""

    # Off: an acknowledgement then always means that the message has its number.
    store: bool = setting(
        flag(),
        False,
        "Whether a frontend that has lost its upstream hub for `node.upstream_seconds` keeps messages on its disk,"
        " acknowledges them as kept, and sends them up, in order and once, when it is back; if not, it refuses them.",
    )
    store_bytes: int = setting(
        size(1 << 20),
        1 << 30,
        "Maximum bytes kept that way, including messages that the upstream hub refused; past it, messages are refused.",
    )
    store_seconds: float | None = setting(
        or_off(seconds(1)),
        None,
        "Messages are refused once the oldest one kept has waited this long.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hubs that keep one sequence together."""

    name: str = setting(text(1, MAX_NAME_BYTES), "headrace", "Nodes of another cluster are refused.")
    key: Secret = setting(
        secret("text; empty for none", 0),
        Secret(""),
        "The nodes' shared secret; each proves that it knows it.",
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
    tls_cert: Path | None = setting(
        or_off(path()), None, "This node's certificate, for TLS between nodes, if it is not `tls.cert`."
    )
    tls_key: Path | None = setting(or_off(path()), None, "The certificate's key.")
    tls_ca: Path | None = setting(or_off(path()), None, "The authority that signed the nodes' certificates.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS at the doors, and toward other hubs. Renewed files are taken without a restart."""

    cert: Path | None = setting(
        or_off(path()),
        None,
        "The hub's certificate in PEM, with the chain below its authority: turns TLS on at the doors.",
    )
    key: Path | None = setting(
        or_off(path()), None, "The certificate's key, if it is not in the same file; it has no password."
    )
    ca: Path | None = setting(
        or_off(path()),
        None,
        "The authority that must have signed clients' certificates, and those of hubs that this one dials (by default,"
        " for these, any authority that the system trusts).",
    )
    doors: tuple[str, ...] = setting(
        list_of(choice(*(item.name for item in fields(Listen)))),
        (),
        "The doors that speak TLS.",
        shown="all",
    )


DOORS = tuple(item.name for item in fields(Listen))
"""The doors' names."""
