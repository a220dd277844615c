"""Sending and receiving many datagrams in one system call, where the kernel can.

Linux sends and receives many datagrams of one size in one call (``UDP_SEGMENT``, ``UDP_GRO``). Elsewhere it is one
datagram at a time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Final

UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
MAX_SEGMENTS: Final = 64
"""Most datagrams in one call (UDP_MAX_SEGMENTS)."""

ETHERNET: Final = 1472
"""UDP data that fits an Ethernet frame: the largest datagrams worth joining on the way to another machine."""

_FORCE: Final = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}
"""SO_RCVBUFFORCE and SO_SNDBUFFORCE, which only the privileged may use."""


def enable_segments(sock: socket.socket) -> bool:
    """Ask for many datagrams per call; return whether the kernel can."""
    try:
        sock.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
        sock.getsockopt(socket.SOL_UDP, UDP_SEGMENT)
    except (AttributeError, OSError):
        return False
    return True


def enlarge(sock: socket.socket, option: int, size: int) -> None:
    """Make a socket's buffer as large as the system allows, up to ``size``."""
    for each in (option, _FORCE[option]):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, each, size)


def segment_size(size: int, ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the size of the datagrams that one read brought; the last may be smaller."""
    for level, kind, data in ancillary:
        if level == socket.SOL_UDP and kind == UDP_GRO:
            (step,) = struct.unpack_from("=i", data)
            if 0 < step < size:
                return int(step)
    return size
