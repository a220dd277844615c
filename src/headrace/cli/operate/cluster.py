"""``cluster``: the nodes of a cluster, and an operator's decisions about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.terminal.help_text import add_command, make_group
from headrace.cli.terminal.options import (
    ClientId,
    Config,
    Data,
    DoorScheme,
    Json,
    LinkUrl,
    Yes,
    find_credentials,
    hub_access,
    load_settings,
)
from headrace.cli.terminal.output import (
    confirm,
    console,
    open_to_everyone,
    print_json,
    print_result,
    wants_json,
)
from headrace.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table


_REMEDY: Final = "add --yes to do it"

cluster = make_group(
    "Show a cluster, replace a node, or let one continue with the messages it has left.",
    ("Who is primary, and who is behind?", "headrace cluster status"),
    ("Let a node copy the cluster's log again:", "headrace cluster replace --data /var/lib/headrace"),
)


@add_command(
    cluster,
    "status",
    (
        "As the first that answers sees it:",
        "headrace cluster status --url tube://a.example,b.example,c.example",
    ),
    ("For a script:", "headrace cluster status --json | jq -r .primary"),
)
def status(url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show a cluster's nodes as one of them sees them: mode, role, how far each has come, when it was last heard."""
    from rich.markup import escape

    hub = hub_access(url, DoorScheme.TUBE, client_id)
    found = hub.ask("headrace cluster", lambda link: link.status())
    facts = found.get("cluster")
    if facts is None:
        raise UsageError(f"the hub at {hub.url} is in no cluster (mode {found.get('mode')})")
    if wants_json(asked=as_json):
        print_json(facts)
        return
    out = console()
    out.print(_table(facts))
    if exposed := found.get("insecure"):
        out.print(f"[red]insecure: {open_to_everyone(exposed)}[/red]")
    if facts.get("problem"):
        out.print(f"[yellow]{escape(str(facts['problem']))}[/yellow]")


@add_command(
    cluster,
    "replace",
    ("Asking first:", "headrace cluster replace --data /var/lib/headrace"),
    ("In a script:", "headrace cluster replace --data /var/lib/headrace --yes"),
)
def replace(config: Config = None, data: Data = None, yes: Yes = False, as_json: Json = False) -> None:
    """Let a stopped node start over: rename its log, so that the node takes the cluster's log at its next start.

    Use it for a node that gave up because its log has another history, or whose disk is in doubt. A new machine does
    not need it: give it the name and the address of the lost node, and an empty data directory. It asks first.
    """
    directory = load_settings(config, data).node.data / "log"
    confirm(f"Rename the log in {directory}, and take the cluster's?", yes=yes, remedy=_REMEDY)
    aside = _rename_log(directory)
    print_result(
        {"aside": str(aside)},
        f"the log is in {aside}; start the node, and it takes the cluster's",
        as_json=as_json,
    )


@add_command(
    cluster,
    "vouch",
    ("Asking first:", "headrace cluster vouch --data /var/lib/headrace"),
)
def vouch(
    config: Config = None,
    data: Data = None,
    yes: Yes = False,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Let the running node of a data directory continue with what its disk still has, even if messages are lost.

    Use it only when a majority of the cluster lost power at once without log.fsync=always, or lost their disks. The
    nodes then wait, because none of them can tell what is missing. Vouch for one node after the other, beginning with
    those that have the most messages, until a majority votes; a node that lost nothing counts. Messages that none of
    them has are lost. It asks first.
    """
    from headrace.cli.hubs.running_hub import find_running_hub

    settings = load_settings(config, data)
    directory = settings.node.data / "log"
    hub = find_running_hub(directory, find_credentials(client_id, settings))
    if hub is None:
        raise UsageError(f"no hub runs on {directory}: start the node first")
    confirm("Continue with what this node has, and lose what it lacks?", yes=yes, remedy=_REMEDY)
    hub.vouch()
    print_result({"vouched": True}, "the node continues with what it has", as_json=as_json)


def _rename_log(directory: Path) -> Path:
    """Rename a log that no process has open; return its new path."""
    from headrace.cli.hubs.running_hub import find_running_hub
    from headrace.log.files import translating
    from headrace.log.snapshots.start_after import is_log

    hub = find_running_hub(directory)
    if hub is not None:
        raise UsageError(f"{hub} has {directory} open: stop it first")
    if not is_log(directory):
        raise UsageError(f"{directory} holds no log; name the node's data directory with --data")
    number = 1
    while (aside := directory.with_name(f"{directory.name}.replaced-{number}")).exists():
        number += 1
    with translating(directory):
        directory.rename(aside)
    return aside


def _table(facts: dict[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    primary = facts.get("primary") or "none"
    table = Table(
        title=f"{facts.get('name')}: view {facts.get('view')}, primary {primary}", title_justify="left"
    )
    for name in ("node", "address", "mode", "role"):
        table.add_column(name)
    for name in ("head", "heard"):
        table.add_column(name, justify="right")
    for node in facts["nodes"]:
        age = "never" if node["age"] is None else f"{node['age']:.1f} s ago"
        words = (node["name"], node["host"], node["mode"], node["role"], node["head"], age)
        table.add_row(*("" if word is None else escape(str(word)) for word in words))
    return table
