"""``keys list``: the principals of a hub's settings, how each proves itself, and what it may do."""

from __future__ import annotations

from typing import Any, Final

from headrace.cli.terminal.options import Config, Json, Sets, load_settings
from headrace.cli.terminal.output import console, plain_table, print_json, wants_json
from headrace.config import Settings
from headrace.errors import system_reason

EXAMPLES: Final = (
    ("Of the file that HEADRACE_CONFIG names:", "headrace keys list"),
    (
        "Who may administer the hub?",
        "headrace keys list --config hub.toml --json | jq '.[] | select(.allow)'",
    ),
)


def list_keys(config: Config = None, sets: Sets = None, as_json: Json = False) -> None:
    """Show the principals in the settings: how each proves who it is, and what it may do. No secret is read or shown.

    A key file that is missing, or that others may read, is named: a hub would not start with it.
    """
    settings = load_settings(config, None, sets)
    found = principals_of(settings)
    if wants_json(asked=as_json):
        print_json(found)
        return
    if not found:
        print("no principals: `headrace keys new NAME` makes one")
        return
    from rich.markup import escape

    table = plain_table("name", "client id", "proven by", "allow", "deny")
    for each in found:
        cells = (
            each["name"],
            each["client_id"],
            *("\n".join(each[part]) for part in ("proofs", "allow", "deny")),
        )
        table.add_row(*map(escape, cells))
    console().print(table)


def principals_of(settings: Settings) -> list[dict[str, Any]]:
    """Return the facts of every principal, without a secret."""
    found: list[dict[str, Any]] = []
    for name, entry in settings.access.items():
        proofs = []
        if entry.key_file is not None:
            proofs.append(f"key in {entry.key_file}{_problem(settings, name)}")
        elif entry.key:
            proofs.append("key in the settings")
        if entry.token_sha256:
            proofs.append("token")
        if entry.certificate:
            proofs.append(f"certificate {entry.certificate}")
        proofs += [f"address {network}" for network in entry.addresses]
        found.append(
            {
                "name": name,
                "client_id": entry.client_id,
                "proofs": proofs,
                "allow": list(entry.allow),
                "deny": list(entry.deny),
            }
        )
    everything = {"proofs": ["key in the settings"], "allow": ["all **"], "deny": []}
    found += [{"name": client, "client_id": client, **everything} for client in settings.auth.clients]
    return found


def _problem(settings: Settings, name: str) -> str:
    path = settings.access[name].key_file
    if path is None:
        return ""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        return f" ({system_reason(error)})"
    return f" (mode {mode:o}: chmod 600)" if mode & 0o077 else ""
