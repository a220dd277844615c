"""``verify``: the command."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.terminal.exits import FAILED
from headrace.cli.terminal.options import ClientId, Config, Data, Json, load_settings
from headrace.cli.terminal.output import counted, moment, print_json, wants_json
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.cli.operate.verify.judgement import Examined
    from headrace.log.proof.checkpoint import Checkpoint

EXAMPLES: Final = (
    (
        "Does this log extend what was signed?",
        "headrace verify --checkpoint monday.checkpoint --key auditor.pub",
    ),
    ("Are a node and an archive equal?", "headrace verify tube://node-2:8081 s3://bucket/archive"),
    ("Read every message of a hub:", "headrace verify --full tube://hub:8081"),
)


def verify(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COPY]...",
            help="A data directory, a hub's link (tube://host:port), an archive; by default the log here.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="FILE", help="Prove that each copy extends what was signed here."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="The public key that must have signed it."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Read every message of hubs, too, not only of files.")
    ] = False,
    digests: Annotated[
        bool,
        typer.Option("--digests", help="Trust the digests that logs have recorded, and read no messages."),
    ] = False,
    config: Config = None,
    data: Data = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Prove that copies of a history are equal, or that they extend a checkpoint; else name the first difference.

    Copies are compared by the digests of blocks of 65,536 messages, and row by row where those differ. If a second copy
    agrees with the checkpoint, the first message that differs is named, otherwise its block. Exits with 1 if anything
    differs. The job verify of headrace pipeline run does the same on a Spark cluster.
    """
    from headrace.cli.operate.verify.copies import copy_at
    from headrace.cli.operate.verify.judgement import Finding, Unchecked, check, examine
    from headrace.log.proof import checkpoint as checkpoints

    if full and digests:
        raise UsageError("--full reads every message, --digests none: leave out one")
    if key is not None and checkpoint is None:
        raise UsageError("--key is about the signature of a --checkpoint")
    if data is not None and places:
        raise UsageError("--data and the copies both say where the messages are: leave out one")
    trusted = None if key is None else checkpoints.public_key(key.read_bytes(), str(key))
    signed = None
    if checkpoint is not None:
        signed = checkpoints.Checkpoint.parse(checkpoint.read_bytes(), str(checkpoint), trusted)
    settings = load_settings(config, data)
    with ExitStack() as stack:
        copies = [stack.enter_context(copy_at(place, settings, client_id)) for place in places or (None,)]
        examined = [examine(copy, full or (copy.at_hand and not digests)) for copy in copies]
        judged = list(check(examined, signed))
    findings = [each for each in judged if isinstance(each, Finding)]
    unchecked = [each for each in judged if isinstance(each, Unchecked)]
    if wants_json(asked=as_json):
        print_json(
            {
                "ok": not findings,
                "checkpoint": None
                if signed is None
                else _checkpoint_facts(signed, trusted=trusted is not None),
                "copies": [_copy_facts(each) for each in examined],
                "findings": [each.facts() for each in findings],
                "unchecked": [{"copy": e.copy, "first": e.first, "last": e.last} for e in unchecked],
            }
        )
    else:
        for each in judged:
            print(each)
        if not findings:
            print(_sentence(examined, signed, whole=not unchecked))
    if signed is not None and trusted is None:
        print(
            f"headrace: the checkpoint is signed by {signed.key.hex()}: name the key you trust with --key",
            file=sys.stderr,
        )
    if findings:
        raise typer.Exit(FAILED)


def _sentence(examined: list[Examined], signed: Checkpoint | None, *, whole: bool) -> str:
    copies = ", ".join(each.copy.name for each in examined)
    how = (
        "every message read"
        if all(each.computed for each in examined)
        else "by the digests that hubs recorded"
    )
    if not whole:
        how += ", except for what could not be checked"
    if signed is not None:
        when = (moment(signed.time) or "")[:19]
        return f"{copies}: extends the checkpoint of {when} at message {signed.head:,} ({how})"
    if len(examined) > 1:
        last = min(each.copy.head for each in examined)
        return f"{copies}: equal up to message {last:,} ({how})"
    (only,) = examined
    blocks = counted(only.chain.blocks, "full block")
    return f"{copies}: messages are those that were digested, up to {only.copy.head:,}, {blocks} ({how})"


def _copy_facts(each: Examined) -> dict[str, Any]:
    from headrace.cli.operate.log.head import head_facts

    return {"copy": each.copy.name, "first": each.copy.first, "full": each.computed, **head_facts(each.chain)}


def _checkpoint_facts(signed: Checkpoint, *, trusted: bool) -> dict[str, Any]:
    facts = {"log": str(signed.log), "head": signed.head, "blocks": signed.blocks}
    return {**facts, "time": moment(signed.time), "key": signed.key.hex(), "trusted": trusted}
