"""``log``: look at a log's files, check them, take messages out, mend them, seal them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.exits import FAILED
from headrace.cli.options import ClientId, Config, Data, Json, gather, identified
from headrace.cli.output import counted, print_json, wants_json
from headrace.cli.prose import examples, paragraphs
from headrace.config import Settings
from headrace.errors import UsageError

HELP: Final = paragraphs(
    """
    Look at a log's files, check them, take messages out, mend them, seal them.

    info, verify and dump only read, and may do so beside a running hub. repair wants the hub stopped.
    """
)
EXAMPLES: Final = examples(
    ("What is there?", "headrace log info"),
    ("Is every byte as it was written?", "headrace log verify --data /var/lib/headrace"),
    ("Messages 100 to 200:", "headrace log dump --from 100 --to 200"),
)

INFO_HELP: Final = paragraphs(
    """
    Show what a log holds: its uuid, first and last message, segments, snapshot, and the hub that has it open.
    """
)
INFO_EXAMPLES: Final = examples(
    ("For people:", "headrace log info"),
    ("For a script:", "headrace log info --json | jq .head"),
)

VERIFY_HELP: Final = paragraphs(
    """
    Check that every byte is as it was written: each segment, index and snapshot, and how they fit together.

    Nothing is changed, and a hub may be running. Exits with 1 if anything is wrong, and names the file, the place and
    the messages in doubt.
    """
)
VERIFY_EXAMPLES: Final = examples(
    ("Check:", "headrace log verify --data /var/lib/headrace"),
    ("In a script:", "headrace log verify --json | jq '.problems'"),
)

DUMP_HELP: Final = paragraphs(
    """
    Print messages with all that is known of them, one JSON object a line, or write them to an Arrow file.

    A payload that is not UTF-8 stands as base64 under "payload_base64". The range is cut to what is committed; a
    beginning that retention has removed is an error. An Arrow file has the schema of the log's own sealed segments, and
    any Arrow reader opens it.
    """
)
DUMP_EXAMPLES: Final = examples(
    ("Everything:", "headrace log dump"),
    ("The payloads from message 1000 on:", "headrace log dump --from 1000 | jq -r .payload"),
    ("A range as Arrow:", "headrace log dump --to 5000 --format arrow --output part.arrow"),
)

REPAIR_HELP: Final = paragraphs(
    """
    Make a damaged log one that opens again. Shows what is wrong and what it would do, and asks first.

    A log has no holes: what stays is what comes before the first damage, or, with --keep after, what comes after the
    last. Nothing is deleted: what leaves the log goes to a folder damaged-N in it, with the report. If numbers will be
    given again to other messages, the log gets a new uuid, so that nobody takes it for the old one.
    """
)
REPAIR_EXAMPLES: Final = examples(
    ("What would it do?", "headrace log repair --dry-run"),
    ("Do it, asking first:", "headrace log repair"),
    ("Keep the newest instead of the oldest, without asking:", "headrace log repair --keep after --yes"),
)

SEAL_HELP: Final = paragraphs(
    """
    Seal the open tail now: what is committed becomes a plain Arrow file that any Arrow reader opens.

    A running hub is asked to do it, at its http door; without one it is done here.
    """
)
SEAL_EXAMPLES: Final = examples(
    ("Before another tool looks at DATA/log/*.arrow:", "headrace log seal"),
)


class DumpFormat(StrEnum):
    """How messages are written."""

    JSON = "json"
    ARROW = "arrow"


class Kept(StrEnum):
    """Which side of the damage stays."""

    BEFORE = "before"
    AFTER = "after"


log = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")


@log.command("info", help=INFO_HELP, epilog=INFO_EXAMPLES)
def info(config: Config = None, data: Data = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show what a log holds."""
    settings = gather(config, data)
    directory = existing(settings)
    from headrace.cli import log_info

    facts = log_info.facts(directory, identified(client_id, settings))
    if wants_json(asked=as_json):
        print_json(facts)
    else:
        log_info.show(facts)


@log.command("verify", help=VERIFY_HELP, epilog=VERIFY_EXAMPLES)
def verify(config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Check that every byte is as it was written."""
    directory = existing(gather(config, data))
    from headrace.cli import log_verify

    problems, facts = log_verify.check(directory)
    if wants_json(asked=as_json):
        print_json(facts)
    else:
        log_verify.show(problems, facts)
    if problems:
        raise typer.Exit(FAILED)


@log.command("dump", help=DUMP_HELP, epilog=DUMP_EXAMPLES)
def dump(
    first: Annotated[
        int | None, typer.Option("--from", min=0, metavar="SEQ", help="The first message; else the oldest.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", min=1, metavar="SEQ", help="The last message; else the newest.")
    ] = None,
    form: Annotated[DumpFormat, typer.Option("--format", help="What to write.")] = DumpFormat.JSON,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; else stdout.")
    ] = None,
    config: Config = None,
    data: Data = None,
    client_id: ClientId = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --output: print what came of it as JSON.")
    ] = False,
) -> None:
    """Print messages with all that is known of them."""
    if first is not None and last is not None and first > last:
        raise UsageError(f"--from {first} is behind --to {last}")
    if form is DumpFormat.ARROW and output is None:
        raise UsageError("an Arrow file needs a name: add --output FILE")
    settings = gather(config, data)
    directory = existing(settings)
    client = identified(client_id, settings)
    from headrace.cli import log_dump

    if form is DumpFormat.ARROW and output is not None:
        count = log_dump.dump_arrow(directory, first, last, output, client)
    else:
        count = log_dump.dump_json(directory, first, last, output, client)
    if output is None:
        return
    if wants_json(asked=as_json):
        print_json({"messages": count, "file": str(output)})
    else:
        print(f"{counted(count, 'message')} in {output}")


@log.command("repair", help=REPAIR_HELP, epilog=REPAIR_EXAMPLES)
def repair(
    keep: Annotated[Kept, typer.Option("--keep", help="Which side of the damage stays.")] = Kept.BEFORE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and stop.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a damaged log one that opens again."""
    directory = existing(gather(config, data))
    from headrace.cli import log_repair

    log_repair.mend(directory, keep.value, yes=yes, dry_run=dry_run, as_json=wants_json(asked=as_json))


@log.command("seal", help=SEAL_HELP, epilog=SEAL_EXAMPLES)
def seal(config: Config = None, data: Data = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Seal the open tail now."""
    settings = gather(config, data)
    directory = existing(settings)
    from headrace.cli import log_seal

    sealed = log_seal.seal(directory, settings.log.fsync, identified(client_id, settings))
    if wants_json(asked=as_json):
        print_json({"sealed": sealed})
    else:
        print(f"sealed {counted(sealed, 'segment')}" if sealed else "nothing to seal")


_FILES: Final = (".open", ".arrow", ".index", ".snapshot")


def existing(settings: Settings) -> Path:
    """The directory of a log that is there, in whatever state: no command here begins one."""
    directory = settings.node.data / "log"
    # A repair that was interrupted may have moved every file aside.
    begun = (directory / "repairing").exists()
    if not begun and not any(path.suffix in _FILES for path in directory.glob("[0-9]*")):
        raise UsageError(f"{directory} holds no log; name the hub's data directory with --data")
    return directory
