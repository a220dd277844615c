"""Connections to hubs from Spark's Python processes.

A Python worker runs many tasks, and a connection costs several milliseconds: so a process keeps its connections, by
their options, until one fails. Keys are read when a connection is made and are never pickled.

A task may need a new connection while a hub restarts, so making one may take the ``patience`` of the options, like
replacing a lost one. Only a user's first request fails at once if there is no hub.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from headrace.client.link.client import Extent, LinkClient
from headrace.client.sync import SyncLinkClient
from headrace.errors import UnreachableError
from headrace.spark.options import HubOptions

CREDIT: Final = 16 << 20
"""Most bytes of rows on their way to a reader."""

_POLL_SECONDS: Final = 0.05
_AGAIN_SECONDS: Final = 0.2

_idle: dict[HubOptions, list[SyncLinkClient]] = {}
_idle_lock = threading.Lock()


def new_client(access: HubOptions) -> LinkClient:
    """Make a client that is not open yet."""
    client_id, key = access.credentials() or (None, None)
    return LinkClient(
        access.hosts,
        name="spark",
        reconnect_timeout=access.patience,
        timeout=max(access.patience, 10.0),
        credit=CREDIT,
        client_id=client_id,
        key=key,
        tls=access.tls(),
    )


@contextmanager
def link(access: HubOptions, *, at_once: bool = False) -> Iterator[SyncLinkClient]:
    """Lend a blocking client to one user at a time. ``at_once``: fail if there is no hub now."""
    with _idle_lock:
        kept = _idle.get(access)
        client = kept.pop() if kept else None
    if client is None:
        client = open_client(partial(new_client, access), 0.0 if at_once else access.patience)
    try:
        yield client
    except BaseException:
        # It may have a stream half read.
        client.close()
        raise
    with _idle_lock:
        _idle.setdefault(access, []).append(client)


def open_client(make: Callable[[], LinkClient], seconds: float) -> SyncLinkClient:
    """Open the client that ``make`` makes, waiting for its hub."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return SyncLinkClient(make()).open()
        except UnreachableError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_SECONDS)


def wait_for_head(client: SyncLinkClient, seq: int, access: HubOptions) -> Extent:
    """Wait until the log reaches ``seq``; return its extent, whether or not it came that far.

    What one node of a cluster reports as committed reaches the others a moment later, so of several servers one is
    given as much time as a lost connection. A single one has nothing to wait for.
    """
    deadline = time.monotonic() + (access.patience if len(access.hosts) > 1 else 0.0)
    while True:
        extent = client.head()
        if extent.head >= seq or time.monotonic() >= deadline:
            return extent
        time.sleep(_POLL_SECONDS)


def close_links() -> None:
    """Close the connections that this process keeps."""
    with _idle_lock:
        clients = [client for kept in _idle.values() for client in kept]
        _idle.clear()
    for client in clients:
        client.close()
