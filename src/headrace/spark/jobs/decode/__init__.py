"""``decode``: recorded bytes to rows, a frame a row, for any of the protocols.

Captures are files: those of ``headrace serve --record``, one for each connection, and pcap files (``tcpdump -w``).
Files are distributed over the tasks, large ones in parts (:mod:`~headrace.spark.jobs.decode.large_files`). What a
protocol's decoder refuses is a row too, with the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.archive.folder import Folder, is_local
from headrace.config import DOORS, Settings
from headrace.errors import UsageError
from headrace.spark.jobs.job import JobRun, Parameter, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.jobs.decode.capture_rows import FilePart

ABOUT: Final = (
    "captures of connections, and pcap files, to rows: a frame a row, malformed ones with their error"
)
PARAMETERS: Final = {
    "captures": Parameter("the captures, *.capture, *.pcap, *.cap: the folder of them, or one"),
    "path": Parameter("where the rows go, as Parquet; what decode wrote there before is replaced", "decode"),
    "ports": Parameter(
        "which door a port of a pcap file is: 2323=fyrehose,3002=spp", "the doors' default ports"
    ),
}

ROWS: Final = pa.schema(
    [
        pa.field("capture", pa.string()),
        pa.field("door", pa.string()),
        pa.field("peer", pa.string()),
        pa.field("outgoing", pa.bool_()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("offset", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("fields", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("error", pa.string()),
    ]
)
"""``peer`` is the other side of the hub, ``offset`` the bytes of the direction before the read that completed the
frame, ``fields`` JSON (bytes as base64)."""

TASKS_A_CORE: Final = 16
"""Most tasks per core: enough to even out files of different sizes."""

SPLIT_BYTES: Final = 64 << 20
"""Files of more bytes than this are decoded in parts of about so many."""

_ROWS_A_BATCH: Final = 4096
_BYTES_A_BATCH: Final = 8 << 20

_WRITTEN: Final = ("part-", ".part-", "_SUCCESS", "._SUCCESS", "_temporary")
"""Prefixes of the names that Spark writes into the folder of rows."""


def check(params: Mapping[str, str], _available_now: bool) -> None:
    """Check the parameters before Spark starts."""
    parse_ports(params.get("ports", ""))
    captures = params.get("captures")
    if not captures:
        raise UsageError("decode: name the captures: --param captures=DIR")
    if is_local(captures):
        _found(captures)


def start(run: JobRun) -> dict[str, object]:
    """Decode all captures of a folder, or one."""
    check(run.params, run.available_now)
    folder, names = _found(run.param("captures"))
    _may_be_replaced(run.folder)
    rows = decode(run.spark, folder, names, parse_ports(run.param("ports")))
    run.at_work = lambda _client: {}
    rows.write.mode("overwrite").parquet(run.path)
    counted = (
        run.spark.read.parquet(run.path)
        .selectExpr("count(*) as frames", "count(error) as errors")
        .collect()[0]
    )
    return {"captures": len(names), "path": run.path, "frames": counted.frames, "errors": counted.errors}


def decode(
    spark: SparkSession, folder: Folder, names: list[str], ports: dict[int, str], split: int = SPLIT_BYTES
) -> DataFrame:
    """Decode captures in a folder to frames; files of more than ``split`` bytes by several tasks."""
    from headrace.spark.jobs.decode.capture_rows import PACKETS
    from headrace.spark.jobs.decode.large_files import in_tasks, plan

    planned = plan(spark, folder, names, split)
    most = TASKS_A_CORE * spark.sparkContext.defaultParallelism
    rows = in_tasks(spark, len(planned.parts), most).mapInArrow(
        partial(_decode_parts, folder, ports, planned.parts), spark_ddl(ROWS)
    )
    if not planned.packets:
        return rows
    packets = in_tasks(spark, len(planned.packets)).mapInArrow(
        partial(_parse_packets, folder, ports, planned.packets), spark_ddl(PACKETS)
    )
    flows = packets.repartition(min(len(planned.packets), most), "capture", "flow")
    ordered = flows.sortWithinPartitions("capture", "flow", "position")
    return rows.unionAll(ordered.mapInArrow(partial(_decode_packets, ports), spark_ddl(ROWS)))


def parse_ports(text: str) -> dict[int, str]:
    """Parse ``2323=fyrehose,3002=spp``; nothing gives the doors' default ports."""
    if not text or text == PARAMETERS["ports"].default:
        listen = Settings().listen
        return {getattr(listen, door).port: door for door in DOORS if getattr(listen, door) is not None}
    ports = {}
    for part in text.split(","):
        port, _, door = part.strip().partition("=")
        if not port.isdecimal() or door not in DOORS:
            raise UsageError(
                f"decode: ports {part.strip()!r}: expected PORT=DOOR; doors are {', '.join(DOORS)}"
            )
        ports[int(port)] = door
    return ports


def is_capture(name: str) -> bool:
    """Whether a file is a capture, by its name."""
    return PurePosixPath(name).suffix in (".capture", ".pcap", ".cap")


def _found(captures: str) -> tuple[Folder, list[str]]:
    """Find captures, and their folder."""
    parent, _, name = captures.rstrip("/").rpartition("/")
    if is_capture(name) and name in (folder := Folder.at(parent or ".")).files():
        return folder, [name]
    folder = Folder.at(captures)
    names = [name for name in folder.files() if is_capture(name)]
    if not names:
        raise UsageError(f"decode: {captures} has no captures (*.capture, *.pcap, *.cap)")
    return folder, names


def _may_be_replaced(folder: Folder) -> None:
    """Refuse to empty a folder with files that this job did not write."""
    foreign = [name for name in folder.names() if not name.startswith(_WRITTEN)]
    if foreign:
        raise UsageError(
            f"decode: {folder.path} would be emptied, and has files that decode did not write ({foreign[0]}): "
            "choose another path"
        )


def _decode_parts(
    folder: Folder, ports: dict[int, str], parts: Sequence[FilePart], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from headrace.spark.jobs.decode.capture_rows import rows_of_part

    for batch in batches:
        for place in batch.column(0).to_pylist():
            yield from _batches(rows_of_part(folder, parts[place], ports), ROWS)


def _parse_packets(
    folder: Folder, ports: dict[int, str], parts: Sequence[FilePart], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from headrace.spark.jobs.decode.capture_rows import PACKETS, packets_of_part

    for batch in batches:
        for place in batch.column(0).to_pylist():
            yield from _batches(packets_of_part(folder, parts[place], ports), PACKETS)


def _decode_packets(ports: dict[int, str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from headrace.spark.jobs.decode.capture_rows import rows_of_packets

    return _batches(rows_of_packets(batches, ports), ROWS)


def _batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += sum(len(row.get(name) or b"") for name in ("payload", "fields", "data"))
        if len(waiting) >= _ROWS_A_BATCH or size >= _BYTES_A_BATCH:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=schema)
