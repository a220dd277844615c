"""``pipeline``: Spark jobs over the sequence, one module per command."""

from __future__ import annotations

from headrace.cli.operate.pipeline import jobs, run, status
from headrace.cli.terminal.help_text import add_command, make_group

pipeline = make_group(
    """
    Run Spark jobs over a hub's messages, and see how far they are.

    It needs PySpark and a Java: make setup brings both, and so does pip install '.[spark]' in Headrace's repository.
    """,
    ("All that belongs to a hub:", "headrace pipeline run"),
    ("How far is it?", "headrace pipeline status"),
)
add_command(pipeline, "run", *run.EXAMPLES)(run.run)
add_command(pipeline, "status", *status.EXAMPLES)(status.status)
add_command(pipeline, "jobs", *jobs.EXAMPLES)(jobs.jobs)
