"""The options of the source and the sink.

Spark gives options as texts with names in lower case. Here they become a checked value that can be pickled and contains
no secret: a key is read from its file, or from the environment, where a connection is made.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from headrace.client.tls import ClientTls, RenewedContext, TlsFiles
from headrace.config import Address
from headrace.config.sources import CLIENT_VARIABLE, KEY_VARIABLE
from headrace.errors import HeadraceError, LimitError, UsageError
from headrace.message import MAX_SEQUENCE, SCHEMA
from headrace.protocols import PORTS
from headrace.wire.link.requests import MAX_NAME, WRITE

DEFAULT_SERVERS: Final = "127.0.0.1:8081"
DEFAULT_PORT: Final = PORTS["tube_tcp"]

READER: Final = "spark"
"""The default name of a reader."""

MAX_DELAY: Final = 15 * 60.0
"""Seconds that ``minBytesPerTrigger`` may delay a message by default."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

OffsetOption = Literal["earliest", "latest"] | int
"""A beginning or an end: a word, or a sequence number."""

_TLS: Final = {"tls.ca": "ca", "tls.cert": "cert", "tls.key": "cert_key", "tls.pin": "pin"}
"""The options that name files for TLS, and what they are called elsewhere."""
_BOTH: Final = ("servers", "clientId", "keyFile", "patience", *_TLS)
_READ: Final = (
    *_BOTH,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
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
    "minBytesPerTrigger",
    "maxTriggerDelay",
    "hold",
)
_WRITE: Final = (*_BOTH, "topic", "txnAppId", "txnVersion")
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark passes on although they are its own."""

_SECRET: Final = re.compile(
    r"^key$|secret|password|passwd|token|credential|(api|access|client|private)[-_.]?key|jaas"
)
"""Option names that suggest a secret."""

_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "servers",
    "bootstrap.servers": "servers",
    "host": "servers",
    "url": "servers",
    "subscribe": "topic",
    "subscribepattern": "topic",
    "assign": "topic",
    "filter": "where",
    "endingtimestamp": "endingOffsets",
    "minoffsetspertrigger": "minBytesPerTrigger",
}
"""Names of other sources, Kafka's above all, that are not close to ours."""

_MOST_DIGITS: Final = 20
"""Most digits of a sequence number."""
_MOST_SHOWN: Final = 64
"""Characters of a predicate that an error repeats."""
_MOST_TIME: Final = 253_402_300_800_000_000
"""µs: the year 10000. A larger value is in another unit."""


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
            "tube+tls://"
            if any(host.strip().startswith("tube+tls://") for host in servers.split(","))
            else ""
        )
        hosts = ",".join(
            scheme + host.strip().removeprefix("tube+tls://").removeprefix("tube://")
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
        named = (host.strip().removeprefix("tube+tls://") for host in self.servers.split(","))
        return [Address.parse(host, DEFAULT_PORT) for host in named]

    def tls(self) -> RenewedContext | None:
        """Return the TLS to connect with, if the hubs' URLs say so."""
        if not self.servers.startswith("tube+tls://"):
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
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_bytes: int | None = None
    max_delay: float = MAX_DELAY
    """Seconds that less than ``min_bytes`` may wait."""
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
    given = _Given(options, _READ)
    starting = given.place("startingOffsets", ("earliest", "latest") if stream else ("earliest",))
    time = given.time("startingTimestamp")
    if starting is not None and time is not None:
        raise UsageError("startingOffsets and startingTimestamp exclude one another: set one")
    if stream and given.has("endingOffsets"):
        raise UsageError(
            "endingOffsets is for spark.read: a stream has no end (see trigger(availableNow=True))"
        )
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
        given.access(),
        starting=starting,
        starting_time=time,
        ending=ending,
        max_offsets=given.number("maxOffsetsPerTrigger"),
        max_bytes=given.number("maxBytesPerTrigger"),
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
    batch = "endingoffsets" in given and not any(name.lower() in given for name in _STREAM_ONLY)
    try:
        return parse_source_options(options, stream=not batch)
    except UsageError as error:
        try:
            return parse_source_options(options, stream=batch)
        except UsageError:
            raise error from None


def parse_sink_options(options: Mapping[str, str], *, stream: bool = False) -> SinkOptions:
    """Parse the options of ``writeStream`` (``stream``) or of ``write``."""
    given = _Given(options, _WRITE)
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
    return SinkOptions(given.access(), given.text("topic") or "", application, version)


def as_text(value: object) -> str:
    """Convert an option's value to Spark's form.

    >>> as_text(True), as_text(5), as_text("eu")
    ('true', '5', 'eu')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Given:
    """Options as Spark gives them."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._options:
            if name in names or name in _SPARKS_OWN:
                continue
            if name == "path":
                raise UsageError(
                    "there is no path: set the options servers and topic, and leave the arguments of load(), save() "
                    "or start() out"
                )
            if _SECRET.search(name):
                raise UsageError(
                    f"option {name!r} would appear in plans and logs: put the key into a file and name it with "
                    f"keyFile, or into {KEY_VARIABLE} in the environment of driver and executors"
                )
            raise UsageError(_unknown(name, names))

    def has(self, name: str) -> bool:
        return name.lower() in self._options

    def text(self, name: str) -> str | None:
        value = self._options.get(name.lower())
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty: leave it out, or give it a value")
        return value

    def topic_pattern(self, name: str) -> str | None:
        from headrace.hub.topic_test import MAX_SEARCHED, MAX_WILDCARDS, check_topic_pattern

        value = self.text(name)
        if value is None:
            return None
        try:
            check_topic_pattern(value)
        except LimitError as error:
            raise UsageError(
                f"{name} is no pattern: {error.field}: {error.value}. A pattern has at most {MAX_WILDCARDS} wildcards, "
                f"* for any characters but / and ** for any characters, and {MAX_SEARCHED} characters from the first on"
            ) from None
        return value

    def number(self, name: str, *, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not least <= number < 1 << 62:
            raise UsageError(f"{name} = {value!r}: expected a whole number from {least} on")
        return number

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s|m|h)?", value.strip())
        if found is None:
            raise UsageError(f"{name} = {value!r}: expected seconds, or a time such as 500ms, 60s or 15m")
        return float(found[1]) * _UNITS[found[2] or "s"]

    def truth(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise UsageError(f"{name} = {value!r}: expected true or false")
        return value.strip().lower() == "true"

    def place(self, name: str, words: Sequence[str]) -> OffsetOption | None:
        value = self.text(name)
        if value is None:
            return None
        word = value.strip().lower()
        if word in words:
            return word  # type: ignore[return-value]
        if word.isdecimal() and len(word) <= _MOST_DIGITS and 1 <= int(word) <= MAX_SEQUENCE:
            return int(word)
        raise UsageError(f"{name} = {value!r}: expected {', '.join(words)} or a sequence number from 1 on")

    def time(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            if value.strip().isdecimal():
                time = int(value) * 1000
            else:
                time = micros(datetime.fromisoformat(value.strip()))
        except ValueError:
            time = -1
        if not 0 <= time < _MOST_TIME:
            raise UsageError(
                f"{name} = {value!r}: expected ms since 1970 or a time such as 2026-01-31T12:00:00+00:00"
            )
        return time

    def columns(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        columns = tuple(column.strip() for column in value.split(","))
        known = SCHEMA.names
        for place, column in enumerate(columns):
            if column not in known:
                raise UsageError(f"{name}: {_unknown(column, {each: each for each in known}, what='column')}")
            if column in columns[:place]:
                raise UsageError(f"{name} has {column} twice")
        return columns

    def access(self) -> HubOptions:
        patience = self.text("patience")
        try:
            seconds = 30.0 if patience is None else float(patience)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= 3600:
            raise UsageError(f"patience = {patience!r}: expected seconds from 0 to 3600")
        access = HubOptions.to(self.text("servers") or DEFAULT_SERVERS)
        files = tuple((ours, file) for name, ours in _TLS.items() if (file := self.text(name)) is not None)
        if files and not access.servers.startswith("tube+tls://"):
            access = HubOptions.to(f"tube+tls://{access.servers}")
        return replace(
            access,
            client_id=self.text("clientId"),
            key_file=self.text("keyFile"),
            patience=seconds,
            tls_files=files,
        )


def micros(moment: datetime) -> int:
    """Convert a time to µs since 1970; without a zone it is UTC.

    >>> micros(datetime.fromisoformat("1970-01-01T00:00:01.000001"))
    1000001
    """
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def _unknown(name: str, names: Mapping[str, str], *, what: str = "option") -> str:
    close = difflib.get_close_matches(name, names, 1)
    if (ours := _ELSEWHERE.get(name)) is not None and ours.lower() in names:
        close = [ours.lower()]
    hint = f"did you mean {names[close[0]]}?" if close else f"there are {', '.join(names.values())}"
    return f"there is no {what} {name!r}: {hint}"


def parse_predicates(text: str) -> str:
    """Parse the option ``where`` into the link's form.

    A text stands for equality, two numbers for a range.

    >>> parse_predicates('{"region": "eu", "speed": [80, 120]}')
    '{"region": {"use": 1, "strval": "eu"}, "speed": {"use": 2, "low": 80, "high": 120}}'
    """
    from headrace.wire.link.requests import parse_where

    try:
        where = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"where: expected JSON ({error})") from None
    if not isinstance(where, dict):
        raise UsageError("where: expected a JSON object of attributes and conditions")
    fields = {name: _field(name, predicate) for name, predicate in where.items()}
    try:
        parse_where(fields)
    except HeadraceError as error:
        raise UsageError(f"where: {error}") from None
    return json.dumps(fields)


def _field(name: str, predicate: object) -> object:
    match predicate:
        case str(text):
            return {"use": 1, "strval": text}
        case [low, high] if _is_number(low) and _is_number(high):
            return {"use": 2, "low": low, "high": high}
        case {"use": 1 | 2 | 3}:
            return predicate
    # Suggest how to write what was meant.
    text = json.dumps(predicate, ensure_ascii=False)
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    number = f" (for just that number [{shown}, {shown}])" if _is_number(predicate) else ""
    values = predicate if isinstance(predicate, list) and shown == text else []
    if len(values) < 2 or not all(isinstance(each, str) or _is_number(each) for each in values):
        values = ["a", "b"]
    one_of = {"use": 3, "extra": json.dumps({"in": values}, ensure_ascii=False)}
    raise UsageError(
        f"where: {name} = {shown}: expected a text, or [low, high]{number}, or a predicate of the SDK, for one of "
        f"several {json.dumps(one_of, ensure_ascii=False)}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
