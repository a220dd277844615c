"""``backup`` and ``restore``: save a log's archive with a snapshot of the state, and make a new log from both."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from headrace.cli.terminal.options import (
    ClientId,
    Config,
    Data,
    DoorScheme,
    Json,
    LinkUrl,
    existing_log,
    hub_access,
    load_settings,
)
from headrace.cli.terminal.output import counted, print_result
from headrace.errors import UsageError

EXAMPLES: Final = (
    ("The hub here, to a directory:", "headrace backup /srv/backup"),
    ("To S3, with the keys of the environment:", "headrace backup s3://mill/backup"),
    ("A hub that does not run:", "headrace backup -d ./data /srv/backup"),
)
RESTORE_EXAMPLES: Final = (
    ("Into an empty data directory:", "headrace restore /srv/backup -d ./data"),
    ("Then:", "headrace serve -d ./data -s log.archive=/srv/backup"),
)

Place = Annotated[str, typer.Argument(metavar="PLACE", help="The archive: a path, or a URI such as s3://…")]


class TableFormat(StrEnum):
    """The formats of an archive."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


def backup(
    place: Place,
    url: LinkUrl = None,
    config: Config = None,
    data: Data = None,
    form: Annotated[
        TableFormat, typer.Option("--format", help="The format of a new archive.")
    ] = TableFormat.DELTA,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Add the missing messages to a log's archive, and save a snapshot of the hub's state there.

    The archive may be the one that the job archive writes, or one of its own. A running hub is asked over the link,
    which needs the right admin. With --data or --config the files of a hub that does not run are read.
    """
    from headrace.client.backup import back_up, back_up_files

    if data is not None or config is not None:
        if url is not None:
            raise UsageError("--url and --data both say what to back up: leave out one")
        made = back_up_files(existing_log(load_settings(config, data)), place, form.value)
    else:
        access = hub_access(url, DoorScheme.TUBE, client_id)
        made = access.ask("headrace backup", lambda link: back_up(link, place, form.value))
    print_result(
        made._asdict(),
        f"log {made.log} up to message {made.snapshot}: {counted(made.added, 'message')} added to {place}",
        as_json=as_json,
    )


def restore(place: Place, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Restore a log from a backup into an empty data directory.

    The hub continues the same log, numbers and state, and serves older messages from the archive: start it with
    log.archive=PLACE. The original must not run any more. Its frontends and cluster begin with empty directories.
    """
    from headrace.archive.backups import restore as restore_log

    directory = load_settings(config, data).node.data / "log"
    made = restore_log(place, directory)
    print_result(
        made._asdict(),
        f"log {made.log} continues after message {made.head} in {directory}: start its hub with log.archive={place}",
        as_json=as_json,
    )
