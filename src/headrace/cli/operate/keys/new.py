"""``keys new``: a principal's client id, key and token, and the lines that tell a hub of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.operate.keys.principal_tables import append_table, principal_table
from headrace.cli.operate.keys.secret_files import make_directory, write_new
from headrace.cli.terminal.options import Config
from headrace.cli.terminal.output import print_json
from headrace.errors import UsageError

EXAMPLES: Final = (
    ("A gateway that publishes:", "headrace keys new gateway-7 --allow 'publish fleet/7/**'"),
    ("An operator, into the hub's file:", "headrace keys new ada --allow all --append --config hub.toml"),
)

KEY_BYTES: Final = 32

Directory = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="Where the files with the secrets go."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="ACTION PATTERN",
        help="What it may do: publish, read, service, consume, stage, admin or all, and a topic pattern. Repeatable.",
    ),
]
Deny = Annotated[
    list[str] | None,
    typer.Option("--deny", metavar="ACTION PATTERN", help="What it may not do, even if --allow says so."),
]
Append = Annotated[
    bool, typer.Option("--append", help="Add the lines to the file of --config instead of printing them.")
]


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The principal's name: letters, digits, - and _.")
    ],
    directory: Directory = Path("headrace-keys"),
    allow: Allow = None,
    deny: Deny = None,
    append: Append = False,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a client id, a key for it and a bearer token, and print the lines that make them known to a hub.

    The key is for the doors sdk, spp and tube, and for logging in to the dashboard; the token is for the API. Each goes
    into a file of mode 600, and is not printed. The hub itself gets the key's file and a hash of the token.

    A running hub applies the new lines when its file changes, or with headrace reload.
    """
    import secrets
    from hashlib import sha256

    from headrace.config import load
    from headrace.config.value_types import principal_name

    try:
        principal_name(name)
    except ValueError:
        raise UsageError(
            f"{name!r} is not a name: expected letters, digits, - and _, and no client id"
        ) from None
    if append and config is None:
        raise UsageError("--append needs the file: name it with --config")
    rules = {f"access.{name}.{word}": given for word, given in (("allow", allow), ("deny", deny)) if given}
    # A rule that no hub would take is an error before anything is made.
    checked = load(environ={}).override(rules, source="--allow and --deny").access.get(name)
    client, key, token = (
        secrets.token_hex(12),
        secrets.token_urlsafe(KEY_BYTES),
        secrets.token_urlsafe(KEY_BYTES),
    )
    make_directory(directory)
    key_file, token_file = (directory / f"{name}.{kind}" for kind in ("key", "token"))
    members: dict[str, str | list[str]] = {
        "client_id": client,
        "key_file": str(key_file.absolute()),
        "token_sha256": sha256(token.encode()).hexdigest(),
        "allow": [] if checked is None else list(checked.allow),
    }
    if checked is not None and checked.deny:
        members["deny"] = list(checked.deny)
    table = principal_table(name, members)
    made: list[Path] = []
    try:
        for path, secret in ((key_file, key), (token_file, token)):
            write_new(path, f"{secret}\n".encode())
            made.append(path)
        if append and config is not None:
            append_table(config, name, table)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    if as_json:
        print_json({"name": name, **members, "token_file": str(token_file.absolute())})
    elif not append:
        print(table)
    print(_advice(client, key_file, token_file, config if append else None, may=allow), file=sys.stderr)


def _advice(client: str, key_file: Path, token_file: Path, config: Path | None, may: list[str] | None) -> str:
    where = "the lines above, in its configuration file" if config is None else f"done, in {config}"
    lines = [
        f"hub:     {where}",
        f'client:  HEADRACE_CLIENT_ID={client} HEADRACE_KEY="$(cat {key_file})" headrace …',
        f'API:     curl -H "Authorization: Bearer $(cat {token_file})" http://…/api/status',
    ]
    if not may:
        lines.append('rights:  none yet: fill in allow, such as allow = ["read fleet/**"]')
    return "\n".join(lines)
