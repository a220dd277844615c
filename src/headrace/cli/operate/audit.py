"""``audit``: who was admitted, what was refused, what was changed."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from headrace.cli.terminal.options import Config, Data, Json, load_settings
from headrace.cli.terminal.output import console, plain_table, print_json, wants_json
from headrace.errors import UsageError

EXAMPLES: Final = (
    ("The newest records of the hub in ./headrace-data:", "headrace audit"),
    ("Who was refused what:", "headrace audit --event refused --data /var/lib/headrace"),
    ("All that one principal did, for a script:", "headrace audit --principal gateway-7 --count 0 --json"),
)


class Event(StrEnum):
    """What a record is about."""

    LET_IN = "let_in"
    REFUSED = "refused"
    CHANGED = "changed"


_COLUMNS: Final = ("time", "event", "principal", "door", "peer", "action", "what", "reason", "more")

EventOption = Annotated[Event | None, typer.Option("--event", help="Only records of this kind.")]
Who = Annotated[
    str | None, typer.Option("--principal", metavar="NAME", help="Only records of this principal.")
]
Count = Annotated[
    int, typer.Option("--count", "-n", min=0, help="Show at most this many, the newest; 0 for all.")
]


def audit(
    config: Config = None,
    data: Data = None,
    event: EventOption = None,
    principal: Who = None,
    count: Count = 50,
    as_json: Json = False,
) -> None:
    """Print the audit log of a data directory: who was admitted, what was refused, what was changed.

    The hub need not run. Of frequent events, a few records a minute are kept, and then one with the number of further
    ones.
    """
    from headrace.net.server.access.audit_file import DIRECTORY, read_audit

    directory = load_settings(config, data).node.data
    if not (directory / DIRECTORY).is_dir():
        raise UsageError(f"{directory} holds no audit log; name the hub's data directory with --data")
    wanted = (
        record
        for record in read_audit(directory)
        if (event is None or record.get("event") == event)
        and (principal is None or record.get("principal") == principal)
    )
    found = list(deque(wanted, maxlen=count or None))
    if wants_json(asked=as_json):
        print_json(found)
    elif not found:
        print("there are no such records")
    else:
        from rich.markup import escape

        table = plain_table(*_COLUMNS)
        for record in found:
            table.add_row(*(escape(_word(record, name)) for name in _COLUMNS))
        console().print(table)


def _word(record: dict[str, Any], name: str) -> str:
    value = record.get(name, "")
    if name == "time":
        return datetime.fromtimestamp(float(value), UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "".join(each if each.isprintable() else "�" for each in str(value))
