"""``match``: the matcher fleet. It matches messages with content subscriptions and pushes them to the dispatcher.

It is the hub's own matcher on as many cores and machines as Spark has, for ``matching.engine = "spark"``. Tasks match
ranges of a micro-batch, and push what they find to the dispatcher, in order for each client
(:mod:`~headrace.spark.jobs.match.fleet_tasks`). When it has taken all of it, the driver marks the position
(:mod:`~headrace.spark.jobs.match.lifeline`).

The fleet keeps no position between runs. While it is away, connectors feed their clients from the log. A run begins
with the current subscriptions and announces its first message; from there on connectors rely on pushes again. So a run
has nothing to catch up with, and its checkpoint is for Spark alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.archive.folder import Folder
from headrace.archive.parquet_file import enveloped
from headrace.client.conditions import AnyConditions, Condition, Conditions, alternatives_of
from headrace.client.link.backtest import EVENTS, Backtest
from headrace.errors import UsageError
from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    rows_of_tables,
)
from headrace.matching import FENCE_WINDOW, warm
from headrace.message import SCHEMA
from headrace.protocols import PORTS
from headrace.spark.datasource import register_kind
from headrace.spark.hub_connections import link
from headrace.spark.jobs.job import COMMON, JobRun, Parameter, RunningJob, at_least, one_of
from headrace.spark.jobs.match.dispatcher_connection import DispatcherDoor
from headrace.spark.jobs.match.fleet_tasks import Fleet, run_tasks
from headrace.spark.jobs.match.lifeline import Lifeline
from headrace.spark.jobs.match.past import Past
from headrace.spark.jobs.match.tables import EVERY, SubscriptionTable, SubscriptionTables
from headrace.spark.options import HubOptions, SourceOptions
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.source.range_rows import LogRange, read_range
from headrace.spark.source.range_source import NAME, RangesDataSource
from headrace.wire.attribute.messages import CLIENT_ID_BYTES
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Alternatives, Predicate, Predicates, fence_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DISPATCHER_PORT: Final = PORTS["dispatcher"]

_FOUND: Final = "seq long, clients array<binary>"
_DELIVERED: Final = "seq long, events array<string>"

NO_FENCES: Final = (
    "a fence needs the messages before a row: give ranges of the log, and how to read them (reading)"
)

ABOUT: Final = (
    "the matcher fleet: what clients subscribed to, pushed to the dispatcher (matching.engine = spark)"
)
PARAMETERS: Final = {
    "path": Parameter("where a run keeps what its tasks share: a folder that every executor sees"),
    "dispatchers": Parameter(
        "dispatcher doors, HOST:PORT or dispatcher+tls://HOST:PORT with commas between; the first that answers is used",
        f"127.0.0.1:{DISPATCHER_PORT}",
    ),
    "interval": COMMON["interval"]._replace(default="0.1"),
    "shares": Parameter(
        "into how many shares clients are divided, each pushed by a task", "the cores", at_least(1)
    ),
    "most": Parameter("how many sequence numbers a micro-batch has at most", "500000", at_least(1)),
    "fence_window": Parameter(
        "how far back fences look: what the hub's matching.fence_window is", str(FENCE_WINDOW), at_least(1)
    ),
    "json_attributes": Parameter(
        "whether JSON payloads count as attributes: what the hub's matching.json_attributes is",
        "false",
        one_of("true", "false"),
    ),
}


def check(params: Mapping[str, str], available_now: bool) -> None:
    """Check the parameters before Spark starts."""
    if available_now:
        raise UsageError("match has no end: connectors read from the log what is in it already")
    parse_dispatchers(params.get("dispatchers") or PARAMETERS["dispatchers"].default)


def parse_dispatchers(text: str, access: HubOptions | None = None) -> list[DispatcherDoor]:
    """Parse dispatcher doors with commas between; those with TLS are dialled with the files that hubs are."""
    files = access.tls_files if access is not None else ()
    return [DispatcherDoor.parse(each.strip(), files) for each in text.split(",")]


def start(run: JobRun) -> RunningJob:
    """Match messages from now on."""
    check(run.params, run.available_now)
    dispatchers = parse_dispatchers(run.param("dispatchers"), run.access)
    most = int(run.number("most"))
    driver = FleetDriver(run, dispatchers)
    try:
        register_kind(run.spark, RangesDataSource)
        ranges = run.source(
            NAME, startingOffsets=driver.lifeline.place + 1, maxOffsetsPerTrigger=most, reader=run.name
        )
        query = run.query(ranges, driver.push)
    except BaseException:
        driver.close()
        raise
    driver.lifeline.watch(lambda: query.isActive, driver.close)
    return RunningJob(query, driver.facts)


class FleetDriver:
    """The driver's part: take the subscriptions, and mark the fleet's position."""

    def __init__(self, run: JobRun, dispatchers: Sequence[DispatcherDoor]) -> None:
        self._run = run
        runs = f"{run.path.rstrip('/')}/runs"
        # The files of an earlier run are of no use.
        Folder.at(runs).remove_all()
        self._path = f"{runs}/{uuid4().hex}"
        run.params = {**run.params, "checkpoint": f"{self._path}/checkpoint"}
        self._tables_path = f"{self._path}/subscriptions"
        self._tables = SubscriptionTables(Folder.at(self._tables_path))
        table = self._take_table()
        self._newest_op = table.op
        """The log's own position at which the newest table was taken."""
        self.lifeline = Lifeline(table.seq, run.access.patience)
        self._done: dict[str, int | float] = {}
        try:
            door = self.lifeline.open(dispatchers)
        except BaseException:
            self.close()
            raise
        shares = run.params.get("shares") and int(run.number("shares"))
        self._fleet = Fleet(
            SourceOptions(run.access, reader=run.name),
            door,
            self._tables_path,
            shares or run.spark.sparkContext.defaultParallelism,
            json_attributes=run.truth("json_attributes"),
            fence_window=int(run.number("fence_window")),
            answers=self.lifeline.answers is not False,
        )

    def push(self, ranges: DataFrame, _number: int) -> None:
        """Run the tasks of a micro-batch, which push."""
        self.lifeline.begin()
        begin = monotonic()
        try:
            done = run_tasks(self._fleet, ranges)
        except BaseException:
            # Not everything was pushed: clients must not rely on it.
            self.lifeline.close()
            raise
        if done is None:
            return
        self.lifeline.done(done.last)
        read = sum(each.read for each in done.ranges)
        self._done = {
            "rows": read,
            "rows_per_second": round(read / (monotonic() - begin), 1),
            "ranges": len(done.ranges),
            "subscriptions": done.ranges[-1].subscriptions,
            "read": self._done.get("read", 0) + read,
            "matched": self._done.get("matched", 0) + sum(each.found for each in done.ranges),
            "pushed": self._done.get("pushed", 0) + done.pushed,
        }
        if done.ranges[-1].op - self._newest_op >= EVERY:
            self._newest_op = self._take_table().op
        self._tables.drop_before(self.lifeline.place)

    def facts(self) -> dict[str, object]:
        """Return facts that Spark does not have: messages of the last micro-batch, subscriptions, matches so far."""
        return {**self._done, "through": self.lifeline.place, "dispatcher": str(self.lifeline.door)}

    def close(self) -> None:
        """End the run and remove its folder."""
        self.lifeline.close()
        Folder.at(self._path).remove_all()

    def _take_table(self) -> SubscriptionTable:
        with link(self._run.access) as client:
            return self._tables.add(client.subscriptions())


def match(
    rows: DataFrame,
    subscriptions: pa.Table,
    *,
    json_attributes: bool = False,
    fence_window: int = FENCE_WINDOW,
    reading: SourceOptions | None = None,
) -> DataFrame:
    """Match messages; return ``seq`` and ``clients`` (12 bytes each) of those that have any.

    ``rows`` have the envelope's columns; ``subscriptions`` are as the link gives them (``link.subscriptions()``). With
    ``reading``, rows are not messages but ranges of them (:func:`~headrace.spark.source.range_source.frame`), which
    tasks read themselves: several times as quick. Fences need that: they look at the messages before a range.
    """
    shared = rows.sparkSession.sparkContext.broadcast((uuid4().hex, subscriptions))
    if reading is not None:
        return rows.mapInArrow(partial(_match_ranges, shared, json_attributes, fence_window, reading), _FOUND)
    if any("fence" in field for fields in subscriptions["fields"].to_pylist() for _, field in fields):
        raise UsageError(NO_FENCES)
    return rows.select(*SCHEMA.names).mapInArrow(partial(_match, shared, json_attributes), _FOUND)


def backtest(
    rows: DataFrame,
    conditions: Mapping[str, Condition] | AnyConditions,
    *,
    json_attributes: bool = False,
    fence_window: int = FENCE_WINDOW,
    reading: SourceOptions | None = None,
) -> DataFrame:
    """Return the ``seq`` of the messages that a content subscription would have delivered, and fences' ``events``.

    ``rows`` and ``reading`` are those of :func:`match`, of the log or of its archive. To a fence, what is before the
    first range never was.
    """
    wanted = alternatives_of(conditions)
    fenced = any(fence_of(each) is not None for each in wanted)
    if reading is None:
        if fenced:
            raise UsageError(NO_FENCES)
        work = partial(_backtest, wanted, json_attributes)
        return rows.select(*SCHEMA.names).mapInArrow(work, _DELIVERED)
    if fenced:
        first = rows.agg({"first": "min"}).collect()[0][0] or 1
        wanted = AnyConditions(Conditions(_after(each, first - 1)) for each in wanted)
    work = partial(_backtest_ranges, wanted, json_attributes, fence_window, reading)
    return rows.mapInArrow(work, _DELIVERED)


def _after(predicates: Predicates, seq: int) -> dict[str, Predicate]:
    return {
        name: replace(each, after=seq) if isinstance(each, Fence) else each
        for name, each in predicates.items()
    }


def _backtest(
    wanted: Alternatives, json_attributes: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    warm()
    yield from _delivered(Backtest(wanted, json_attributes=json_attributes), batches)


def _backtest_ranges(
    wanted: Alternatives,
    json_attributes: bool,
    window: int,
    reading: SourceOptions,
    ranges: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    warm()
    for span in _spans(ranges):
        past = Past(reading, span)
        backtest = Backtest(wanted, json_attributes=json_attributes, window=window, read=past)
        yield from _delivered(backtest, read_range(reading, span))


def _delivered(backtest: Backtest, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        found = backtest.passing(enveloped(rows))
        events = found.column("events") if backtest.has_fences else pa.nulls(found.num_rows, EVENTS.type)
        yield pa.record_batch({"seq": found.column("seq"), "events": events})


def _spans(ranges: Iterable[pa.RecordBatch]) -> Iterator[LogRange]:
    for batch in ranges:
        yield from (LogRange(**each) for each in batch.to_pylist())
    hide_from_collector("match")


_loaded: tuple[str, LocalMatcher, Past | None] | None = None


def _match_ranges(
    shared: Any,
    json_attributes: bool,
    window: int,
    reading: SourceOptions,
    ranges: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for span in _spans(ranges):
        yield from _match(shared, json_attributes, read_range(reading, span), window, Past(reading, span))


def _match(
    shared: Any,
    json_attributes: bool,
    batches: Iterable[pa.RecordBatch],
    window: int = FENCE_WINDOW,
    past: Past | None = None,
) -> Iterator[pa.RecordBatch]:
    """Match in a task; the worker may have the matcher from an earlier task."""
    global _loaded
    name, table = shared.value
    if _loaded is None or _loaded[0] != name:
        # A task has much to match: compiled code is worth waiting for.
        warm()
        subscriptions = Subscriptions()
        matching = LocalMatcher(
            subscriptions, lambda *_: True, json_attributes=json_attributes, window=window, read=past
        )
        subscriptions.add(rows_of_tables(table.to_batches()))
        matching.matcher.rebuild(everything=True)
        _loaded = name, matching, past
    _, matching, reader = _loaded
    if reader is not None and past is not None:
        reader.span = past.span
    for rows in batches:
        matches = matching.clients_of(matching.matcher.match_rows(enveloped(rows)))
        kept = np.diff(matches.offsets) > 0
        ids = pa.Array.from_buffers(
            pa.binary(CLIENT_ID_BYTES), len(matches.clients), [None, pa.py_buffer(matches.clients)]
        )
        offsets = np.concatenate([matches.offsets[:1], matches.offsets[1:][kept]])
        clients = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), ids.cast(pa.binary()))
        yield pa.record_batch({"seq": rows.column("seq").filter(pa.array(kept)), "clients": clients})
