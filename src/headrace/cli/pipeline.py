"""``pipeline``: Spark jobs over the sequence: run them, see how far they are, which there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from headrace.cli import completing
from headrace.cli.access import Access
from headrace.cli.options import HUB_PANEL, ClientId, Data, Door, Json, default_url, gather, identified
from headrace.cli.prose import examples, paragraphs
from headrace.errors import UsageError

HELP: Final = paragraphs(
    """
    Run Spark jobs over a hub's messages, and see how far they are.

    It needs PySpark and a Java: pip install 'headrace[spark]' brings both.
    """
)
EXAMPLES: Final = examples(
    ("All that belongs to a hub:", "headrace pipeline run"),
    ("How far is it?", "headrace pipeline status"),
)

RUN_HELP: Final = paragraphs(
    """
    Run jobs until they are told to stop, or with --available-now until all that is there is done.

    Without a name these are archive, verify and measure. Each goes on where it stopped, from its checkpoint. SIGTERM
    and Ctrl-C let micro-batches end, for some seconds, and then stop; what was not done is done the next time, once.
    """
)
RUN_EXAMPLES: Final = examples(
    ("Archive, verify and measure, beside a hub on this machine:", "headrace pipeline run"),
    (
        "Archive what there is now, elsewhere:",
        "headrace pipeline run archive --available-now --param path=/srv/a",
    ),
    (
        "The same as a Delta table:",
        "headrace pipeline run archive --table-format delta --param path=/srv/a",
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

STATUS_HELP: Final = paragraphs(
    """
    Show what the pipeline of a hub is doing: how fast each job is, how long its micro-batches take, how far it is
    behind the newest message.

    The exit code is 0 if all jobs run, or have ended as they should; 3 if one has failed, or is being started again
    after it did; 1 if no pipeline has reported, or none for ten seconds.
    """
)
STATUS_EXAMPLES: Final = examples(
    ("For people:", "headrace pipeline status"),
    ("For a script:", "headrace pipeline status --json | jq .jobs.archive.behind"),
    ("Is all well?", "headrace pipeline status > /dev/null || echo 'see to it'"),
)

JOBS_HELP: Final = paragraphs(
    """
    Show the jobs there are, and what each may be told with --param.
    """
)
JOBS_EXAMPLES: Final = examples(
    ("For people:", "headrace pipeline jobs"),
    ("For a script:", "headrace pipeline jobs --json | jq .archive"),
)

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="The jobs to run.", autocompletion=completing.jobs),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        metavar="HOST:PORT[,HOST:PORT]...",
        help="The hubs' tube_tcp doors; without it, where the settings here have it: 127.0.0.1:8081.",
        rich_help_panel=HUB_PANEL,
    ),
]
Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="The Spark master: local[N], spark://…, yarn, k8s://…"),
]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Do what is there now, and end.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="[JOB.]NAME=VALUE",
        help="Tell each job that takes it, or one of them. See: headrace pipeline jobs.",
    ),
]
TableFormat = Annotated[
    str | None,
    typer.Option(
        "--table-format",
        metavar="parquet|delta|iceberg",
        help="What the archive is; the same as --param archive.table_format=…",
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="The driver's, which in local mode is all there is.")
]

pipeline = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")


@pipeline.command("run", help=RUN_HELP, epilog=RUN_EXAMPLES)
def run(
    jobs: Jobs = None,
    servers: Servers = None,
    master: Master = "local[*]",
    available_now: AvailableNow = False,
    params: Params = None,
    table_format: TableFormat = None,
    memory: Memory = "1g",
    data: Data = None,
    client_id: ClientId = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, on a terminal too.")] = False,
) -> None:
    """Run jobs."""
    if table_format and jobs and "archive" not in jobs:
        raise UsageError(
            f"--table-format is for archive, which is not among the jobs to run: {', '.join(jobs)}"
        )
    from headrace.cli import pipeline_run

    settings = gather(None, data)
    pipeline_run.run(
        jobs or (),
        servers or _servers(),
        master=master,
        available_now=available_now,
        params=[*(params or ()), *([f"archive.table_format={table_format}"] if table_format else ())],
        memory=memory,
        data=settings.node.data,
        client=identified(client_id, settings),
        as_json=as_json,
    )


@pipeline.command("status", help=STATUS_HELP, epilog=STATUS_EXAMPLES)
def status(servers: Servers = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show what the pipeline is doing."""
    from headrace.cli import pipeline_look

    where = (servers or _servers()).removeprefix("tube://")
    hub = Access(f"tube://{where}", identified(client_id))
    pipeline_look.status(hub, as_json=as_json)


@pipeline.command("jobs", help=JOBS_HELP, epilog=JOBS_EXAMPLES)
def list_jobs(as_json: Json = False) -> None:
    """Show the jobs there are."""
    from headrace.cli import pipeline_look

    pipeline_look.jobs(as_json=as_json)


def parse_params(params: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` by name; a later one wins.

    >>> parse_params(["path=/srv/archive", "archive.interval=10"])
    {'path': '/srv/archive', 'archive.interval': '10'}
    """
    told = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--param {param!r}: expected NAME=VALUE")
        told[name.strip()] = value
    return told


def _servers() -> str:
    return default_url(Door.TUBE).partition("://")[2]
