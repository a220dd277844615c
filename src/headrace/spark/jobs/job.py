"""The interface of a job, and of its run.

A job is a module with ``ABOUT`` (a sentence), ``PARAMETERS`` (the names it takes) and a function ``start``. A stream's
``start`` returns a :class:`RunningJob`, whose query the runner watches; a job that is done when it returns gives the
facts of what it did. A function ``check``, if there is one, gets the parameters, and whether the job is to end with
what exists now, and raises an error for parameters that the job cannot run with, before Spark is started.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from headrace.archive.folder import Folder, is_s3
from headrace.errors import RefusedError, StorageError, UsageError
from headrace.message import MAX_SEQUENCE
from headrace.spark.hub_connections import link
from headrace.spark.options import HubOptions, as_text
from headrace.spark.runtime.session import NO_PYSPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("headrace.spark")

JOBS: Final = ("archive", "verify", "measure", "match", "replay", "decode")
"""All jobs; each is a module of that name."""

DEFAULT_JOBS: Final = ("measure", "verify", "archive")
"""The jobs that run beside a hub; the quickest to show results is first."""


class Parameter(NamedTuple):
    """A parameter that ``--param NAME=VALUE`` sets."""

    doc: str
    default: str = ""
    check: Callable[[str], object] = str
    """Raises :class:`ValueError` with the expected value, or :class:`UsageError` with a whole sentence."""


def at_least(least: float) -> Callable[[str], float]:
    """Make the check of a parameter that is a number.

    >>> at_least(1)("0.5")
    Traceback (most recent call last):
    ValueError: a number of 1 or more
    """

    def check(value: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= float(value) < inf:
                return float(value)
        raise ValueError(f"a number of {least:g} or more")

    return check


def spark_ddl(schema: pa.Schema) -> str:
    """Convert an Arrow schema to Spark's DDL.

    >>> spark_ddl(pa.schema({"seq": pa.int64(), "kind": pa.string()}))
    '`seq` long, `kind` string'
    """
    return ", ".join(f"`{field.name}` {_SPARK_TYPES.get(str(field.type), field.type)}" for field in schema)


def one_of(*words: str) -> Callable[[str], str]:
    """Make the check of a parameter that is one of some words, in any case."""

    def check(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
        return value.lower()

    return check


def _place(value: str) -> None:
    with contextlib.suppress(ValueError):
        if value in ("earliest", "latest", "now") or 1 <= int(value) <= MAX_SEQUENCE:
            return
    raise ValueError("earliest, latest or a sequence number from 1 on")


_PASSED: Final = 500
"""Characters of a failure that are passed to Spark; :attr:`JobRun.failure` is complete."""

_MEMORY_SUFFIX: Final = ".kept"
_SPARK_TYPES: Final = {
    "int32": "int",
    "int64": "long",
    "bool": "boolean",
    "timestamp[us, tz=UTC]": "timestamp",
}

_OWNER: Final = "job"
"""A file in a checkpoint with the name of its job."""

COMMON: Final[Mapping[str, Parameter]] = {
    "path": Parameter("where the job writes: a folder, or a URI that pyarrow has a filesystem for"),
    "checkpoint": Parameter("where Spark keeps how far the query is", "path/_checkpoint"),
    "starting": Parameter(
        "where a new query begins: earliest, latest or a sequence number", "earliest", _place
    ),
    "interval": Parameter("seconds from micro-batch to micro-batch", check=at_least(0.01)),
    "fail_on_data_loss": Parameter(
        "whether messages that retention removed unread are an error", check=one_of("true", "false")
    ),
}
"""The parameters of all streaming jobs."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job: its query, and facts about it that Spark does not have."""

    query: StreamingQuery
    facts: Callable[[], Mapping[str, object]] = dict


class BatchMemory:
    """A job's state from micro-batch to micro-batch, beside its query's checkpoint; the newest two are kept.

    Spark repeats a micro-batch that was interrupted. So the state after batch N is a file of its own, made from that of
    batch N - 1: repeating N gives the same.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def before(self, batch: int) -> bytes | None:
        """Read the state before a micro-batch; ``None`` before the first."""
        earlier = [number for number in self._numbers() if number < batch]
        return self._folder.read(_memory_name(max(earlier))) if earlier else None

    def after(self, batch: int, content: bytes) -> None:
        """Write the state after a micro-batch."""
        self._folder.write(_memory_name(batch), content)
        for number in self._numbers():
            if number < batch - 1:
                self._folder.remove(_memory_name(number))

    def _numbers(self) -> list[int]:
        names = self._folder.names()
        return [int(name.removesuffix(_MEMORY_SUFFIX)) for name in names if name.endswith(_MEMORY_SUFFIX)]


def _memory_name(batch: int) -> str:
    return f"{batch:012d}{_MEMORY_SUFFIX}"


class Job(Protocol):
    """A job's module."""

    ABOUT: str
    PARAMETERS: Mapping[str, Parameter]

    def start(self, run: JobRun) -> RunningJob | Mapping[str, object]:
        """Start a stream, or do all of a job that has an end."""


@dataclass(slots=True)
class JobRun:
    """One run of a job."""

    spark: SparkSession
    name: str
    access: HubOptions
    params: Mapping[str, str]
    """Parameters as given; :meth:`param` has the defaults too."""
    parameters: Mapping[str, Parameter]
    available_now: bool = False
    failure: BaseException | None = field(default=None)
    """The error that a micro-batch raised; Spark's own report of it is a page long."""
    at_work: Callable[[Any], Mapping[str, object]] | None = None
    """Asks a client of the hub for the progress; set by a job that has an end."""

    def param(self, name: str) -> str:
        """A parameter's value."""
        if given := self.params.get(name):
            _check(self.name, name, given, self.parameters[name])
        return given or self.parameters[name].default

    def number(self, name: str) -> float:
        """A parameter that is a number."""
        return float(self.param(name))

    def truth(self, name: str) -> bool:
        """A parameter that is true or false."""
        return self.param(name).lower() == "true"

    @property
    def path(self) -> str:
        """Where the job writes."""
        return self.param("path")

    @property
    def folder(self) -> Folder:
        """The folder at :attr:`path`."""
        return Folder.at(self.path)

    @property
    def checkpoint(self) -> str:
        """Where the query's checkpoint is."""
        if given := self.params.get("checkpoint"):
            return given
        if is_s3(self.path) and ("?" in self.path or not self.path.startswith("s3a://")):
            raise UsageError(
                f"{self.name}: Spark keeps its checkpoint on a filesystem of Hadoop's, which s3:// is not: name one "
                f"with --param {self.name}.checkpoint=PATH, a folder or a URI such as s3a://bucket/checkpoint"
            )
        return f"{self.path.rstrip('/')}/_checkpoint"

    def memory(self) -> BatchMemory:
        """The job's memory, which lies in the checkpoint."""
        self._own_checkpoint()
        return BatchMemory(Folder.at(self.checkpoint).sub("kept"))

    def rows(self, servers: str | None = None, **options: object) -> DataFrame:
        """Load the sequence, or a part of it, as it is now."""
        return self._load(self.spark.read, servers, {"reader": self.name, **options})

    def stream(self, source: str = "headrace", **options: object) -> DataFrame:
        """Load the sequence as a stream of the format ``source``, from the query's checkpoint on."""
        defaults = {
            "startingOffsets": self.param("starting"),
            "failOnDataLoss": self.param("fail_on_data_loss"),
            "reader": self.name,
        }
        return self._load(self.spark.readStream, None, defaults | options, source)

    def source(self, name: str, **options: object) -> DataFrame:
        """Load another stream of a hub by its format's name."""
        return self._load(self.spark.readStream, None, options, name)

    def query(
        self, rows: DataFrame, each: Callable[[DataFrame, int], None], *, interval: float | None = None
    ) -> StreamingQuery:
        """Call ``each`` for every micro-batch of ``rows``, one per ``interval`` (by default the parameter)."""
        seconds = self.number("interval") if interval is None else interval
        self._own_checkpoint()

        def guarded(batch: DataFrame, number: int) -> None:
            try:
                each(batch, number)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that watches the query
                self.failure = error
                kind = type(error)
                # Spark matches the text against a pattern that a long text, such as its own, overflows.
                report = f"{kind.__module__}.{kind.__qualname__}: {str(error)[:_PASSED]}"
                raise RuntimeError(report) from None

        writer = rows.writeStream.queryName(self.name).option("checkpointLocation", self.checkpoint)
        if self.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{seconds} seconds")
        return writer.foreachBatch(guarded).start()

    def publish_services(self, query: str, batch: int, changes: Mapping[str, Mapping[str, object]]) -> None:
        """Change services by JSON patches, all at once; a repeated micro-batch changes nothing.

        This is what the sink does, but without tasks: there are few rows.
        """
        if not changes:
            return
        rows = pa.table(
            {
                "topic": pa.array(list(changes), pa.string()),
                "payload": pa.array(
                    [msgspec.json.encode(change) for change in changes.values()], pa.binary()
                ),
            }
        )
        with link(self.access) as client:
            stage = client.stage(query, batch, rows)
            try:
                client.commit(query, batch, [stage], services=True)
            except RefusedError as refused:
                if refused.code != "conflict":
                    raise
                # A repeated micro-batch may come to another account; the next change says what is so then.
                logger.warning("%s: services stay as they are: %s", self.name, refused)

    def _own_checkpoint(self) -> None:
        """Check that the checkpoint is not another job's: this one would resume there and miss the rest."""
        # Only Spark needs to write there: what pyarrow cannot read is not checked.
        try:
            folder = Folder.at(self.checkpoint)
        except UsageError:
            return
        try:
            owner = folder.read(_OWNER).decode(errors="replace") if _OWNER in folder.names() else None
            if owner is None:
                folder.write(_OWNER, self.name.encode())
        except (OSError, pa.ArrowException) as error:
            if folder.local:
                # Spark could not write either, and would print pages of Java.
                raise StorageError(f"{self.name}: {self.checkpoint} cannot be written: {error}") from error
            return
        if owner not in (None, self.name):
            raise UsageError(
                f"{self.name}: {self.checkpoint} is the checkpoint of {owner}, and each job needs one of its own: "
                "choose another path, or another checkpoint"
            )

    def _load(
        self, reader: Any, servers: str | None, options: Mapping[str, object], source: str = "headrace"
    ) -> DataFrame:
        access = self.access if servers is None else replace(self.access, servers=servers)
        reader = reader.format(source).options(**access.options)
        for name, value in options.items():
            reader = reader.option(name, as_text(value))
        loaded: DataFrame = reader.load()
        return loaded


def find(name: str) -> Job:
    """Import a job's module.

    >>> find("archive").ABOUT
    'the sequence to a table: Delta, Iceberg or plain Parquet'
    """
    if name not in JOBS:
        close = get_close_matches(name, JOBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(JOBS)}"
        raise UsageError(f"there is no job {name!r}: {hint}")
    try:
        job: Any = import_module(f"headrace.spark.jobs.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise UsageError(NO_PYSPARK) from None
    return job  # type: ignore[no-any-return]


def parameters_of(jobs: Mapping[str, Job], given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Distribute parameters: ``NAME=VALUE`` is for each job that takes it, ``JOB.NAME=VALUE`` for one.

    Several jobs that share a ``path`` or a ``checkpoint`` get a folder each in it. Wrong values raise here, before
    anything runs.
    """
    found: dict[str, dict[str, str]] = {name: {} for name in jobs}
    for key, value in sorted(given.items(), key=lambda item: "." in item[0]):
        job, dot, name = key.partition(".")
        takers = [job] if dot else [each for each in jobs if key in jobs[each].PARAMETERS]
        name = name if dot else key
        if (dot and (job not in jobs or name not in jobs[job].PARAMETERS)) or not takers:
            raise UsageError(_unknown(key, jobs))
        for taker in takers:
            shared = name in ("path", "checkpoint") and not dot and len(jobs) > 1
            found[taker][name] = _below(value, taker) if shared else value
            if value:
                _check(taker, name, value, jobs[taker].PARAMETERS[name])
    return found


def _check(job: str, name: str, value: str, parameter: Parameter) -> None:
    try:
        parameter.check(value)
    except ValueError as error:
        raise UsageError(f"{job}: {name} = {value}: expected {error}") from None


def _below(place: str, name: str) -> str:
    """Return the path of a folder in another; a URI's path may be followed by options of its filesystem.

    >>> _below("/srv/all/", "archive"), _below("s3://mill/all?region=eu-central-1", "archive")
    ('/srv/all/archive', 's3://mill/all/archive?region=eu-central-1')
    """
    path, question, options = place.partition("?") if "://" in place else (place, "", "")
    return f"{path.rstrip('/')}/{name}{question}{options}"


def _unknown(key: str, jobs: Mapping[str, Job]) -> str:
    job, dot, _ = key.partition(".")
    if dot and job in JOBS and job not in jobs:
        return f"{key}: {job} is not among the jobs to run, which are {', '.join(jobs)}"
    known = list(dict.fromkeys(name for job in jobs.values() for name in job.PARAMETERS))
    close = get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"{', '.join(jobs)}: no parameter {key!r}; {hint}"
