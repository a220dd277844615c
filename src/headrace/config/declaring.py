"""How a section declares its settings, and the defaults that depend on the machine."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Final, TypeVar

from headrace.config.value_types import Address, ValueType, address, or_off

MAX_NAME_BYTES = 64
"""The longest name of a node: it travels in parcels of at most 255 bytes, several names to a parcel."""

T = TypeVar("T")


def setting(value_type: ValueType[T], default: T | Callable[[], T], doc: str, *, shown: str = "") -> T:
    """Declare a setting; ``shown`` is the default in words, where its value differs between machines."""
    metadata = {"type": value_type, "doc": doc, "shown": shown}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def door(port: int, doc: str) -> Address | None:
    """Declare a setting of ``listen``."""
    value_type = or_off(address("host:port (IPv6 in brackets, port 0 for a free one)"))
    return setting(value_type, Address("127.0.0.1", port), doc)


def host_name() -> str:
    """Give this machine's name, cut to the longest name of a node."""
    name = platform.node().encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")
    return name if name and name.isprintable() else "headrace"


def memory_share() -> int | None:
    """Give three quarters of the memory that this process may have; ``None`` if the system does not tell."""
    found: list[int] = []
    with contextlib.suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for place in _GROUP_MEMORY:
        # The word "max" stands for no limit.
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(place).read_text()))
    most = min(found, default=0) * 3 // 4
    return max(most, 64 << 20) if most > 0 else None


_GROUP_MEMORY: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The files with a control group's memory limit, for versions 2 and 1."""
