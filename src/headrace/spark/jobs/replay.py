"""``replay``: publish messages of an archive to a hub, at their own pace, at a rate, or as fast as possible.

Spark reads and filters in many tasks; one task publishes, in order. :mod:`headrace.client.link.replay` ensures that a
replay that was interrupted, or is repeated, adds only what is missing. It is named after the archive's log and the
choice of messages.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.archive.folder import Folder, is_local
from headrace.archive.table import format_of
from headrace.client.link.replay import ReplayTarget, publisher_name
from headrace.errors import UsageError
from headrace.message import MAX_SEQUENCE, SCHEMA
from headrace.spark.jobs.archive import TABLE_PARAMETERS, archived
from headrace.spark.jobs.job import JobRun, Parameter, at_least
from headrace.spark.options import HubOptions, micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ABOUT: Final = "messages of an archive to a hub, at their own pace, at a rate, or at once"
PARAMETERS: Final = {
    "path": Parameter("the archive", "archive"),
    "where": Parameter("which messages, as a condition of SQL over the envelope's columns"),
    "from": Parameter(
        "the first message: a sequence number or a time (2026-01-31T12:00:00Z)",
        check=lambda place: _parsed(place),
    ),
    "until": Parameter("the last message, likewise", check=lambda place: _parsed(place)),
    "rate": Parameter("messages a second; 0: as fast as it goes", "0", at_least(0)),
    "speed": Parameter(
        "times the pace at which they came: 1 as they did, 60 a minute a second; 0: no pace", "0", at_least(0)
    ),
    "name": Parameter("the publisher's name, by which a repeat is known"),
    **TABLE_PARAMETERS,
}

_STEP: Final = 0.02
"""Seconds within which due messages are sent together."""
_DONE: Final = "messages long, first long, last long"


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a replay: ``rate`` messages a second, or ``speed`` times as they came; neither: no limit."""

    rate: float = 0.0
    speed: float = 0.0

    def due(self, index: np.ndarray, times: np.ndarray, begin: int) -> np.ndarray:
        """Return when messages ``index`` with ``times`` (µs) are due, in seconds after the beginning."""
        if self.rate:
            return index / self.rate
        if self.speed:
            due: np.ndarray = (times - begin) / 1_000_000 / self.speed
            return due
        return np.zeros(len(index))


def check(params: Mapping[str, str], _available_now: bool) -> None:
    """Check the parameters before Spark starts."""
    if float(params.get("rate") or 0) and float(params.get("speed") or 0):
        raise UsageError("replay: rate and speed exclude one another: set one")
    begin, until = params.get("from"), params.get("until")
    if begin and until:
        (column, first), (other, last) = _parsed(begin), _parsed(until)
        if column == other and first > last:
            raise UsageError(f"replay: until = {until} is before from = {begin}: there is nothing between")
    path = params.get("path") or PARAMETERS["path"].default
    if is_local(path) and format_of(Folder.at(path)) is None:
        raise UsageError(f"replay: {path}: there is no archive")


def start(run: JobRun) -> dict[str, object]:
    """Replay to the end."""
    check(run.params, run.available_now)
    pace = Pace(run.number("rate"), run.number("speed"))
    log, rows = archived(run)
    rows = chosen(rows, run.param("where"), run.param("from"), run.param("until"))
    choice = [run.param(each) for each in ("where", "from", "until")]
    name = run.param("name") or publisher_name(log, choice)
    run.at_work = lambda client: {"through": client.newest(name)}
    # Where nothing is chosen, Spark may run no task at all.
    results = published(rows, run.access, name, pace, picked=bool(run.param("where"))).toArrow().to_pylist()
    result = results[0] if results else {"messages": 0, "first": None, "last": None}
    return {"log": log, "publisher": name, **result}


def chosen(rows: DataFrame, where: str = "", begin: str = "", until: str = "") -> DataFrame:
    """Choose the messages to be replayed."""
    from pyspark.errors import PySparkException

    kept = rows.select(*SCHEMA.names)
    if where:
        # PySpark prints the mistake too, as a line of JSON.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        try:
            kept = kept.where(where)
        except PySparkException as error:
            reason = next(iter(str(error).splitlines()), "").rstrip(";")
            raise UsageError(f"replay: where = {where}: {reason}") from None
    if begin:
        kept = kept.where(_edge(begin, ">="))
    return kept.where(_edge(until, "<=")) if until else kept


def published(
    rows: DataFrame, access: HubOptions, publisher: str, pace: Pace, *, picked: bool = False
) -> DataFrame:
    """Publish rows in the order of the sequence; one row has their number and new sequence numbers.

    ``picked`` says that hardly two of them are adjacent.
    """
    ordered = rows.repartition(1).sortWithinPartitions("seq")
    return ordered.mapInArrow(partial(_publish, access, publisher, pace, picked), _DONE)


def paced(
    batches: Iterable[pa.RecordBatch],
    pace: Pace,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Delay rows until they are due."""
    started, count, begin = clock(), 0, None
    for batch in batches:
        times = batch.column("time").cast(pa.int64()).to_numpy()
        begin = int(times[0]) if begin is None else begin
        due = pace.due(np.arange(count, count + len(times)), times, begin)
        edges = [0, *(np.flatnonzero(np.diff(due // _STEP)) + 1).tolist(), len(times)]
        for first, end in itertools.pairwise(edges):
            wait = started + float(due[first]) - clock()
            if wait > 0:
                sleep(wait)
            yield batch.slice(first, end - first)
        count += len(times)


def _publish(
    access: HubOptions, publisher: str, pace: Pace, picked: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from headrace.archive.parquet_file import enveloped
    from headrace.spark.hub_connections import open_client

    def target() -> ReplayTarget:
        client_id, key = access.credentials() or (None, None)
        return ReplayTarget(
            access.hosts,
            name="replay",
            reconnect_timeout=access.patience,
            client_id=client_id,
            key=key,
            tls=access.tls(),
        )

    with closing(open_client(target, access.patience)) as hub:
        replay = cast("ReplayTarget", hub.client)
        newest = hub.wait(replay.resume(publisher, picked=picked))
        known = -1 if newest is None else newest
        missing = (_beyond(enveloped(batch), known) for batch in batches)
        for rows in paced((each for each in missing if each.num_rows), pace):
            hub.wait(replay.send(rows))
        facts = {"messages": replay.messages, "first": replay.first_seq, "last": replay.last_seq}
    yield pa.RecordBatch.from_pydict({name: pa.array([fact], pa.int64()) for name, fact in facts.items()})


def _beyond(rows: pa.RecordBatch, known: int) -> pa.RecordBatch:
    # What the hub has does not count for the pace.
    return rows.filter(pc.greater(rows.column("seq"), known))


def _edge(place: str, operator: str) -> str:
    """Make a condition on the sequence number or the time."""
    column, value = _parsed(place)
    # A plain comparison of a column, by which Spark skips files and row groups.
    return f"{column} {operator} {value if column == 'seq' else f'timestamp_micros({value})'}"


def _parsed(place: str) -> tuple[str, int]:
    """Parse ``from`` or ``until``: return the column and its value, a sequence number or a time in µs."""
    if place.isdecimal() and int(place) <= MAX_SEQUENCE:
        return "seq", int(place)
    try:
        return "time", micros(datetime.fromisoformat(place))
    except ValueError:
        raise UsageError(f"replay: {place!r}: expected a sequence number or a time") from None
