"""``up``: run the hub and its pipeline, and keep both running."""

from __future__ import annotations

from typing import Final

from headrace.cli.options import Config, Data, Sets, gather
from headrace.cli.pipeline import Params, parse_params
from headrace.cli.prose import examples, paragraphs
from headrace.cli.serve import Format, Level, ReadyFile
from headrace.cli.stderr import LogFormat, LogLevel, speak

HELP: Final = paragraphs(
    """
    Run everything on this machine: the hub, its http door, and the Spark pipeline (archive, verify, measure), each in a
    process of its own. One that dies is started again, and so is a job that fails, by itself.

    Made for trying things out, it never fails because a port is taken: that door takes a free port, and it says which.
    Without PySpark or a Java the hub runs alone, and it says so. SIGTERM and Ctrl-C stop both in good order.
    """
)
EXAMPLES: Final = examples(
    ("Up, with the log in ./headrace-data:", "headrace up"),
    ("A second one beside the first:", "headrace up --data ./other"),
    ("Another choice of jobs:", "headrace up --set pipeline.jobs=archive"),
    ("Archive elsewhere, every ten seconds:", "headrace up -p archive.path=/srv/a -p archive.interval=10"),
)


def up(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    params: Params = None,
    ready_file: ReadyFile = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run the hub and all that belongs to it."""
    told = {f"pipeline.params.{name}": value for name, value in parse_params(params or ()).items()}
    settings = gather(config, data, sets).override(told, source="--param")
    speak(log_format, log_level)
    from headrace.cli.supervising import supervise

    supervise(settings, ready_file, banner=log_format is LogFormat.TEXT)
