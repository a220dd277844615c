"""``context``: save how a hub is reached, once, and use it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.hubs.contexts import (
    file_of_contexts,
    load_contexts,
    make_context,
    save_contexts,
)
from headrace.cli.terminal.help_text import add_command, make_group
from headrace.cli.terminal.options import Json
from headrace.cli.terminal.output import console, plain_table, print_json, print_result, wants_json
from headrace.errors import UsageError

_MOST_NAME: Final = 64

context = make_group(
    "Save a hub's URL, your client id there and the certificates to trust, so that you type them once.",
    (
        "Save one, and use it from now on:",
        "headrace context add mill tube+tls://hub.example --ca ca.pem",
    ),
    ("Use another:", "headrace context use home"),
    ("Which are there?", "headrace context list"),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.")]


@add_command(
    context,
    "add",
    ("With TLS:", "headrace context add mill tube+tls://hub.example --ca ca.pem"),
    short="Save a context.",
)
def add(
    name: Name,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The hub's URL; commands that need another door find it on the same host."
        ),
    ],
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="ID", help="The client that you are there.")
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option("--key-file", metavar="FILE", help="The file with the client's key, of mode 600."),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="The authority that signed the hub's certificate, if the system does not know it.",
        ),
    ] = None,
    cert: Annotated[
        str | None,
        typer.Option("--cert", metavar="FILE", help="Your own certificate, where the hub asks for one."),
    ] = None,
    cert_key: Annotated[
        str | None, typer.Option("--cert-key", metavar="FILE", help="The key of your certificate.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Save a context, and use it from now on; one of the same name is replaced.

    Files stay where they are: the context has only their names, in a file that nobody else may read.
    """
    if not name.isprintable() or not 1 <= len(name) <= _MOST_NAME:
        raise UsageError(f"a context's name is printable text of 1 to {_MOST_NAME} characters")
    made = make_context(url, client_id=client_id, key_file=key_file, ca=ca, cert=cert, cert_key=cert_key)
    contexts = load_contexts()
    contexts.contexts[name] = made
    contexts.current = name
    save_contexts(contexts)
    print_result(
        {"name": name, "file": str(file_of_contexts())}, f"{name} is saved, and in use", as_json=as_json
    )


@add_command(context, "use", ("", "headrace context use mill"), short="Use a context from now on.")
def use(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The context's name; without one, none is used.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Use a context from now on, in every command that names no hub itself."""
    contexts = load_contexts()
    if name is not None:
        contexts.find(name)
    contexts.current = name or ""
    save_contexts(contexts)
    print_result({"current": name}, f"{name} is in use" if name else "no context is in use", as_json=as_json)


@add_command(context, "list", ("", "headrace context list"), short="List the saved contexts.")
def list_(as_json: Json = False) -> None:
    """List the saved contexts; the one in use has a star."""
    contexts = load_contexts()
    rows = [
        {
            "name": name,
            "current": name == contexts.current,
            "url": each.url,
            "client_id": each.client_id or None,
            "ca": each.ca or None,
        }
        for name, each in sorted(contexts.contexts.items())
    ]
    if wants_json(asked=as_json):
        print_json(rows)
        return
    table = plain_table("", "name", "url", "client", "ca")
    for row in rows:
        table.add_row(
            "*" if row["current"] else "",
            str(row["name"]),
            str(row["url"]),
            str(row["client_id"] or ""),
            str(row["ca"] or ""),
        )
    console().print(table)


@add_command(context, "remove", ("", "headrace context remove mill"), short="Forget a context.")
def remove(name: Name, as_json: Json = False) -> None:
    """Forget a context; the files that it names stay."""
    contexts = load_contexts()
    contexts.find(name)
    del contexts.contexts[name]
    if contexts.current == name:
        contexts.current = ""
    save_contexts(contexts)
    print_result({"removed": name}, f"{name} is forgotten", as_json=as_json)
