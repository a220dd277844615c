"""Finds the hubs that run on this machine, as far as this user may see them.

A hub has its log's lock file open, which names the hub's doors; the system's table of processes leads to that file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.cli.hubs.access import Credentials
from headrace.cli.hubs.running_hub import RunningHub, find_running_hub
from headrace.config import Address

_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})


class LocalHub(NamedTuple):
    """A hub of this machine, and its data directory."""

    hub: RunningHub
    data: Path

    def listens_at(self, address: Address) -> bool:
        """Return whether one of its doors is at this address."""
        return any(_same(Address.parse(door), address) for door in self.hub.doors.values())


def local_hubs(credentials: Credentials | None = None) -> Iterator[LocalHub]:
    """Find the hubs that this user may see."""
    for process in Path("/proc").glob("[0-9]*"):
        for log in _open_logs(process):
            hub = find_running_hub(log, credentials)
            if hub is not None and str(hub.pid) == process.name:
                yield LocalHub(hub, log.parent)


def hub_at(address: Address, credentials: Credentials | None = None) -> LocalHub | None:
    """Find the hub that has a door at an address."""
    return next((each for each in local_hubs(credentials) if each.listens_at(address)), None)


def _open_logs(process: Path) -> Iterator[Path]:
    try:
        files = list((process / "fd").iterdir())
    except OSError:
        # It has ended, or is somebody else's.
        return
    for file in files:
        try:
            target = file.readlink()
        except OSError:
            continue
        if target.parts[-2:] == ("log", "lock"):
            yield target.parent


def _same(door: Address, address: Address) -> bool:
    hosts = {door.host, address.host}
    return door.port == address.port and (len(hosts) == 1 or bool(hosts & _EVERY_ADDRESS))
