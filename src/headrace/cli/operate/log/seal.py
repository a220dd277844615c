"""``log seal``: ask the hub to seal if one runs, else open the log and do it here."""

from __future__ import annotations

from typing import Final

from headrace.cli.terminal.options import (
    ClientId,
    Config,
    Data,
    Json,
    existing_log,
    find_credentials,
    load_settings,
)
from headrace.cli.terminal.output import counted, print_result

EXAMPLES: Final = (("Before another tool looks at DATA/log/*.arrow:", "headrace log seal"),)


def seal(config: Config = None, data: Data = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Seal the open tail now: committed messages become a plain Arrow file that any Arrow reader opens.

    A running hub is asked to do it, at its http door; without a hub it is done here.
    """
    from headrace.cli.hubs.running_hub import find_running_hub
    from headrace.log import Log

    settings = load_settings(config, data)
    directory = existing_log(settings)
    hub = find_running_hub(directory, find_credentials(client_id, settings))
    if hub is not None:
        sealed = hub.seal()
    else:
        log = Log.open(directory, fsync=settings.log.fsync)
        try:
            log.rotate()
            sealed = 0
            while log.seal_next() is not None:
                sealed += 1
        finally:
            log.close()
    sentence = f"sealed {counted(sealed, 'segment')}" if sealed else "nothing to seal"
    print_result({"sealed": sealed}, sentence, as_json=as_json)
