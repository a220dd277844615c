"""``log head``: the head of a log's chain of digests, and a signed checkpoint of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.terminal.options import ClientId, Config, Data, Json, LinkUrl, load_settings
from headrace.cli.terminal.output import print_json, wants_json
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.log.proof.chain import Chain

EXAMPLES: Final = (
    ("What does the log say now?", "headrace log head"),
    ("A checkpoint to keep elsewhere:", "headrace log head --sign auditor.pem > monday.checkpoint"),
    ("Of a hub elsewhere:", "headrace log head --url tube://hub:8081"),
)


def head(
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Print a checkpoint, signed with this key, instead."),
    ] = None,
    url: LinkUrl = None,
    config: Config = None,
    data: Data = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Print the head of a log's chain of digests: every copy of one history has the same.

    The chain is over blocks of 65,536 messages; the messages after the last full block are the open part. The log's
    files are read if they are on this machine, even while a hub runs; with --url the hub is asked. headrace keys
    signing makes a key for --sign, and headrace verify --checkpoint proves that a copy extends a signed checkpoint.
    """
    from headrace.cli.operate.verify.copies import copy_at

    with copy_at(url, load_settings(config, data), client_id) as copy:
        chain = copy.recorded()
    if chain is None:
        raise UsageError(f"{url} is not a hub's link: expected tube://host:port")
    if sign is not None:
        from time import time_ns

        from headrace.log.proof import checkpoint

        key = checkpoint.private_key(sign.read_bytes(), str(sign))
        sys.stdout.write(checkpoint.sign(chain, key, time_ns() // 1000).decode())
        return
    facts = head_facts(chain)
    if wants_json(asked=as_json):
        print_json(facts)
        return
    for name, value in facts.items():
        print(f"{name:<10} {_shown(value)}")


def head_facts(chain: Chain) -> dict[str, Any]:
    """Return the head of a chain as JSON has it; what is not known is null."""
    from headrace.log.proof.chain import end_of

    value, open_digest = chain.value, chain.open_digest
    return {
        "log": str(chain.uuid),
        "head": chain.through,
        "blocks": chain.blocks,
        "chain": None if value is None else value.hex(),
        "open_first": end_of(chain.blocks) + 1,
        "open": None if open_digest is None else open_digest.hex(),
    }


def _shown(value: object) -> str:
    return "not known: the log begins later, without the digests before" if value is None else str(value)
