"""``keys tls``: a local authority, and certificates of a hub and its clients, for a first try or a closed network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.operate.keys.principal_tables import principal_table
from headrace.cli.operate.keys.secret_files import make_directory
from headrace.cli.terminal.output import print_json

EXAMPLES: Final = (
    ("For this machine:", "headrace keys tls --dir tls"),
    ("A hub that others reach, and a client:", "headrace keys tls --dir tls --host hub.example --client ada"),
)

DAYS: Final = 397
"""The longest validity, in days, that browsers accept."""


def tls(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="A name or address that clients know the hub by. Repeatable."
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="NAME", help="Make a client's certificate with this name. Repeatable."
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, help="How long the certificates are valid.")
    ] = DAYS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make an authority (ca.pem, ca.key), a certificate of the hub (hub.pem, hub.key), and one of each client.

    The hub's certificate is for localhost, this machine's name, and each --host. Run it again to add clients: the
    authority and the hub's certificate stay, unless --host is given, which replaces the hub's. Keys are files of mode
    600. Anybody with ca.key can make certificates that the hub accepts: keep it elsewhere once all are made.
    """
    from headrace.cli.operate.keys.local_authority import LocalAuthority

    make_directory(directory)
    authority = LocalAuthority(directory, days)
    hub = authority.hub(hosts or [])
    made = {name: authority.client(name) for name in clients or []}
    settings = {"cert": hub.certificate, "key": hub.key, "ca": authority.certificate}
    if as_json:
        told = {name: {"cert": str(each.certificate), "key": str(each.key)} for name, each in made.items()}
        print_json({**{name: str(path) for name, path in settings.items()}, "clients": told})
        return
    print("[tls]")
    for name, path in settings.items():
        print(f'{name} = "{path}"')
    for name in made:
        # A principal's name has no dots, which a certificate's may have.
        print("\n" + principal_table(name.replace(".", "-"), {"certificate": name, "allow": []}))
    own = "" if not made else " --cert {} --cert-key {}".format(*next(iter(made.values())))
    print(
        f"client:  headrace context add NAME tube+tls://HOST --ca {authority.certificate}{own}",
        file=sys.stderr,
    )
