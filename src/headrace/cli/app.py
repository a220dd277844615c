"""The commands."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace import __version__
from headrace.cli import bench, decode, doctor, pub, replay, serve, sub, tail, top, up
from headrace.cli.cluster import cluster
from headrace.cli.consumers import consumers
from headrace.cli.demo import command as demo
from headrace.cli.log import log
from headrace.cli.pipeline import pipeline
from headrace.cli.services import services
from headrace.cli.terminal.exits import RootGroup
from headrace.cli.terminal.help_text import examples, paragraphs

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
app.command("up", help=up.HELP, epilog=up.EXAMPLES)(up.up)
app.command("serve", help=serve.HELP, epilog=serve.EXAMPLES)(serve.serve)
app.command("pub", help=pub.HELP, epilog=pub.EXAMPLES)(pub.pub)
app.command("sub", help=sub.HELP, epilog=sub.EXAMPLES)(sub.sub)
app.command("tail", help=tail.HELP, epilog=tail.EXAMPLES)(tail.tail)
app.command("replay", help=replay.HELP, epilog=replay.EXAMPLES)(replay.replay)
app.command("decode", help=decode.HELP, epilog=decode.EXAMPLES)(decode.decode)
app.command("top", help=top.HELP, epilog=top.EXAMPLES)(top.top)
app.command("demo", help=demo.HELP, epilog=demo.EXAMPLES)(demo.demo)
app.command("bench", help=bench.HELP, epilog=bench.EXAMPLES)(bench.bench)
app.command("doctor", help=doctor.HELP, epilog=doctor.EXAMPLES)(doctor.doctor)
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
