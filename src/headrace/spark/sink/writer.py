"""The sink: rows to messages or to service changes, exactly once.

Every write has an **application** and a **version**: a query's id and batch for ``writeStream``, ``txnAppId`` and
``txnVersion`` for a batch ``write`` in ``foreachBatch``. Every task stages its rows at the hub, where
they are invisible, in a stage of its own of any size. When all tasks are done, the driver commits the stages of those
that succeeded: one append, which records the application, the version and what they cover. So the rows are in the log
whole and once, or not at all, whatever is killed:

- A task or an executor that fails is repeated, and stages again; its earlier stages are dropped.
- A driver that fails repeats the batch from its checkpoint. If it was committed, the hub adds nothing, provided that
  it has the same rows. Otherwise the checkpoint is not the one that wrote it, and the commit is refused: to take it for
  done would lose rows.
- A hub that fails before the commit has lost the stages: the commit is refused, the query fails and is restarted.
- If a hub fails during the commit, the driver repeats the commit.

A batch ``write`` without ``txnAppId`` is all or nothing, but a retry is a second write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DoubleType, MapType, StringType, StructType

from headrace.errors import HeadraceError, RefusedError, UsageError
from headrace.spark.options import SinkOptions
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.spark_release import DataSourceStreamArrowWriter
from headrace.wire.link.requests import MAX_STAGES, WRITE

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.sync import Begun

_TOO_LARGE: Final = re.compile("staged_bytes")
"""The limits that smaller batches would stay within."""

_OTHER: Final = (
    "Go on with the checkpoint that wrote last, or begin a new one (another checkpointLocation, another txnAppId), "
    "from the offset on that is not written yet. A batch that is run again must have the same rows: one with rand(), "
    "uuid() or the like has others each time. And each of several writes in one foreachBatch function needs a txnAppId "
    "of its own"
)
"""What to do if a batch is in the log with other rows."""

_QUERY: Final = "sql.streaming.queryId"
"""The property of a task that names its streaming query."""

COLUMNS: Final = ("payload", "topic", "service", "attributes", "numbers")


@dataclass
class StagedPart(WriterCommitMessage):
    """What one task staged at the hub."""

    query: str
    batch: int
    part: int
    log: str
    stage: str
    """Its name; empty if there were no rows."""
    rows: int


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("headrace")``."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._services = check_columns(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; runs in an executor."""
        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY)
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if context is None or not query or not batch:
            raise UsageError("Spark does not name the query and the batch: write from foreachBatch")
        return stage(self._options, query, int(batch), context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what all tasks staged."""
        if others := {each.batch for each in _staged(messages)} - {batchId}:
            raise UsageError(f"Spark commits batch {batchId}, but tasks have written batch {others.pop()}")
        commit(self._options, messages, services=self._services)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Drop what was staged."""
        abort(self._options, messages)


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("headrace")``."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._services = check_columns(schema)
        self._once = f"{WRITE}{uuid4()}"
        """The application of a write that has no version."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; runs in an executor."""
        context = TaskContext.get()
        application, version = self._options.application, self._options.version
        if version is None:
            application, version = self._once, 0
        elif application is None:
            application = None if context is None else context.getLocalProperty(_QUERY)
        if context is None or not application:
            raise UsageError(
                "txnVersion without txnAppId is for foreachBatch, where Spark names the query (but not through Spark "
                "Connect): set both"
            )
        return stage(self._options, application, version, context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what all tasks staged."""
        commit(self._options, messages, services=self._services)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        abort(self._options, messages)


def check_columns(schema: StructType) -> bool:
    """Check that rows can be messages; return whether they are service changes."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if unknown := [name for name in kinds if name not in COLUMNS]:
        raise UsageError(
            f"rows to be written have the columns {', '.join(COLUMNS)}, not {', '.join(unknown)}: select() what "
            "is to be written, or put it into payload with to_json()"
        )
    if "payload" not in kinds:
        raise UsageError("rows to be written need a column payload (binary or string)")
    if "service" in kinds and "topic" in kinds:
        raise UsageError("a service's id is the topic of its changes: leave one of service and topic out")
    texts, numbers = MapType(StringType(), StringType()), MapType(StringType(), DoubleType())
    for name, allowed in (
        ("payload", (BinaryType(), StringType())),
        ("topic", (StringType(),)),
        ("service", (StringType(),)),
        ("attributes", (texts, MapType(StringType(), StringType(), False))),
        ("numbers", (numbers, MapType(StringType(), DoubleType(), False))),
    ):
        if name in kinds and kinds[name] not in allowed:
            expected = " or ".join(kind.simpleString() for kind in allowed[: 2 if name == "payload" else 1])
            raise UsageError(f"column {name} is {kinds[name].simpleString()}: expected {expected}")
    return "service" in kinds


def stage(
    options: SinkOptions, query: str, batch: int, part: int, batches: Iterator[pa.RecordBatch]
) -> StagedPart:
    """Stage rows at the hub, where they wait for their commit."""
    from headrace.client.link.stager import Stager
    from headrace.spark.hub_connections import link
    from headrace.spark.sink.published_rows import bodies

    first = next((rows for rows in batches if rows.num_rows), None)
    if first is None:
        return StagedPart(query, batch, part, "", "", 0)
    count = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for rows in chain([first], batches):
            count += rows.num_rows
            yield rows

    with link(options.access) as client:
        stager = Stager(client.client, query, batch, part)
        sending: Begun[None] | None = None
        try:
            for body in bodies(counted(), options.topic):
                # One body is sent while Spark prepares the next.
                if sending is not None:
                    sending.wait()
                sending = client.begin(stager.send(body))
            if sending is not None:
                sending.wait()
            name = client.wait(stager.finish())
        except BaseException:
            if sending is not None:
                sending.cancel()
            with suppress(HeadraceError):
                client.wait(stager.give_up())
            raise
        hide_from_collector("write")
        return StagedPart(query, batch, part, client.log, name, count)


def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, services: bool) -> None:
    """Append the rows of all tasks at once, unless they are in the log already."""
    from headrace.spark.hub_connections import link

    staged = sorted(_staged(messages), key=lambda each: each.part)
    if not staged:
        return
    one = staged[0]
    names = [each.stage for each in staged]
    if len(names) > MAX_STAGES:
        raise UsageError(
            f"a batch of {len(names)} partitions: the hub takes {MAX_STAGES} at once. Write fewer (coalesce())"
        )
    with link(options.access) as client:
        if others := {each.log for each in staged} - {client.log}:
            raise UsageError(f"rows were staged at log {others.pop()}, but the hub has log {client.log}")
        try:
            client.commit(one.query, one.batch, names, services=services)
        except RefusedError as refused:
            if refused.code == "missing":
                lost = "the hub was restarted, or somebody aborted it"
                reason = f"{refused.reason}. What was staged is gone ({lost}): run the batch again"
                raise RefusedError("missing", reason) from refused
            if refused.code == "conflict":
                raise RefusedError("conflict", f"{refused.reason}. {_OTHER}") from refused
            if refused.code == "limit" and _TOO_LARGE.search(refused.reason):
                smaller = (
                    "make batches smaller (maxOffsetsPerTrigger, maxBytesPerTrigger). A stream repeats a batch as it "
                    f"was planned: stop it and remove offsets/{one.batch} of its checkpoint, then start it with a limit"
                )
                raise RefusedError("limit", f"{refused.reason}; {smaller}") from refused
            raise
    hide_from_collector("commit")


def abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what was staged; a hub that is away drops it by itself."""
    from headrace.spark.hub_connections import link

    names = [each.stage for each in _staged(messages)]
    if not names:
        return
    with suppress(HeadraceError), link(options.access, at_once=True) as client:
        for begin in range(0, len(names), MAX_STAGES):
            client.abort(names[begin : begin + MAX_STAGES])


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [message for message in messages if isinstance(message, StagedPart) and message.stage]
