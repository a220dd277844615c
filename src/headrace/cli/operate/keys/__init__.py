"""``keys``: principals' ids, keys, tokens and certificates, one module per command."""

from __future__ import annotations

from headrace.cli.operate.keys import list_keys, new, revoke, signing, tls
from headrace.cli.terminal.help_text import add_command, make_group

keys = make_group(
    """
    Make client ids, keys, tokens and certificates; show who has which; take them away.

    Secrets go into files of mode 600 and nowhere else: what is printed may be shown to anybody.
    """,
    ("A reader of some topics:", "headrace keys new dashboard --allow 'read fleet/**'"),
    ("Who may do what?", "headrace keys list --config hub.toml"),
    ("TLS for a first try:", "headrace keys tls --dir tls"),
)
add_command(keys, "new", *new.EXAMPLES, short="Make a client id, a key and a token.")(new.new)
add_command(keys, "list", *list_keys.EXAMPLES, short="Show who has which, and may do what.")(
    list_keys.list_keys
)
add_command(keys, "revoke", *revoke.EXAMPLES, short="Take a principal's away.")(revoke.revoke)
add_command(keys, "tls", *tls.EXAMPLES, short="Make a local authority and certificates.")(tls.tls)
add_command(keys, "signing", *signing.EXAMPLES, short="Make a key that signs checkpoints.")(signing.signing)
