"""The options of the source and the sink.

Spark gives options as texts with names in lower case. Here they become a checked value that can be pickled and contains
no secret: a key is read from its file, or from the environment, where a connection is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from headrace.client.tls import ClientTls, RenewedContext, TlsFiles
from headrace.config import Address
from headrace.config.sources import (
    CA_VARIABLE,
    CERT_KEY_VARIABLE,
    CERT_VARIABLE,
    CLIENT_VARIABLE,
    KEY_VARIABLE,
    PIN_VARIABLE,
)
from headrace.errors import HeadraceError, UsageError
from headrace.protocols import PORTS
from headrace.spark.option_values import GivenOptions, OffsetOption, parse_predicates
from headrace.wire.link.requests import MAX_NAME, WRITE

DEFAULT_SERVERS: Final = "127.0.0.1:8081"
DEFAULT_PORT: Final = PORTS["tube_tcp"]

SERVERS_VARIABLE: Final = "HEADRACE_SERVERS"
"""The variable that names the hubs where the option ``servers`` does not; only the driver's is looked at."""

READER: Final = "spark"
"""The default name of a reader."""

MAX_DELAY: Final = 15 * 60.0
"""Seconds that ``minBytesPerTrigger`` may delay a message by default."""

_TLS: Final = {"tls.ca": "ca", "tls.cert": "cert", "tls.key": "cert_key", "tls.pin": "pin"}
"""The options that name files for TLS, and what they are called elsewhere."""
_TLS_SCHEME: Final = "tube+tls://"
_TLS_VARIABLES: Final = {
    "ca": CA_VARIABLE,
    "cert": CERT_VARIABLE,
    "cert_key": CERT_KEY_VARIABLE,
    "pin": PIN_VARIABLE,
}
_BOTH: Final = ("servers", "clientId", "keyFile", "patience", *_TLS)
_READ: Final = (
    *_BOTH,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "archive",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "minBytesPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "topic",
    "origin",
    "where",
    "columns",
    "hold",
    "reader",
    "files",
)
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "minBytesPerTrigger",
    "maxTriggerDelay",
    "hold",
)
_WRITE: Final = (*_BOTH, "topic", "txnAppId", "txnVersion")


@dataclass(frozen=True, slots=True)
class HubOptions:
    """The hubs' addresses, and the client's identity."""

    servers: str = DEFAULT_SERVERS
    client_id: str | None = None
    key_file: str | None = None
    patience: float = 30.0
    tls_files: tuple[tuple[str, str], ...] = ()
    """Files for TLS by their names, on each machine that connects."""

    @classmethod
    def to(cls, servers: str) -> HubOptions:
        """Parse the hubs as people name them: ``host:port``, or as a URL, with commas between."""
        # A URL's scheme is for all hosts; each has it, so that one of them can be taken alone.
        scheme = (
            _TLS_SCHEME if any(host.strip().startswith(_TLS_SCHEME) for host in servers.split(",")) else ""
        )
        hosts = ",".join(
            scheme + host.strip().removeprefix(_TLS_SCHEME).removeprefix("tube://")
            for host in servers.split(",")
        )
        if "@" in hosts:
            # There may be a key before it, so the value is not repeated.
            raise UsageError(
                "servers has an @: expected host:port[,host:port …]; set clientId for credentials"
            )
        access = cls(hosts)
        try:
            _ = access.hosts
        except HeadraceError as error:
            raise UsageError(f"servers = {hosts!r}: expected host:port[,host:port …] ({error})") from None
        return access

    @property
    def hosts(self) -> list[Address]:
        """The hubs' addresses, in the order in which they are tried."""
        named = (host.strip().removeprefix(_TLS_SCHEME) for host in self.servers.split(","))
        return [Address.parse(host, DEFAULT_PORT) for host in named]

    def beginning_with(self, seq: int) -> HubOptions:
        """Return the same hubs in another order, so that readers of different messages begin with different ones."""
        hosts = self.servers.split(",")
        if len(hosts) == 1:
            return self
        # Neighbouring ranges begin at numbers that have much in common, such as being odd.
        place = crc32(seq.to_bytes(8)) % len(hosts)
        return replace(self, servers=",".join([*hosts[place:], *hosts[:place]]))

    @property
    def options(self) -> dict[str, str]:
        """The options of ``format("headrace")`` that give the same access."""
        files = dict(self.tls_files) if self.speaks_tls else {}
        given = {
            "servers": self.servers,
            "clientId": self.client_id,
            "keyFile": self.key_file,
            "patience": f"{self.patience:g}",
            **{option: files.get(name) for option, name in _TLS.items()},
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def speaks_tls(self) -> bool:
        """Whether the hubs' URLs say TLS."""
        return self.servers.startswith(_TLS_SCHEME)

    def with_tls_files(self, environ: Mapping[str, str] = os.environ) -> HubOptions:
        """Return the same with the files for TLS that the environment names: executors elsewhere do not have it."""
        given = dict(self.tls_files)
        for name, variable in _TLS_VARIABLES.items():
            # A pin is for whoever names no authority.
            if variable in environ and not (name == "pin" and "ca" in given):
                given.setdefault(name, str(Path(environ[variable]).expanduser().absolute()))
        return replace(self, tls_files=tuple(given.items()))

    def tls(self) -> RenewedContext | None:
        """Return the TLS to connect with, if the hubs' URLs say so."""
        if not self.speaks_tls:
            return None
        return ClientTls(TlsFiles.of(dict(self.tls_files)))

    def credentials(self, environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
        """Find client id and key in the options or the environment; ``None`` if neither has them."""
        client_id = self.client_id or environ.get(CLIENT_VARIABLE)
        if client_id is None:
            if self.key_file is not None:
                raise UsageError(f"keyFile {self.key_file!r} needs the client's id: set clientId")
            return None
        if self.key_file is None:
            key = environ.get(KEY_VARIABLE)
        else:
            try:
                key = Path(self.key_file).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"keyFile {self.key_file!r} cannot be read: {error}") from None
        if not key:
            where = f"in {KEY_VARIABLE}" if self.key_file is None else f"in {self.key_file!r}"
            raise UsageError(f"client {client_id!r} has no key {where}: name its file with keyFile")
        return client_id, key


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of the source."""

    access: HubOptions
    starting: OffsetOption | None = None
    starting_time: int | None = None
    """µs since 1970."""
    ending: OffsetOption = "latest"
    ending_time: int | None = None
    """µs since 1970: messages before it are read."""
    archive: str | None = None
    """The path or URI of the log's archive."""
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    min_bytes: int | None = None
    max_delay: float = MAX_DELAY
    """Seconds that fewer messages or bytes than the minimum may wait."""
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    topic: str | None = None
    origins: tuple[str, ...] | None = None
    where: str | None = None
    """JSON: an attribute's name to its predicate in the link's form."""
    columns: tuple[str, ...] | None = None
    """Columns of the envelope, in this order; ``None``: all."""
    hold: str | None = None
    reader: str = READER
    """The name under which losses are reported to the hub."""
    files: bool = True

    @property
    def has_minimum(self) -> bool:
        """Whether a micro-batch waits for more."""
        return self.min_offsets is not None or self.min_bytes is not None

    @property
    def predicates(self) -> Mapping[str, Any] | None:
        """``where`` as the link takes it."""
        return None if self.where is None else json.loads(self.where)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of the sink."""

    access: HubOptions
    topic: str = ""
    application: str | None = None
    """The name under which a batch ``write`` counts its versions; that of its streaming query by default."""
    version: int | None = None
    """The version of a batch ``write`` that may be repeated."""


def parse_source_options(options: Mapping[str, str], *, stream: bool) -> SourceOptions:
    """Parse the options of ``readStream`` (``stream``) or of ``read``."""
    given = GivenOptions(options, _READ)
    starting = given.place("startingOffsets", ("earliest", "latest") if stream else ("earliest",))
    time = given.time("startingTimestamp")
    if given.has("startingOffsetsByTimestamp"):
        if time is not None:
            raise UsageError("startingOffsetsByTimestamp and startingTimestamp are the same: set one")
        time = given.time_of_each("startingOffsetsByTimestamp")
    ending_time = given.time("endingTimestamp")
    if starting is not None and time is not None:
        raise UsageError("startingOffsets and startingTimestamp exclude one another: set one")
    for name in ("endingOffsets", "endingTimestamp"):
        if stream and given.has(name):
            raise UsageError(
                f"{name} is for spark.read: a stream has no end (see trigger(availableNow=True))"
            )
    if ending_time is not None and given.has("endingOffsets"):
        raise UsageError("endingOffsets and endingTimestamp exclude one another: set one")
    if not stream:
        for name in _STREAM_ONLY:
            if given.has(name):
                raise UsageError(f"{name} is for spark.readStream: a batch has no triggers and no position")
    ending = given.place("endingOffsets", ("latest",)) or "latest"
    if isinstance(starting, int) and isinstance(ending, int) and starting > ending + 1:
        raise UsageError(
            f"endingOffsets = {ending} is before startingOffsets = {starting}: there is nothing between"
        )
    where = given.text("where")
    origin = given.text("origin")
    return SourceOptions(
        _access(given),
        starting=starting,
        starting_time=time,
        ending=ending,
        ending_time=ending_time,
        archive=given.text("archive"),
        max_offsets=given.number("maxOffsetsPerTrigger"),
        max_bytes=given.number("maxBytesPerTrigger"),
        min_offsets=given.number("minOffsetsPerTrigger"),
        min_bytes=given.number("minBytesPerTrigger"),
        max_delay=given.seconds("maxTriggerDelay", MAX_DELAY),
        min_partitions=given.number("minPartitions"),
        fail_on_data_loss=given.truth("failOnDataLoss", default=True),
        topic=given.topic_pattern("topic"),
        origins=None if origin is None else tuple(name.strip() for name in origin.split(",")),
        where=None if where is None else parse_predicates(where),
        columns=given.columns("columns"),
        hold=given.text("hold"),
        reader=given.text("reader") or given.text("hold") or READER,
        files=given.truth("files", default=True),
    )


def check_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of ``readStream`` or ``read`` where it is not known yet which it is."""
    given = {name.lower() for name in options}
    # An option that only one of them takes shows which is meant.
    batch = not given.isdisjoint(("endingoffsets", "endingtimestamp")) and given.isdisjoint(
        name.lower() for name in _STREAM_ONLY
    )
    try:
        return parse_source_options(options, stream=not batch)
    except UsageError as error:
        try:
            return parse_source_options(options, stream=batch)
        except UsageError:
            raise error from None


def parse_sink_options(options: Mapping[str, str], *, stream: bool = False) -> SinkOptions:
    """Parse the options of ``writeStream`` (``stream``) or of ``write``."""
    given = GivenOptions(options, _WRITE)
    application, version = given.text("txnAppId"), given.number("txnVersion", least=0)
    if stream and (application is not None or version is not None):
        raise UsageError(
            "txnAppId and txnVersion are for write in foreachBatch: a stream's checkpoint has its own"
        )
    if version is None and application is not None:
        raise UsageError(
            "txnAppId counts versions: set txnVersion too, to the batch's number in foreachBatch"
        )
    if application is not None and (len(application) > MAX_NAME or application.startswith(WRITE)):
        raise UsageError(
            f"txnAppId = {application!r}: expected at most {MAX_NAME} characters, not beginning with {WRITE!r}"
        )
    return SinkOptions(_access(given), given.text("topic") or "", application, version)


def as_text(value: object) -> str:
    """Convert an option's value to Spark's form.

    >>> as_text(True), as_text(5), as_text("eu")
    ('true', '5', 'eu')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _access(given: GivenOptions) -> HubOptions:
    patience = given.text("patience")
    try:
        seconds = 30.0 if patience is None else float(patience)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise UsageError(f"patience = {patience!r}: expected seconds from 0 to 3600")
    access = HubOptions.to(
        given.text("servers") or os.environ.get(SERVERS_VARIABLE, "").strip() or DEFAULT_SERVERS
    )
    files = tuple((ours, file) for name, ours in _TLS.items() if (file := given.text(name)) is not None)
    if files and not access.speaks_tls:
        access = HubOptions.to(f"{_TLS_SCHEME}{access.servers}")
    return replace(
        access,
        client_id=given.text("clientId"),
        key_file=given.text("keyFile"),
        patience=seconds,
        tls_files=files,
    )
