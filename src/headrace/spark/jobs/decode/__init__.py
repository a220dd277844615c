"""``decode``: recorded bytes to rows, a frame a row, for any of the protocols.

Captures are files: those of ``headrace serve --record``, one for each connection, and pcap files (``tcpdump -w``).
Files are distributed over the tasks. What a protocol's decoder refuses is a row too, with the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.archive.folder import Folder, is_local
from headrace.config import DOORS, Settings
from headrace.errors import HeadraceError, UsageError
from headrace.spark.jobs.job import JobRun, Parameter, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.jobs.decode.frames import DecodedStream, FrameRow

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

_ROWS_A_BATCH: Final = 4096
_BYTES_A_BATCH: Final = 8 << 20
_READ: Final = 1 << 20

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


def decode(spark: SparkSession, folder: Folder, names: list[str], ports: dict[int, str]) -> DataFrame:
    """Decode captures in a folder to frames."""
    tasks = min(len(names), TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    files = spark.createDataFrame([(name,) for name in names], "name string").repartition(tasks)
    return files.mapInArrow(partial(_decode_files, folder, ports), spark_ddl(ROWS))


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


def _decode_files(
    folder: Folder, ports: dict[int, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name in batch.column("name").to_pylist():
            yield from _batches(rows_of(folder, name, ports))


def rows_of(folder: Folder, name: str, ports: dict[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file; an unreadable file is one row, and a truncated one ends with one."""
    from headrace.spark.jobs.decode.pcap import CutOffError

    with folder.open(name) as file:
        rows = _of_capture(file) if name.endswith(".capture") else _of_pcap(file, ports)
        try:
            for row in rows:
                yield {"capture": name, **row}
        except HeadraceError as error:
            kind = "unfinished" if isinstance(error, CutOffError) else "refused"
            yield {"capture": name, "kind": kind, "fields": "{}", "error": str(error)}


def _of_capture(file: Any) -> Iterator[dict[str, Any]]:
    from headrace.spark.jobs.decode.frames import DecodedStream, datagram
    from headrace.wire.capture import Capture, CaptureDecoder, Chunk

    decoder = CaptureDecoder()
    about: Capture | None = None
    streams: dict[bool, DecodedStream] = {}
    while data := file.read(_READ):
        for item in decoder.feed(data):
            match item:
                case Capture():
                    about = item
                    streams = {out: DecodedStream(item.door, outgoing=out) for out in (False, True)}
                case Chunk(outgoing, time, content) if about is not None:
                    where = {"door": about.door, "peer": about.peer, "outgoing": outgoing, "time": time}
                    if about.datagrams:
                        frames = datagram(about.door, content, outgoing=outgoing)
                    else:
                        frames = streams[outgoing].feed(content)
                    yield from (_row(where, frame) for frame in frames)
    for outgoing, stream in streams.items():
        if about is not None and not about.datagrams:
            where = {"door": about.door, "peer": about.peer, "outgoing": outgoing, "time": None}
            yield from (_row(where, frame) for frame in stream.end())
    if about is None or decoder.unfinished:
        what = "its first line" if about is None else "a chunk"
        error = f"the file ends {decoder.unfinished} bytes into {what}"
        yield {"kind": "unfinished", "fields": "{}", "error": error}


def _of_pcap(file: Any, ports: dict[int, str]) -> Iterator[dict[str, Any]]:
    from headrace.spark.jobs.decode.frames import DecodedStream, datagram
    from headrace.spark.jobs.decode.pcap import Flow, pieces

    streams: dict[Flow, DecodedStream] = {}
    for piece in pieces(file):
        flow = piece.flow
        outgoing = flow.target_port not in ports
        door = ports.get(flow.source_port if outgoing else flow.target_port)
        if door is None:
            continue
        peer = f"{flow.target}:{flow.target_port}" if outgoing else f"{flow.source}:{flow.source_port}"
        where = {"door": door, "peer": peer, "outgoing": outgoing, "time": piece.time}
        if flow.udp:
            yield from (_row(where, frame) for frame in datagram(door, piece.data, outgoing=outgoing))
            continue
        stream = streams.setdefault(flow, DecodedStream(door, outgoing=outgoing))
        if piece.lost:
            yield from (_row(where, frame) for frame in stream.lost(piece.lost))
        yield from (_row(where, frame) for frame in stream.feed(piece.data))
        if piece.ended:
            yield from (_row(where, frame) for frame in streams.pop(flow).end())


def _row(where: dict[str, Any], frame: FrameRow) -> dict[str, Any]:
    return {
        **where,
        "offset": frame.offset,
        "kind": frame.kind,
        "fields": frame.fields.decode(),
        "payload": frame.payload,
        "error": frame.error,
    }


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row.get("payload") or b"") + len(row["fields"])
        if len(waiting) >= _ROWS_A_BATCH or size >= _BYTES_A_BATCH:
            yield pa.RecordBatch.from_pylist(waiting, schema=ROWS)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=ROWS)
