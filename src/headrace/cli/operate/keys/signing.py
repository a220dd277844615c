"""``keys signing``: a key that signs checkpoints of a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.operate.keys.secret_files import make_directory, write_new
from headrace.cli.terminal.options import Json
from headrace.cli.terminal.output import print_result

EXAMPLES: Final = (("An auditor's key:", "headrace keys signing auditor"),)


def signing(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the files.")],
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go.")] = Path(
        "headrace-keys"
    ),
    as_json: Json = False,
) -> None:
    """Make an Ed25519 key for headrace log head --sign: NAME.pem, of mode 600, and NAME.pub to give away.

    Keep NAME.pem away from the hub whose history it vouches for.
    """
    from headrace.log.proof.checkpoint import new_key, public_key

    private, public = new_key()
    make_directory(directory)
    key, given = directory / f"{name}.pem", directory / f"{name}.pub"
    write_new(key, private)
    write_new(given, public, 0o644)
    facts = {"key": str(key), "public": str(given), "id": public_key(public, str(given)).hex()}
    print_result(
        facts, f"{key} signs, {given} is to give away; the key's id is {facts['id']}", as_json=as_json
    )
