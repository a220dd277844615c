"""``serve`` and ``up``: run a hub until it is told to stop."""

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
Format = Annotated[LogFormat, typer.Option("--log-format", help="How the lines on stderr look.")]
Level = Annotated[LogLevel, typer.Option("--log-level", help="The least that is said on stderr.")]

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
    ("Under a supervisor that collects JSON:", "headrace serve --config hub.toml --log-format json"),
)

UP_HELP: Final = paragraphs(
    """
    Run everything on this machine: the hub, its http door and the Spark pipeline. (The pipeline is not part of this
    version yet; the hub runs without it.)

    Made for trying things out, it never fails because a port is taken: that door takes a free port, and it says which.
    """
)
UP_EXAMPLES: Final = examples(
    ("Up, with the log in ./headrace-data:", "headrace up"),
    ("A second one beside the first:", "headrace up --data ./other"),
)


def serve(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    ready_file: ReadyFile = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run the hub alone."""
    settings = gather(config, data, sets)
    speak(log_format, log_level)
    from headrace.cli.running import run

    run(settings, ready_file, take_free_ports=False, banner=log_format is LogFormat.TEXT)


def up(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    ready_file: ReadyFile = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run the hub and all that belongs to it."""
    settings = gather(config, data, sets)
    speak(log_format, log_level)
    logger.warning("the Spark pipeline is not part of this version; the hub runs without it")
    from headrace.cli.running import run

    run(settings, ready_file, take_free_ports=True, banner=log_format is LogFormat.TEXT)
