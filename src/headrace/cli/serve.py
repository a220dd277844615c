"""``serve``: run a hub until it is told to stop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.options import Config, Data, Sets, gather
from headrace.cli.prose import examples, paragraphs
from headrace.cli.stderr import LogFormat, LogLevel, speak

logger = logging.getLogger("headrace")

ReadyFile = Annotated[
    Path | None,
    typer.Option(
        "--ready-file",
        metavar="FILE",
        help="Written whole when every door accepts: JSON with the pid and each door's host:port."
        " Removed when the hub stops.",
    ),
]
Upstream = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="URL",
        help="Be a frontend of the hub at tube://host:port or fyrehose://host:port, which numbers all messages."
        " May be given again, for several nodes of one hub. The setting node.upstream.",
    ),
]
Roles = Annotated[
    str | None,
    typer.Option(
        "--roles",
        metavar="ROLE,…",
        help="Be only this: sequence (number messages: for one without --upstream), publisher, matcher, dispatcher,"
        " connector, fyrehose, spp, tube. The setting node.roles.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Be a node of this cluster. The setting cluster.name."),
]
Peers = Annotated[
    str | None,
    typer.Option(
        "--peers",
        metavar="HOST:PORT,…",
        help="The parcel doors of the cluster's nodes, the same list for each of them. The setting cluster.peers.",
    ),
]
Format = Annotated[LogFormat, typer.Option("--log-format", help="How the lines on stderr look.")]
Level = Annotated[LogLevel, typer.Option("--log-level", help="The least that is said on stderr.")]

Record = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="DIR",
        help="Capture what every peer sends and gets there, a file each, for the job decode.",
    ),
]

SERVE_HELP: Final = paragraphs(
    """
    Run the hub: its doors, its log, its http door. No JVM.

    Every door listens on 127.0.0.1 unless told otherwise: listen.DOOR=HOST:PORT moves one, port 0 takes a free one, off
    keeps it shut. A port that is taken is an error that names the setting.

    SIGTERM and Ctrl-C drain: the hub stops accepting, writes out what it holds and exits with 0 within
    limits.drain_seconds. A second one ends it at once; committed messages are safe either way.
    """
)
SERVE_EXAMPLES: Final = examples(
    ("Everything by default, the log in ./headrace-data:", "headrace serve"),
    (
        "Another data directory, every message on disk before it is seen:",
        "headrace serve --data /var/lib/headrace --set log.fsync=always",
    ),
    (
        "On a free port, told to a script:",
        "headrace serve --set listen.fyrehose=127.0.0.1:0 --ready-file ready.json",
    ),
    (
        "A frontend of another hub: the same numbers, doors of its own:",
        "headrace serve --data ./front --upstream tube://hub.example:8081",
    ),
    (
        "One part of content routing alone, a frontend of another hub:",
        "headrace serve --upstream tube://hub.example --roles connector",
    ),
    (
        "One of three nodes that keep one sequence together:",
        "headrace serve --config a.toml --cluster mill --peers 10.0.0.1,10.0.0.2",
    ),
    ("Under a supervisor that collects JSON:", "headrace serve --config hub.toml --log-format json"),
)


def serve(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    upstream: Upstream = None,
    roles: Roles = None,
    cluster: ClusterName = None,
    peers: Peers = None,
    ready_file: ReadyFile = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
    record: Record = None,
) -> None:
    """Run the hub alone."""
    settings = gather(config, data, sets)
    if upstream:
        settings = settings.override({"node.upstream": ",".join(upstream)}, source="--upstream")
    if roles is not None:
        settings = settings.override({"node.roles": roles}, source="--roles")
    if cluster is not None:
        settings = settings.override({"cluster.name": cluster}, source="--cluster")
    if peers is not None:
        settings = settings.override({"cluster.peers": peers}, source="--peers")
    speak(log_format, log_level)
    if cluster is not None and not settings.cluster.peers:
        logger.warning("cluster %s: this node is all of it; --peers a:7878,b:7878 names the others", cluster)
    from headrace.cli.running import run

    run(settings, ready_file, take_free_ports=False, banner=log_format is LogFormat.TEXT, record=record)
