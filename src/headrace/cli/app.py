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

# In the order of the help; a tuple of examples makes a command, none a group of commands.
for panel, name, what, examples, short in (
    (_RUN, "up", up.up, up.EXAMPLES, "Run the hub, its dashboard and the Spark pipeline."),
    (_RUN, "serve", serve.serve, serve.EXAMPLES, "Run the hub alone. No JVM."),
    (_RUN, "demo", demo.demo, demo.EXAMPLES, "See the whole system at work for a minute."),
    (_RUN, "top", top.top, top.EXAMPLES, "Show a hub's activity, second by second."),
    (_RUN, "doctor", doctor.doctor, doctor.EXAMPLES, "Check this machine, and the hub on it."),
    (_RUN, "conform", conform.conform, conform.EXAMPLES, "Test any server against the protocol documents."),
    (_RUN, "bench", bench.bench, bench.EXAMPLES, "Measure its speed on this machine."),
    (_USE, "pub", pub.pub, pub.EXAMPLES, "Publish messages."),
    (_USE, "sub", sub.sub, sub.EXAMPLES, "Print messages as they are delivered, or by content."),
    (_USE, "tail", tail.tail, tail.EXAMPLES, "Print messages from any position on, by topic or time."),
    (_USE, "sql", sql.sql, sql.EXAMPLES, "Query a log with SQL."),
    (_USE, "match", match.match, match.EXAMPLES, "Print what a content subscription would have delivered."),
    (_USE, "replay", replay.replay, replay.EXAMPLES, "Publish a range of messages to another hub."),
    (
        _OPERATE,
        "verify",
        verify.verify,
        verify.EXAMPLES,
        "Prove that copies are equal, or extend a checkpoint.",
    ),
    (
        _OPERATE,
        "audit",
        audit.audit,
        audit.EXAMPLES,
        "Show who was admitted, what was refused, what was changed.",
    ),
    (_OPERATE, "backup", backup.backup, backup.EXAMPLES, "Save a log and its hub's state in an archive."),
    (_OPERATE, "restore", backup.restore, backup.RESTORE_EXAMPLES, "Restore a log from a backup."),
    (_OPERATE, "reload", reload.reload, reload.EXAMPLES, "Make a hub reload its principals."),
    (_OPERATE, "decode", decode.decode, decode.EXAMPLES, "Print the frames in captures."),
):
    add_command(app, name, *examples, panel=panel, short=short)(what)
for panel, name, group, short in (
    (_USE, "services", services, "Named live objects: list, watch, change."),
    (_USE, "consumers", consumers, "Durable consumers: show, move, remove."),
    (_USE, "context", context, "Saved connections to hubs: add, use, list, remove."),
    (_OPERATE, "log", log, "A log's files: show, check, export, seal, repair."),
    (_OPERATE, "cluster", cluster, "Show a cluster, replace a node."),
    (_OPERATE, "pipeline", pipeline, "Spark jobs over a hub's messages."),
    (_OPERATE, "keys", keys, "Client ids, keys, tokens, certificates: make, revoke."),
):
    app.add_typer(group, name=name, rich_help_panel=panel, short_help=short)


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
