"""``replay``: publish messages of an archive to a hub, at their own pace, at a rate, or as fast as possible.

The archive's files are in the order of the sequence, so one task reads them one after the other and publishes what it
reads: nothing is sorted, and the first message is sent at once. With a condition of SQL, Spark filters in many tasks,
:data:`ROUND_BYTES` of files at a time, and sorts what is left of a round.

:mod:`headrace.client.link.replay` ensures that a replay that was interrupted, or is repeated, adds only what is
missing. It is named after the archive's log and the choice of messages.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.archive import ArchiveFile, ArchiveTable, open_table
from headrace.archive.folder import Folder, is_local
from headrace.archive.table import format_of
from headrace.client.link.replay import ReplayTarget, publisher_name
from headrace.errors import UsageError
from headrace.message import MAX_SEQUENCE, SCHEMA
from headrace.spark.archive_reading import read_files, rows_of
from headrace.spark.jobs.archive import TABLE_PARAMETERS
from headrace.spark.jobs.job import JobRun, Parameter, at_least
from headrace.spark.option_values import micros
from headrace.spark.options import HubOptions
from headrace.spark.source.reader import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
_DONE: Final = "messages long, first long, last long, count long, begin long, started double"

ROUND_BYTES: Final = 1 << 30
"""Bytes of files that are filtered at a time: few enough that the first message does not wait long."""


@dataclass(frozen=True, slots=True)
class SoFar:
    """What earlier rounds have sent: how many messages, the time of the first (µs), and when that was sent."""

    count: int = 0
    begin: int | None = None
    started: float | None = None


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
    table = open_table(
        run.path, options={name: run.param(name) for name in TABLE_PARAMETERS if run.param(name)}
    )
    where, begin, until = (run.param(each) for each in ("where", "from", "until"))
    name = run.param("name") or publisher_name(table.log, [where, begin, until])
    run.at_work = lambda client: {"through": client.newest(name)}
    publish = partial(published, access=run.access, publisher=name, pace=pace, picked=bool(where))
    files = within(table.all_files(), begin, until)
    result: dict[str, object] = {"messages": 0, "first": None, "last": None}
    so_far = SoFar()
    for group in rounds(files, ROUND_BYTES) if where else [files] if files else []:
        if where:
            rows = chosen(rows_of(run.spark, table, group), where, begin, until)
            sent = publish(rows.repartition(1).sortWithinPartitions("seq"), so_far=so_far)
        else:
            sent = publish(in_order(run.spark, table, group, begin, until), so_far=so_far)
        # Where nothing is chosen, Spark may run no task at all.
        for told in sent.toArrow().to_pylist():
            so_far = SoFar(told.pop("count"), told.pop("begin"), told.pop("started"))
            result["messages"] = cast("int", result["messages"]) + told["messages"]
            result["first"] = told["first"] if result["first"] is None else result["first"]
            result["last"] = told["last"] if told["last"] is not None else result["last"]
    return {"log": table.log, "publisher": name, **result}


def within(files: Sequence[ArchiveFile], begin: str, until: str) -> list[ArchiveFile]:
    """Leave out files that have nothing between two places."""
    kept = list(files)
    if begin:
        column, value = _parsed(begin)
        kept = [file for file in kept if (file.last if column == "seq" else file.last_time) >= value]
    if until:
        column, value = _parsed(until)
        kept = [file for file in kept if (file.first if column == "seq" else file.first_time) <= value]
    return kept


def rounds(files: Sequence[ArchiveFile], size: int) -> list[list[ArchiveFile]]:
    """Group files, in their order, into rounds of about ``size`` bytes."""
    groups: list[list[ArchiveFile]] = []
    room = 0
    for file in files:
        if not groups or file.size > room:
            groups.append([])
            room = size
        groups[-1].append(file)
        room -= file.size
    return groups


def in_order(
    spark: SparkSession, table: ArchiveTable, files: Sequence[ArchiveFile], begin: str = "", until: str = ""
) -> DataFrame:
    """Return messages of files in one partition, in their order."""
    names = [file.path for file in files]
    one = spark.range(1).coalesce(1)
    return one.mapInArrow(partial(_between, table.folder, names, begin, until), SPARK_SCHEMA)


def _between(
    folder: Folder, names: list[str], begin: str, until: str, _: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    edges = [(pc.greater_equal, begin), (pc.less_equal, until)]
    for rows in read_files(folder, names):
        for compare, place in edges:
            if place:
                column, value = _parsed(place)
                rows = rows.filter(compare(rows.column(column).cast(pa.int64()), value))
        yield rows


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
    rows: DataFrame, access: HubOptions, publisher: str, pace: Pace, *, picked: bool = False, so_far: SoFar
) -> DataFrame:
    """Publish rows, which are one partition in order; one row has their number and new sequence numbers.

    ``picked`` says that hardly two of them are adjacent.
    """
    return rows.mapInArrow(partial(_publish, access, publisher, pace, picked, so_far), _DONE)


def paced(
    batches: Iterable[pa.RecordBatch],
    pace: Pace,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    so_far: SoFar = SoFar(),
) -> Iterator[pa.RecordBatch]:
    """Delay rows until they are due."""
    started, count, begin = clock(), so_far.count, so_far.begin
    if so_far.started is not None:
        started -= time.time() - so_far.started
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
    access: HubOptions,
    publisher: str,
    pace: Pace,
    picked: bool,
    so_far: SoFar,
    batches: Iterable[pa.RecordBatch],
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
        begin, started, count = so_far.begin, so_far.started, so_far.count
        for rows in paced((each for each in missing if each.num_rows), pace, so_far=so_far):
            if begin is None:
                begin, started = rows.column("time")[0].value, time.time()
            count += rows.num_rows
            hub.wait(replay.send(rows))
        facts = {"messages": replay.messages, "first": replay.first_seq, "last": replay.last_seq}
    told = {name: pa.array([fact], pa.int64()) for name, fact in facts.items()}
    told |= {"count": pa.array([count], pa.int64()), "begin": pa.array([begin], pa.int64())}
    yield pa.RecordBatch.from_pydict({**told, "started": pa.array([started], pa.float64())})


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
