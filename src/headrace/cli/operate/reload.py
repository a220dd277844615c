"""``reload``: make a running hub reload its principals and their rights."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from headrace.cli.terminal.options import (
    ClientId,
    Config,
    Data,
    DoorScheme,
    Json,
    LinkUrl,
    hub_access,
    load_settings,
)
from headrace.cli.terminal.output import print_result
from headrace.errors import UsageError

EXAMPLES: Final = (
    ("After a principal was added to the hub's file:", "headrace reload"),
    ("A hub elsewhere:", "headrace reload --url tube://hub.example:8081"),
    ("The hub of a data directory, by a signal:", "headrace reload --data /var/lib/headrace"),
)


def reload(
    url: LinkUrl = None,
    config: Config = None,
    data: Data = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Make a hub reload its settings: principals, their keys and rights, and the keys of auth.clients.

    Connections that lose their rights are closed; all others continue. Settings that need a restart are named. With
    --data or --config the hub of that data directory is sent SIGHUP, and its log shows the result; otherwise the hub is
    asked over the link, which needs the right admin.
    """
    if url is None and (data is not None or config is not None):
        from headrace.cli.hubs.running_hub import find_running_hub

        directory = load_settings(config, data).node.data
        hub = find_running_hub(directory / "log")
        if hub is None or hub.pid is None:
            raise UsageError(f"no hub runs on {directory}")
        os.kill(hub.pid, signal.SIGHUP)
        print_result({"signalled": hub.pid}, f"{hub} was told; its log shows the result", as_json=as_json)
        return
    found = hub_access(url, DoorScheme.TUBE, client_id).ask("headrace reload", lambda link: link.reload())
    print_result(found, _sentence(found), as_json=as_json)


def _sentence(found: dict[str, Any]) -> str:
    changed, restart, closed = found["changed"], found["restart"], found["closed"]
    words = [f"changed: {', '.join(changed)}" if changed else "no setting has changed"]
    if restart:
        words.append(f"restart the hub for {', '.join(restart)}")
    if closed:
        words.append(f"{closed} connections were closed")
    return "; ".join(words)
