"""Connections to hubs from Spark's Python processes.

A Python worker serves many tasks, one after the other, and a connection costs several milliseconds: so a process
keeps its connections, by what they were made from, until one of them disappoints. Keys are read when one is made and
are in no pickle.

Which process has one when a hub is restarted is Spark's affair, and so a connection that is to be made is waited for as
one that was lost: for the ``patience`` that the options say. Only where a user's first question goes, a hub that is not
there is told at once.
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
from headrace.spark.options import Access

CREDIT: Final = 16 << 20
"""Bytes of rows that may be under way to a reader."""

_POLL_SECONDS: Final = 0.05
_AGAIN_SECONDS: Final = 0.2

_kept: dict[Access, list[SyncLinkClient]] = {}
_keeping = threading.Lock()


def new_client(access: Access) -> LinkClient:
    """A client that is not open yet."""
    client_id, key = access.credentials() or (None, None)
    return LinkClient(
        access.hosts,
        name="spark",
        reconnect_timeout=access.patience,
        timeout=max(access.patience, 10.0),
        credit=CREDIT,
        client_id=client_id,
        key=key,
    )


@contextmanager
def link(access: Access, *, at_once: bool = False) -> Iterator[SyncLinkClient]:
    """A connected client whose methods block; whoever takes one has it alone. ``at_once``: none is waited for."""
    with _keeping:
        kept = _kept.get(access)
        client = kept.pop() if kept else None
    if client is None:
        client = opened(partial(new_client, access), 0.0 if at_once else access.patience)
    try:
        yield client
    except BaseException:
        # Streams may be half read, or the hub is not the one it was.
        client.close()
        raise
    with _keeping:
        _kept.setdefault(access, []).append(client)


def opened(make: Callable[[], LinkClient], seconds: float) -> SyncLinkClient:
    """What ``make`` makes, opened; a hub that is not there is waited for."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return SyncLinkClient(make()).open()
        except UnreachableError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_SECONDS)


def reach(client: SyncLinkClient, seq: int, access: Access) -> Extent:
    """How far the log reaches, once that is ``seq``; as it is, if it does not come that far.

    What one node of a cluster has told to be committed comes to the others as well, if a moment later: of several
    servers one is given as much time as a lost connection is. A single one has nothing to wait for.
    """
    deadline = time.monotonic() + (access.patience if len(access.hosts) > 1 else 0.0)
    while True:
        extent = client.head()
        if extent.head >= seq or time.monotonic() >= deadline:
            return extent
        time.sleep(_POLL_SECONDS)


def close_links() -> None:
    """Close the connections that this process keeps."""
    with _keeping:
        clients = [client for kept in _kept.values() for client in kept]
        _kept.clear()
    for client in clients:
        client.close()
