"""``log``: the files of a log, one module per command."""

from __future__ import annotations

from typing import Final

import typer

from headrace.cli.log import dump, info, repair, seal, verify
from headrace.cli.terminal.help_text import examples, paragraphs

HELP: Final = paragraphs(
    """
    Show a log's files, check them, export messages, repair them, seal them.

    info, verify and dump only read, and may run beside a hub. repair needs the hub stopped.
    """
)
EXAMPLES: Final = examples(
    ("What is there?", "headrace log info"),
    ("Is every byte as it was written?", "headrace log verify --data /var/lib/headrace"),
    ("Messages 100 to 200:", "headrace log dump --from 100 --to 200"),
)

log = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")
log.command("info", help=info.HELP, epilog=info.EXAMPLES)(info.info)
log.command("verify", help=verify.HELP, epilog=verify.EXAMPLES)(verify.verify)
log.command("dump", help=dump.HELP, epilog=dump.EXAMPLES)(dump.dump)
log.command("repair", help=repair.HELP, epilog=repair.EXAMPLES)(repair.repair)
log.command("seal", help=seal.HELP, epilog=seal.EXAMPLES)(seal.seal)
