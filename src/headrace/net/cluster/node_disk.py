"""What a node of a cluster has on its disk: its log, what it must not forget, and whether both are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import uuid4

from headrace.cluster import Kept, State
from headrace.cluster import durable_state as states
from headrace.log import Log
from headrace.log.store import Fsync

STATE_FILE: Final = "cluster.state"
"""Beside the segments: it is lost with them, and never without them."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def open_log(directory: Path, *, fsync: Fsync, segment_bytes: int) -> tuple[Log, Kept | None]:
    """A node's log, with what is known to be committed, and what else it must not forget."""
    kept = states.load(directory / STATE_FILE) if directory.exists() else None
    committed = None if kept is None else kept.state.commit
    return Log.open(directory, fsync=fsync, segment_bytes=segment_bytes, committed=committed), kept


def is_intact(log: Log, kept: Kept | None) -> bool:
    """Whether everything is there that this node may have vouched for; when in doubt it is not."""
    if kept is None or kept.log != str(log.uuid):
        return False
    return log.fsync == "always" or kept.boot == _boot()


def remember(log: Log, state: State) -> Kept:
    """Bring the state to the disk, beside the log it is of."""
    kept = Kept(state, _boot(), str(log.uuid))
    states.save(log.directory / STATE_FILE, kept)
    return kept


def _boot() -> str:
    """What tells one boot of the machine from the next; without it, every start is taken for one."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid4().hex
