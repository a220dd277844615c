"""``measure`` as it runs: windows from micro-batch to micro-batch, a table of the complete ones, live services.

The sketches of the open hour, the open minute and its seconds are kept between micro-batches. A complete minute and its
seconds become rows of the table, and so does a complete hour: there is a file for each hour, which grows by being
replaced. A repeated micro-batch writes the same rows again.

The services ``measure/second``, ``measure/minute`` and ``measure/hour`` show the newest window of each length, complete
or not. They change when the figures do.
"""

from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.archive.folder import storage_errors
from headrace.spark.jobs.job import JobRun
from headrace.spark.jobs.measure import SPANS, figures, seconds, together, windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_A_TIME: Final = 250_000
"""Most messages of a micro-batch: their windows, perhaps one for each, must fit the driver. A window takes about 500
bytes, and several times that in the JVM."""

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
        table = self._collect(made)
        counted = pc.sum(pc.struct_field(table["sketches"], "messages")).as_py()
        if before is not None and counted == pc.sum(before["messages"]).as_py():
            # No messages have come, and a change of the services would itself be a new entry.
            self._memory.after(batch, _serialized(before))
            return
        self._write(table)
        self._publish(table, batch)
        self._memory.after(batch, _serialized(_open(table)))

    def _collect(self, made: DataFrame) -> pa.Table:
        """Collect sketches, under ``sketches``, and figures, in the order of time."""
        from pyspark.sql import functions as F

        sketches = F.struct(*made.columns).alias("sketches")
        return figures(made, sketches).toArrow().sort_by([("start", "ascending"), ("span", "ascending")])

    def _write(self, table: pa.Table) -> None:
        """Write the complete windows to the table, by hour."""
        done = table.filter(_complete(table)).drop_columns("sketches")
        hours = pc.unique(pc.floor_temporal(done["start"], unit="hour"))
        for hour in hours.to_pylist():
            rows = done.filter(pc.equal(pc.floor_temporal(done["start"], unit="hour"), hour))
            folder = self._run.folder.sub(f"day={hour:%Y-%m-%d}").sub(f"hour={hour:%H}")
            with storage_errors(folder.path):
                if _FILE in folder.names():
                    rows = _merged(pq.read_table(pa.BufferReader(folder.read(_FILE))), rows)
                written = BytesIO()
                pq.write_table(rows, written, compression="zstd")
                folder.write(_FILE, written.getvalue())

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


def _complete(table: pa.Table) -> pa.Array:
    """Mark the complete windows: those of past minutes, and past hours."""
    newest = pc.max(pc.struct_field(table["sketches"], "newest")).as_py() or 0
    now = datetime.fromtimestamp(newest / _MICROSECONDS, UTC)
    minute = now.replace(second=0, microsecond=0)
    hour = minute.replace(minute=0)
    of_hours = pc.equal(table["span"], SPANS["hour"])
    return pc.if_else(of_hours, pc.less(table["start"], hour), pc.less(table["start"], minute))


def _open(table: pa.Table) -> pa.Table:
    """Return the sketches of the incomplete windows."""
    left = table.filter(pc.invert(_complete(table)))["sketches"].combine_chunks()
    return pa.Table.from_arrays(left.flatten(), schema=pa.schema(list(left.type)))


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
