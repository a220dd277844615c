"""``cluster``: who keeps the sequence together, and what an operator may decide."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from headrace.cli.exits import FAILED
from headrace.cli.options import ClientId, Config, Data, Door, Json, LinkUrl, access, gather, identified
from headrace.cli.output import print_json, wants_json
from headrace.cli.prose import examples, paragraphs
from headrace.errors import UsageError

HELP: Final = paragraphs(
    """
    Look at a cluster, replace a node, or let one go on with what it has left.
    """
)
EXAMPLES: Final = examples(
    ("Who is primary, and who is behind?", "headrace cluster status"),
    ("Let a node take the cluster's log anew:", "headrace cluster replace --data /var/lib/headrace"),
)

STATUS_HELP: Final = paragraphs(
    """
    Show a cluster's nodes as one of them sees them: mode, role, how far each has come, and when it was last heard.
    """
)
STATUS_EXAMPLES: Final = examples(
    (
        "As the first that answers sees it:",
        "headrace cluster status --url tube://a.example,b.example,c.example",
    ),
    ("For a script:", "headrace cluster status --json | jq -r .primary"),
)

REPLACE_HELP: Final = paragraphs(
    """
    Have a stopped node begin anew: its log is set aside, and when it is started it takes the cluster's.

    For a node that gave up because its log is of another history, or whose disk is in doubt. A node on a new machine
    needs no such thing: give it the name and the address of the one that was lost, and an empty data directory. It
    asks first.
    """
)
REPLACE_EXAMPLES: Final = examples(
    ("Asking first:", "headrace cluster replace --data /var/lib/headrace"),
    ("In a script:", "headrace cluster replace --data /var/lib/headrace --yes"),
)

VOUCH_HELP: Final = paragraphs(
    """
    Let the running node of a data directory go on with what its disk has left, whatever it has lost.

    Only for a cluster of which a majority lost power at once without log.fsync=always, or their disks: its nodes wait,
    because nobody can tell what is missing. Do it one by one, beginning with those that have most, until a majority
    votes; a node that lost nothing counts. Messages that none of those has are lost. It asks first.
    """
)
VOUCH_EXAMPLES: Final = examples(("Asking first:", "headrace cluster vouch --data /var/lib/headrace"))

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

cluster = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")


@cluster.command("status", help=STATUS_HELP, epilog=STATUS_EXAMPLES)
def show(url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show a cluster's nodes."""
    from headrace.cli import cluster_look

    cluster_look.show(access(url, Door.TUBE, client_id), as_json=as_json)


@cluster.command("replace", help=REPLACE_HELP, epilog=REPLACE_EXAMPLES)
def replace(config: Config = None, data: Data = None, yes: Yes = False, as_json: Json = False) -> None:
    """Have a stopped node begin anew."""
    from headrace.cli import cluster_look

    directory = gather(config, data, None).node.data / "log"
    _confirm(f"Set the log in {directory} aside, and take the cluster's?", yes=yes)
    aside = cluster_look.set_aside(directory)
    if wants_json(asked=as_json):
        print_json({"aside": str(aside)})
    else:
        print(f"the log is in {aside}; start the node, and it takes the cluster's")


@cluster.command("vouch", help=VOUCH_HELP, epilog=VOUCH_EXAMPLES)
def vouch(
    config: Config = None,
    data: Data = None,
    yes: Yes = False,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Let a node go on with what it has."""
    from headrace.cli import live

    settings = gather(config, data)
    directory = settings.node.data / "log"
    hub = live.find(directory, identified(client_id, settings))
    if hub is None:
        raise UsageError(f"no hub runs on {directory}: start the node first")
    _confirm("Go on with what this node has, and lose what it lacks?", yes=yes)
    hub.vouch()
    if wants_json(asked=as_json):
        print_json({"vouched": True})
    else:
        print("the node goes on with what it has")


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("there is nobody to ask: add --yes to do it")
    if not typer.confirm(question, err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(FAILED)
