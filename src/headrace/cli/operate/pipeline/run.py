"""``pipeline run``: run jobs, show their progress, stop on a signal.

On a terminal that is one line that changes; in a pipe it is a JSON line for each event: ``starting``, ``started``,
``progress`` (a micro-batch is done), ``done``, ``failed`` (it is tried again), ``stopping``, ``stopped``.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.hubs.access import Credentials
from headrace.cli.operate.pipeline.progress import failure_line, live_line
from headrace.cli.terminal import completion
from headrace.cli.terminal.options import (
    HUB_PANEL,
    ClientId,
    Data,
    DoorScheme,
    JsonLines,
    default_url,
    expect_this_hub,
    find_credentials,
    load_settings,
)
from headrace.cli.terminal.output import wants_json
from headrace.config import DOORS, Settings
from headrace.config.sources import CLIENT_VARIABLE, KEY_VARIABLE
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.spark.runner import Pipeline

logger = logging.getLogger("headrace")

EXAMPLES: Final = (
    ("Archive, verify and measure, beside a hub on this machine:", "headrace pipeline run"),
    (
        "Archive what there is now, elsewhere:",
        "headrace pipeline run archive --available-now --param path=/srv/a",
    ),
    (
        "The same as an Iceberg table:",
        "headrace pipeline run archive --table-format iceberg --param path=/srv/a",
    ),
    (
        "Compare the logs of two hubs:",
        "headrace pipeline run verify --servers 10.0.0.1:8081,10.0.0.2:8081",
    ),
    (
        "The matcher fleet, for a hub with matching.engine = spark:",
        "headrace pipeline run match --param dispatchers=10.0.0.1:6000",
    ),
    (
        "Publish a part of an archive to a hub, as it came:",
        "headrace pipeline run replay -p path=/srv/a -p until=900 -p speed=1",
    ),
    (
        "Recorded connections to rows (see: headrace serve --record):",
        "headrace pipeline run decode --param captures=captures --param path=frames",
    ),
    ("On a Spark cluster:", "headrace pipeline run --master spark://10.0.0.9:7077"),
)

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="The jobs to run.", autocompletion=completion.jobs),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        metavar="HOST:PORT[,HOST:PORT]...",
        help="The hubs' tube_tcp doors; by default the one in the local settings: 127.0.0.1:8081.",
        rich_help_panel=HUB_PANEL,
    ),
]
Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="The Spark master: local[N], spark://…, yarn, k8s://…"),
]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Process what is there now, and end.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="[JOB.]NAME=VALUE",
        help="A parameter of one job, or of every job that has it. headrace pipeline jobs lists them.",
    ),
]
TableFormat = Annotated[
    str | None,
    typer.Option(
        "--table-format",
        metavar="delta|iceberg|parquet",
        help="The format of the archive; the same as --param archive.table_format=…",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's, which wins over Headrace's."),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", help="The driver's memory, which in local mode is all there is."
    ),
]


def run(
    jobs: Jobs = None,
    servers: Servers = None,
    master: Master = "local[*]",
    available_now: AvailableNow = False,
    params: Params = None,
    table_format: TableFormat = None,
    conf: Conf = None,
    memory: Memory = "1g",
    data: Data = None,
    client_id: ClientId = None,
    as_json: JsonLines = False,
) -> None:
    """Run jobs until they are stopped, or with --available-now until everything there is processed.

    Without a name these are archive, verify and measure. Each continues where it stopped, from its checkpoint. SIGTERM
    and Ctrl-C let micro-batches finish, for some seconds, and then stop; the next run does the rest, once.
    """
    if table_format and jobs and "archive" not in jobs:
        raise UsageError(
            f"--table-format is for archive, which is not among the jobs to run: {', '.join(jobs)}"
        )
    from headrace.cli.terminal.stderr import log_briefly
    from headrace.spark.jobs.job import DEFAULT_JOBS
    from headrace.spark.options import HubOptions
    from headrace.spark.runner import Pipeline, PipelineRequest

    settings = load_settings(None, data)
    given = [*(params or ()), *([f"archive.table_format={table_format}"] if table_format else ())]
    log_briefly()
    export_credentials(find_credentials(client_id, settings))
    names = tuple(dict.fromkeys(jobs or DEFAULT_JOBS))
    asked = PipelineRequest(
        names,
        HubOptions.to(servers or default_servers()).with_tls_files(),
        master=master,
        params=parse_params(given),
        available_now=available_now,
        # If a single job fails, or one that has an end, an error at once is better than trying again and again.
        restart=len(names) > 1 and not available_now,
        root=str(settings.node.data / "pipeline"),
        memory=memory,
        conf=parse_params(conf or (), "--conf"),
    )
    display = _EventLines() if wants_json(asked=as_json) else _LiveLine()
    pipeline = Pipeline(asked, display.show)
    stop_on_signals(pipeline)
    try:
        pipeline.run()
    finally:
        display.end()


def parse_params(params: Sequence[str], option: str = "--param") -> dict[str, str]:
    """Parse ``NAME=VALUE`` options; a later one wins.

    >>> parse_params(["path=/srv/archive", "archive.interval=10"])
    {'path': '/srv/archive', 'archive.interval': '10'}
    """
    found = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {param!r}: expected NAME=VALUE")
        found[name.strip()] = value
    return found


def default_servers() -> str:
    """Return the link's URL by this environment's context or settings."""
    return default_url(DoorScheme.TUBE)


def run_for_hub(settings: Settings) -> None:
    """Run the pipeline that the settings describe, beside the hub of this machine."""
    from headrace.spark.options import HubOptions
    from headrace.spark.runner import Pipeline, PipelineRequest
    from headrace.spark.runtime.session import cores

    credentials = find_credentials(None, settings)
    if credentials is None and settings.auth.required:
        raise UsageError(
            f"auth.required is on, and the pipeline has no client id: set {CLIENT_VARIABLE} to one of auth.clients"
        )
    export_credentials(credentials)
    wanted, where = settings.pipeline, str(settings.listen.tube_tcp)
    if settings.tls.cert is not None and "tube_tcp" in (settings.tls.doors or DOORS):
        expect_this_hub(settings)
        where = f"tube+tls://{where}"
    master = f"local[{max(cores('local[*]') - 1, 1)}]" if wanted.master == "auto" else wanted.master
    asked = PipelineRequest(
        wanted.jobs,
        HubOptions.to(where).with_tls_files(),
        master=master,
        params=wanted.params,
        root=str(settings.node.data.absolute() / "pipeline"),
        memory=wanted.memory,
        conf=wanted.conf,
        restart=True,
    )

    def log_event(facts: Mapping[str, object]) -> None:
        match facts["event"]:
            case "started":
                logger.info("the pipeline runs %s; Spark's pages: %s", ", ".join(wanted.jobs), facts["ui"])
            case "failed":
                logger.error("%s", failure_line(facts))

    pipeline = Pipeline(asked, log_event)
    stop_on_signals(pipeline, watched=True)
    pipeline.run()


def check_params(settings: Settings) -> None:
    """Check that the jobs of the settings have the parameters that are set."""
    from headrace.spark.jobs.job import find, parameters_of

    try:
        jobs = {name: find(name) for name in settings.pipeline.jobs}
    except UsageError:
        # Without Spark there are no jobs, and the hub runs alone.
        return
    parameters_of(jobs, settings.pipeline.params)


def export_credentials(credentials: Credentials | None) -> None:
    """Give this process, and those that Spark starts here, the credentials for the hub.

    They are in the environment, because others see command lines and Spark's settings.
    """
    if credentials is not None:
        os.environ |= {CLIENT_VARIABLE: credentials.id, KEY_VARIABLE: credentials.key}


def stop_on_signals(pipeline: Pipeline, *, watched: bool = False) -> None:
    """Stop a pipeline at the first SIGTERM or SIGINT; the next has its plain meaning.

    A ``watched`` pipeline does not wait for a Spark that is just starting: its watcher ends the JVM as well.
    """
    signals = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: Any) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        pipeline.stop()
        if watched and pipeline.starting:
            # Py4J, which waits for the JVM, logs the interruption as an error, with a traceback: partly by a logger of
            # its own, partly by the root logger itself, whose filters do not apply to what our loggers pass up.
            logging.getLogger("py4j").setLevel(logging.CRITICAL)
            logging.getLogger().addFilter(lambda _: False)
            raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, stop)


class _EventLines:
    """A line of JSON for each event."""

    def show(self, facts: Mapping[str, object]) -> None:
        import msgspec

        sys.stdout.buffer.write(msgspec.json.encode(facts) + b"\n")
        sys.stdout.flush()

    def end(self) -> None:
        """Do nothing."""


class _LiveLine:
    """Lines for people: events stay, and a last line with the jobs' progress changes."""

    def __init__(self) -> None:
        self._jobs: dict[str, Mapping[str, object]] = {}
        self._live = sys.stdout.isatty()

    def show(self, facts: Mapping[str, object]) -> None:
        match facts["event"]:
            case "starting":
                self._print_event(f"starting Spark on {facts['master']} …")
            case "started":
                self._print_event(
                    f"running {', '.join(map(str, _list(facts['jobs'])))}; Spark's pages: {facts['ui'] or 'off'}"
                )
            case "progress":
                self._jobs[str(facts["job"])] = facts
                self._print_progress()
            case "done":
                rest = {name: value for name, value in facts.items() if name not in ("event", "job", "state")}
                self._print_event(
                    f"{facts['job']}: " + ", ".join(f"{name} {value}" for name, value in rest.items())
                )
            case "failed":
                self._print_event(failure_line(facts))
                self._jobs[str(facts["job"])] = {**facts, "error": None}
            case "stopping":
                self._print_event("stopping: micro-batches under way may finish, for some seconds")
            case "stopped":
                self._print_event("stopped")

    def end(self) -> None:
        """Leave the last line where it is."""
        if self._jobs and self._live:
            print()

    def _print_progress(self) -> None:
        line = live_line(self._jobs.values(), shutil.get_terminal_size((0, 0)).columns if self._live else 0)
        print(f"\r\x1b[2K{line}" if self._live else line, end="" if self._live else "\n", flush=True)

    def _print_event(self, line: str) -> None:
        if self._jobs and self._live:
            print()
            self._jobs.clear()
        print(line, flush=True)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
