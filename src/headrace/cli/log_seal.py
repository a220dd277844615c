"""What ``log seal`` does: have the hub seal if one runs, else open the log and do it here."""

from __future__ import annotations

from pathlib import Path

from headrace.cli import live
from headrace.cli.access import Client
from headrace.config import Fsync
from headrace.log import Log


def seal(directory: Path, fsync: Fsync, client: Client | None) -> int:
    """Seal what is committed; return how many segments that made."""
    hub = live.find(directory, client)
    if hub is not None:
        return hub.seal()
    log = Log.open(directory, fsync=fsync)
    try:
        log.rotate()
        count = 0
        while log.seal_next() is not None:
            count += 1
        return count
    finally:
        log.close()
