"""The commands."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace import __version__
from headrace.cli import bench, conform, decode, doctor, pub, replay, serve, sub, tail, top, up
from headrace.cli.cluster import cluster
from headrace.cli.consumers import consumers
from headrace.cli.demo import command as demo
from headrace.cli.log import log
from headrace.cli.pipeline import pipeline
from headrace.cli.services import services
from headrace.cli.terminal.exits import RootGroup
from headrace.cli.terminal.help_text import add_command, examples, paragraphs

HELP: Final = paragraphs(
    """
    A message hub: five wire protocols in, one verified sequence in the middle, Spark pipelines out.

    Exit codes: 0 done; 1 failed, or found a problem; 2 usage error; 3 a job of the pipeline has failed (pipeline
    status); 130 interrupted; 141 nobody reads the output any more; 143 ended by SIGTERM. HEADRACE_DEBUG=1 adds
    tracebacks to errors.
    """
)
EXAMPLES: Final = examples(
    ("See it all in a minute:", "headrace demo"),
    ("Start a hub:", "headrace up"),
    ("Watch its messages, in another terminal:", "headrace tail"),
    ("Send one, in a third:", "headrace pub 'hello, world'"),
    ("See what is kept:", "headrace log info"),
)

app = typer.Typer(
    cls=RootGroup,
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_command(app, "up", *up.EXAMPLES)(up.up)
add_command(app, "serve", *serve.EXAMPLES)(serve.serve)
add_command(app, "pub", *pub.EXAMPLES)(pub.pub)
add_command(app, "sub", *sub.EXAMPLES)(sub.sub)
add_command(app, "tail", *tail.EXAMPLES)(tail.tail)
add_command(app, "replay", *replay.EXAMPLES)(replay.replay)
add_command(app, "decode", *decode.EXAMPLES)(decode.decode)
add_command(app, "top", *top.EXAMPLES)(top.top)
add_command(app, "demo", *demo.EXAMPLES)(demo.demo)
add_command(app, "bench", *bench.EXAMPLES)(bench.bench)
add_command(app, "conform", *conform.EXAMPLES)(conform.conform)
add_command(app, "doctor", *doctor.EXAMPLES)(doctor.doctor)
app.add_typer(cluster, name="cluster")
app.add_typer(consumers, name="consumers")
app.add_typer(services, name="services")
app.add_typer(log, name="log")
app.add_typer(pipeline, name="pipeline")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Take the options before a command."""
