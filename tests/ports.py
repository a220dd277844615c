"""Ports that stay free until a test uses them.

    port = lasting_port()
    start_something_that_listens_on(port)

A port that the system gave for port 0 and that was closed again is anybody's: another test's server, or any outgoing
connection, may have it before whoever was to listen there. These ports lie below the range that the system gives from,
and each xdist worker has a share of its own.
"""

from __future__ import annotations

import errno
import os
import random
import re
import secrets
import socket
from contextlib import ExitStack

_LASTING = range(10_000, 29_000)
_ROWS = range(29_000, 32_000)
"""For :func:`lasting_row`, which cannot choose each port from its worker's share."""

_given: set[int] = set()
"""Ports given in this process: whoever listens there may be down at the moment."""


def lasting_port() -> int:
    """A port that is free for TCP and UDP and will not be taken before, or while a hub is down."""
    worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    while True:
        port = secrets.choice(_LASTING[worker::workers])
        if port not in _given:
            _given.add(port)
            if _are_free([port]):
                return port


def lasting_row(*offsets: int) -> int:
    """A port such that those at these offsets from it are all free."""
    for base in random.SystemRandom().sample(range(_ROWS.start, _ROWS.stop - max(offsets)), 100):
        ports = {base + offset for offset in offsets}
        if not ports & _given and _are_free(sorted(ports)):
            _given.update(ports)
            return base
    raise OSError(f"no row of {len(offsets)} ports is free")


def _are_free(ports: list[int]) -> bool:
    try:
        with ExitStack() as stack:
            for port in ports:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    stack.enter_context(socket.socket(socket.AF_INET, kind)).bind(("127.0.0.1", port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
