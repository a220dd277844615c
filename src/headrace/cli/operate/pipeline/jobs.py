"""``pipeline jobs``: the jobs and their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.cli.terminal.options import Json
from headrace.cli.terminal.output import console, print_json, wants_json

if TYPE_CHECKING:
    from headrace.spark.jobs.job import Parameter

EXAMPLES: Final = (
    ("For people:", "headrace pipeline jobs"),
    ("For a script:", "headrace pipeline jobs --json | jq .archive"),
)


def jobs(as_json: Json = False) -> None:
    """List the jobs, and each job's parameters; set them with --param."""
    from headrace.spark.jobs.job import JOBS, find

    found = {name: find(name) for name in JOBS}
    if wants_json(asked=as_json):
        print_json(
            {
                name: {
                    "about": job.ABOUT,
                    "parameters": {
                        each: {"meaning": known.doc, "default": default_of(name, each, known) or None}
                        for each, known in job.PARAMETERS.items()
                    },
                }
                for name, job in found.items()
            }
        )
        return
    out = console()
    for name, job in found.items():
        out.print(f"[bold]{name}[/bold]: {job.ABOUT}")
        for each, known in job.PARAMETERS.items():
            default = f" ({usual})" if (usual := default_of(name, each, known)) else ""
            out.print(f"  {each:<18} {known.doc}{default}", soft_wrap=True, markup=False)


def default_of(job: str, name: str, known: Parameter) -> str:
    """Return the value of a parameter that is not set.

    >>> from headrace.spark.jobs.job import Parameter
    >>> default_of("verify", "path", Parameter("where it writes")), default_of("match", "most", Parameter("", "9"))
    ('pipeline/verify in the data directory', '9')
    """
    # The runner puts a job's folder into the data directory.
    return f"pipeline/{known.default or job} in the data directory" if name == "path" else known.default
