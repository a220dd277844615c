"""``measure`` as it runs: windows from micro-batch to micro-batch, a table of the complete ones, live services.

The sketches of the open hour, the open minute and its seconds are kept between micro-batches. A complete minute and its
seconds become rows of the table, and so does a complete hour: there is a file for each hour, which tasks write and
which grows by being replaced. Only the open windows, a few dozen, pass through the driver. A repeated micro-batch
writes the same rows again.

The services ``measure/second``, ``measure/minute`` and ``measure/hour`` show the newest window of each length, complete
or not. They change when the figures do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.archive.folder import Folder, storage_errors
from headrace.spark.jobs.job import JobRun
from headrace.spark.jobs.measure import SPANS, figures, seconds, together, windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILE: Final = "windows.parquet"
_MICROSECONDS: Final = 1_000_000


class Measurer:
    """A run of ``measure``."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._memory = run.memory()
        self._shown: dict[str, dict[str, Any]] = {}
        # New for each run: services show the present, so an old batch need not be recognized.
        self._id = f"measure-{uuid4().hex}"

    def facts(self) -> dict[str, object]:
        """Return the facts for the status."""
        return {"path": self._run.path}

    def measure(self, rows: DataFrame, batch: int) -> None:
        """Count one micro-batch."""
        content = self._memory.before(batch)
        before = None if content is None else pa.ipc.open_stream(content).read_all()
        made = windows(seconds(rows))
        if before is not None and before.num_rows:
            made = together(made.unionByName(rows.sparkSession.createDataFrame(before)))
        made = made.persist()
        try:
            self._account(made, before, batch)
        finally:
            made.unpersist()

    def _account(self, made: DataFrame, before: pa.Table | None, batch: int) -> None:
        """Write the complete windows, in tasks, and keep the open ones, which are few."""
        from pyspark.sql import functions as F

        seconds = F.when(F.col("span") == SPANS["second"], F.col("start"))
        (facts,) = made.agg(F.sum("messages"), F.max("newest"), F.min(seconds)).collect()
        counted, newest, oldest = (value or 0 for value in facts)
        if before is not None and counted == pc.sum(before["messages"]).as_py():
            # No messages have come, and a change of the services would itself be a new entry.
            self._memory.after(batch, _serialized(before))
            return
        now = newest // _MICROSECONDS
        minute, hour = (now - now % SPANS[name] for name in ("minute", "hour"))
        complete = F.col("start") < F.when(F.col("span") == SPANS["hour"], hour).otherwise(minute)
        if oldest < minute:
            self._write(made.where(complete))
        table = self._collect(made.where(~complete))
        self._publish(table, batch)
        self._memory.after(batch, _serialized(_sketches(table)))

    def _collect(self, made: DataFrame) -> pa.Table:
        """Collect sketches, under ``sketches``, and figures, in the order of time."""
        from pyspark.sql import functions as F

        sketches = F.struct(*made.columns).alias("sketches")
        return figures(made, sketches).toArrow().sort_by([("start", "ascending"), ("span", "ascending")])

    def _write(self, done: DataFrame) -> None:
        """Have tasks write windows to the table, each of them whole hours."""
        from pyspark.sql import functions as F

        ordered = (
            figures(done).repartition(F.date_trunc("hour", "start")).sortWithinPartitions("start", "span")
        )
        ordered.mapInArrow(partial(_written, self._run.folder), "hours long").collect()

    def _publish(self, table: pa.Table, batch: int) -> None:
        """Publish the changes of the newest window of each length."""
        changes: dict[str, dict[str, Any]] = {}
        for name, span in SPANS.items():
            rows = table.filter(pc.equal(table["span"], span)).drop_columns("sketches")
            if not rows.num_rows:
                continue
            now = _readable(rows.slice(rows.num_rows - 1).to_pylist()[0])
            shown = self._shown.get(name, {})
            changed = {key: value for key, value in now.items() if shown.get(key) != value}
            if changed:
                changes[f"measure/{name}"] = changed
                self._shown[name] = now
        self._run.publish_services(self._id, batch, changes)


def _written(folder: Folder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write windows that come in the order of time, an hour at a time."""
    hours = 0
    waiting: pa.Table | None = None
    for batch in batches:
        more = pa.Table.from_batches([batch])
        waiting = more if waiting is None else pa.concat_tables([waiting, more])
        each = pc.floor_temporal(waiting["start"], unit="hour")
        for hour in pc.unique(each).to_pylist()[:-1]:
            _write_hour(folder, hour, waiting.filter(pc.equal(each, hour)))
            hours += 1
        waiting = waiting.filter(pc.equal(each, each[-1])) if len(each) else None
    if waiting is not None:
        _write_hour(folder, pc.floor_temporal(waiting["start"], unit="hour")[0].as_py(), waiting)
        hours += 1
    yield pa.RecordBatch.from_pydict({"hours": pa.array([hours], pa.int64())})


def _write_hour(table: Folder, hour: datetime, rows: pa.Table) -> None:
    folder = table.sub(f"day={hour:%Y-%m-%d}").sub(f"hour={hour:%H}")
    with storage_errors(folder.path):
        if _FILE in folder.names():
            rows = _merged(pq.read_table(pa.BufferReader(folder.read(_FILE))), rows)
        written = BytesIO()
        pq.write_table(rows, written, compression="zstd")
        folder.write(_FILE, written.getvalue())


def _sketches(table: pa.Table) -> pa.Table:
    """Return the sketches of windows."""
    kept = table["sketches"].combine_chunks()
    return pa.Table.from_arrays(kept.flatten(), schema=pa.schema(list(kept.type)))


def _merged(before: pa.Table, rows: pa.Table) -> pa.Table:
    """Merge new rows into those of a file; new windows win."""
    known = set(zip(rows["span"].to_pylist(), rows["start"].to_pylist(), strict=True))
    stays = [
        key not in known for key in zip(before["span"].to_pylist(), before["start"].to_pylist(), strict=True)
    ]
    kept = before.filter(pa.array(stays, pa.bool_()))
    return pa.concat_tables([kept.cast(rows.schema), rows]).sort_by(
        [("start", "ascending"), ("span", "ascending")]
    )


def _readable(window: dict[str, Any]) -> dict[str, Any]:
    """Convert a window to the form that a service shows."""
    for name in ("start", "end"):
        window[name] = window[name].isoformat().replace("+00:00", "Z")
    window["lag"] = {
        name.removeprefix("lag_"): window.pop(name) for name in list(window) if name.startswith("lag_")
    }
    return window


def _serialized(table: pa.Table) -> bytes:
    made = BytesIO()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table)
    return made.getvalue()
