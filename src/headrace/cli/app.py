"""The commands."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace import __version__
from headrace.cli.hubs.contexts import use_for_tls
from headrace.cli.operate import audit, backup, decode, reload
from headrace.cli.operate.cluster import cluster
from headrace.cli.operate.keys import keys
from headrace.cli.operate.log import log
from headrace.cli.operate.pipeline import pipeline
from headrace.cli.operate.verify import command as verify
from headrace.cli.run import bench, conform, doctor, serve, top, up
from headrace.cli.run.demo import command as demo
from headrace.cli.terminal.exits import RootGroup
from headrace.cli.terminal.help_text import add_command
from headrace.cli.use import match, pub, replay, sql, sub, tail
from headrace.cli.use.consumers import consumers
from headrace.cli.use.context import context
from headrace.cli.use.services import services

HELP: Final = "A message hub: many protocols in, one verified sequence, Spark pipelines out."
EXAMPLES: Final = """\
[bold]Examples[/bold]
  headrace up                    [dim]# start a hub[/dim]
  headrace pub 'hello, world'    [dim]# send it a message, from another terminal[/dim]
  headrace tail --from earliest  [dim]# see its messages[/dim]
[dim]Exit codes: 0 done, 1 failed, 2 usage error, 3 a job failed, 130 interrupted[/dim]"""

app = typer.Typer(
    cls=RootGroup,
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_RUN: Final = "Run a hub and watch it"
_USE: Final = "Use a hub"
_OPERATE: Final = "Operate a hub: log, cluster, keys, Spark"

add_command(app, "up", *up.EXAMPLES, panel=_RUN, short="Run the hub, its dashboard and the Spark pipeline.")(
    up.up
)
add_command(app, "serve", *serve.EXAMPLES, panel=_RUN, short="Run the hub alone. No JVM.")(serve.serve)
add_command(app, "demo", *demo.EXAMPLES, panel=_RUN, short="See the whole system at work for a minute.")(
    demo.demo
)
add_command(app, "top", *top.EXAMPLES, panel=_RUN, short="Show a hub's activity, second by second.")(top.top)
add_command(app, "doctor", *doctor.EXAMPLES, panel=_RUN, short="Check this machine, and the hub on it.")(
    doctor.doctor
)
add_command(
    app, "conform", *conform.EXAMPLES, panel=_RUN, short="Test any server against the protocol documents."
)(conform.conform)
add_command(app, "bench", *bench.EXAMPLES, panel=_RUN, short="Measure its speed on this machine.")(
    bench.bench
)
add_command(app, "pub", *pub.EXAMPLES, panel=_USE, short="Publish messages.")(pub.pub)
add_command(
    app, "sub", *sub.EXAMPLES, panel=_USE, short="Print messages as they are delivered, or by content."
)(sub.sub)
add_command(
    app, "tail", *tail.EXAMPLES, panel=_USE, short="Print messages from any position on, by topic or time."
)(tail.tail)
add_command(app, "sql", *sql.EXAMPLES, panel=_USE, short="Query a log with SQL.")(sql.sql)
add_command(
    app, "match", *match.EXAMPLES, panel=_USE, short="Print what a content subscription would have delivered."
)(match.match)
add_command(app, "replay", *replay.EXAMPLES, panel=_USE, short="Publish a range of messages to another hub.")(
    replay.replay
)
app.add_typer(
    services, name="services", rich_help_panel=_USE, short_help="Named live objects: list, watch, change."
)
app.add_typer(
    consumers, name="consumers", rich_help_panel=_USE, short_help="Durable consumers: show, move, remove."
)
app.add_typer(
    context,
    name="context",
    rich_help_panel=_USE,
    short_help="Saved connections to hubs: add, use, list, remove.",
)
app.add_typer(
    log, name="log", rich_help_panel=_OPERATE, short_help="A log's files: show, check, export, seal, repair."
)
add_command(
    app,
    "verify",
    *verify.EXAMPLES,
    panel=_OPERATE,
    short="Prove that copies are equal, or extend a checkpoint.",
)(verify.verify)
app.add_typer(cluster, name="cluster", rich_help_panel=_OPERATE, short_help="Show a cluster, replace a node.")
app.add_typer(
    pipeline, name="pipeline", rich_help_panel=_OPERATE, short_help="Spark jobs over a hub's messages."
)
app.add_typer(
    keys,
    name="keys",
    rich_help_panel=_OPERATE,
    short_help="Client ids, keys, tokens, certificates: make, revoke.",
)
add_command(
    app,
    "audit",
    *audit.EXAMPLES,
    panel=_OPERATE,
    short="Show who was admitted, what was refused, what was changed.",
)(audit.audit)
add_command(
    app, "backup", *backup.EXAMPLES, panel=_OPERATE, short="Save a log and its hub's state in an archive."
)(backup.backup)
add_command(app, "restore", *backup.RESTORE_EXAMPLES, panel=_OPERATE, short="Restore a log from a backup.")(
    backup.restore
)
add_command(app, "reload", *reload.EXAMPLES, panel=_OPERATE, short="Make a hub reload its principals.")(
    reload.reload
)
add_command(app, "decode", *decode.EXAMPLES, panel=_OPERATE, short="Print the frames in captures.")(
    decode.decode
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # noqa: ARG001 -- its callback acts on it
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="Use this saved context; by default HEADRACE_CONTEXT."
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="Trust this authority for TLS; by default HEADRACE_CA, or the system's.",
        ),
    ] = None,
    cert: Annotated[
        str | None,
        typer.Option("--cert", metavar="FILE", help="Show hubs this certificate; by default HEADRACE_CERT."),
    ] = None,
    cert_key: Annotated[
        str | None,
        typer.Option("--cert-key", metavar="FILE", help="Its key; by default HEADRACE_CERT_KEY."),
    ] = None,
) -> None:
    """Take the options before a command."""
    use_for_tls(context, ca=ca, cert=cert, cert_key=cert_key)
