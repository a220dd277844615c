"""``pipeline``: Spark jobs over the sequence, one module per command."""

from __future__ import annotations

from typing import Final

import typer

from headrace.cli.pipeline import jobs, run, status
from headrace.cli.terminal.help_text import examples, paragraphs

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

pipeline = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")
pipeline.command("run", help=run.HELP, epilog=run.EXAMPLES)(run.run)
pipeline.command("status", help=status.HELP, epilog=status.EXAMPLES)(status.status)
pipeline.command("jobs", help=jobs.HELP, epilog=jobs.EXAMPLES)(jobs.jobs)
