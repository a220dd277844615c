"""What every job is told, and what it is to the runner.

A job is a module with ``ABOUT`` (a sentence), ``PARAMETERS`` (the names it takes besides those of all jobs) and a
function ``start``. A stream's ``start`` gives a :class:`Started`, whose query the runner watches; one that is done when
it returns gives the facts of what it did. It may have a function ``check`` too, which is given what the job is told,
and whether it is to end with what there is now, and raises what the job could not begin with: that is known before
Spark is started.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import StorageError, UsageError
from headrace.message import MAX_SEQUENCE
from headrace.spark.jobs.folder import Folder, is_s3
from headrace.spark.jobs.job_memory import Kept
from headrace.spark.options import Access, as_text
from headrace.spark.runtime.session import NO_PYSPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

JOBS: Final = ("archive", "verify", "measure", "match", "replay", "decode")
"""The jobs there are; each is the module of its name."""

DEFAULT_JOBS: Final = ("measure", "verify", "archive")
"""Those that have something to do for as long as a hub runs, in the order in which they have something to show."""


class Parameter(NamedTuple):
    """What a job may be told with ``--param NAME=VALUE``."""

    doc: str
    default: str = ""
    check: Callable[[str], object] = str
    """Raises :class:`ValueError`, which says what was expected, or :class:`UsageError` for what it cannot be."""


def at_least(least: float) -> Callable[[str], float]:
    """A parameter that is a number.

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


def one_of(*words: str) -> Callable[[str], str]:
    """A parameter that is one of some words, however they are written."""

    def check(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
        return value.lower()

    return check


def _place(value: str) -> None:
    with contextlib.suppress(ValueError):
        if value in ("earliest", "latest") or 1 <= int(value) <= MAX_SEQUENCE:
            return
    raise ValueError("earliest, latest or a sequence number from 1 on")


_TOLD: Final = 500
"""Characters of a micro-batch's failure that Spark is told; :attr:`Run.failure` has all of it."""

_OWNER: Final = "job"
"""A file in a checkpoint, with the name of the job that it is of."""

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
"""What all streaming jobs take."""


@dataclass(frozen=True, slots=True)
class Started:
    """A job that runs: its query, and facts about it that Spark does not have."""

    query: StreamingQuery
    facts: Callable[[], Mapping[str, object]] = dict


class Job(Protocol):
    """A job's module."""

    ABOUT: str
    PARAMETERS: Mapping[str, Parameter]

    def start(self, run: Run) -> Started | Mapping[str, object]:
        """Begin, or do all of it."""


@dataclass(slots=True)
class Run:
    """One run of a job."""

    spark: SparkSession
    name: str
    access: Access
    params: Mapping[str, str]
    """What was said; :meth:`param` has the defaults too."""
    parameters: Mapping[str, Parameter]
    available_now: bool = False
    failure: BaseException | None = field(default=None)
    """What a micro-batch raised: Spark's own account of it is a page long."""
    at_work: Callable[[Any], Mapping[str, object]] | None = None
    """Set by a job that has an end when it begins: what a client of the hub finds out about how far it is."""

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
        """The same."""
        return Folder.at(self.path)

    @property
    def checkpoint(self) -> str:
        """Where the query's checkpoint is."""
        if said := self.params.get("checkpoint"):
            return said
        if is_s3(self.path) and ("?" in self.path or not self.path.startswith("s3a://")):
            raise UsageError(
                f"{self.name}: Spark keeps its checkpoint where Hadoop has a filesystem for, which s3:// is not: say "
                f"where with --param {self.name}.checkpoint=PATH, a folder or a URI such as s3a://bucket/checkpoint"
            )
        return f"{self.path.rstrip('/')}/_checkpoint"

    def kept(self) -> Kept:
        """What the job keeps from micro-batch to micro-batch, beside the checkpoint and gone with it."""
        self._own_checkpoint()
        return Kept(Folder.at(self.checkpoint).sub("kept"))

    def rows(self, servers: str | None = None, **options: object) -> DataFrame:
        """The sequence, or a part of it, as it is now."""
        return self._load(self.spark.read, servers, {"reader": self.name, **options})

    def stream(self, source: str = "headrace", **options: object) -> DataFrame:
        """The sequence, from where the query's checkpoint says on; as ``source`` gives it."""
        defaults = {
            "startingOffsets": self.param("starting"),
            "failOnDataLoss": self.param("fail_on_data_loss"),
            "reader": self.name,
        }
        return self._load(self.spark.readStream, None, defaults | options, source)

    def source(self, name: str, **options: object) -> DataFrame:
        """Another stream of a hub's, by its format's name."""
        return self._load(self.spark.readStream, None, options, name)

    def query(
        self, rows: DataFrame, each: Callable[[DataFrame, int], None], *, interval: float | None = None
    ) -> StreamingQuery:
        """Have ``each`` do every micro-batch of ``rows``, one each ``interval``, which else is the parameter."""
        seconds = self.number("interval") if interval is None else interval
        self._own_checkpoint()

        def guarded(batch: DataFrame, number: int) -> None:
            try:
                each(batch, number)
            except BaseException as error:  # noqa: BLE001 - it is raised by who watches the query
                self.failure = error
                kind = type(error)
                # Spark matches what it is told against a pattern that a long text, such as its own, is too much for.
                told = f"{kind.__module__}.{kind.__qualname__}: {str(error)[:_TOLD]}"
                raise RuntimeError(told) from None

        writer = rows.writeStream.queryName(self.name).option("checkpointLocation", self.checkpoint)
        if self.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{seconds} seconds")
        return writer.foreachBatch(guarded).start()

    def _own_checkpoint(self) -> None:
        """See that the checkpoint is no other job's: this one would go on from where that one is, and miss the rest."""
        # Only Spark must be able to write there: where pyarrow is not, there is nothing to see.
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
                # Nor would Spark be, and it says so in pages of Java.
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
        reader = reader.format(source).option("servers", servers or self.access.servers)
        if self.access.client_id is not None:
            reader = reader.option("clientId", self.access.client_id)
        if self.access.key_file is not None:
            reader = reader.option("keyFile", self.access.key_file)
        for name, value in options.items():
            reader = reader.option(name, as_text(value))
        loaded: DataFrame = reader.load()
        return loaded


def find(name: str) -> Job:
    """A job's module.

    >>> find("archive").ABOUT
    'the sequence to Parquet, Delta or Iceberg, by day and hour'
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
    """Which job is told what: ``NAME=VALUE`` is for each that takes it, ``JOB.NAME=VALUE`` for one.

    Several jobs that share a ``path`` or a ``checkpoint`` get a folder each in it. A value that cannot be is told here,
    before anything runs.
    """
    told: dict[str, dict[str, str]] = {name: {} for name in jobs}
    for key, value in sorted(given.items(), key=lambda item: "." in item[0]):
        job, dot, name = key.partition(".")
        takers = [job] if dot else [each for each in jobs if key in jobs[each].PARAMETERS]
        name = name if dot else key
        if (dot and (job not in jobs or name not in jobs[job].PARAMETERS)) or not takers:
            raise UsageError(_unknown(key, jobs))
        for taker in takers:
            shared = name in ("path", "checkpoint") and not dot and len(jobs) > 1
            told[taker][name] = _below(value, taker) if shared else value
            if value:
                _check(taker, name, value, jobs[taker].PARAMETERS[name])
    return told


def _check(job: str, name: str, value: str, parameter: Parameter) -> None:
    try:
        parameter.check(value)
    except ValueError as error:
        raise UsageError(f"{job}: {name} = {value}: expected {error}") from None


def _below(place: str, name: str) -> str:
    """A folder in another; behind a URI's path may be what else its filesystem is told.

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
