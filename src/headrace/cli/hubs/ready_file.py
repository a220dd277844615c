"""The ready file, which a hub writes when all its doors accept."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec


class ReadyHub(NamedTuple):
    """A hub's process and the addresses of its doors, as its ready file names them."""

    pid: int | None
    doors: dict[str, str]


def read_ready_file(path: Path) -> ReadyHub | None:
    """Read a ready file, if it exists and is one."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, int | str])
    except (OSError, msgspec.DecodeError):
        return None
    pid = found.pop("pid", None)
    doors = {door: str(address) for door, address in found.items()}
    return ReadyHub(pid if isinstance(pid, int) else None, doors)
