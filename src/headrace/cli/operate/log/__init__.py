"""``log``: the files of a log, one module per command."""

from __future__ import annotations

from headrace.cli.operate.log import aside, dump, head, info, repair, seal, verify
from headrace.cli.terminal.help_text import add_command, make_group

log = make_group(
    """
    Show a log's files and its head, check them, export messages, repair them, seal them.

    info, head, verify and dump only read, and may run beside a hub. repair needs the hub stopped.
    """,
    ("What is there?", "headrace log info"),
    ("Is every byte as it was written?", "headrace log verify --data /var/lib/headrace"),
    ("Messages 100 to 200:", "headrace log dump --from 100 --to 200"),
)
add_command(log, "info", *info.EXAMPLES)(info.info)
add_command(log, "head", *head.EXAMPLES)(head.head)
add_command(log, "verify", *verify.EXAMPLES)(verify.verify)
add_command(log, "dump", *dump.EXAMPLES)(dump.dump)
add_command(log, "repair", *repair.EXAMPLES)(repair.repair)
add_command(log, "seal", *seal.EXAMPLES)(seal.seal)
log.add_typer(aside.aside, name="aside")
