"""Requests whose answer depends on the head wait while a node that was just started does not know it.

Such a node may have shown more as committed before it ended than it knows of now. If it answered at once, a client
would see the sequence go back. It knows as soon as it hears the cluster: rarely is a request held for a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, UnavailableError
from headrace.wire.link import requests as ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.hub.sequence import Hub
    from headrace.net.link.connection import LinkConnection


_NO_BODY: Final = memoryview(b"")


class HeldRequests:
    """The requests that wait, for ``seconds`` at most; a connection bounds how many it has open.

    None of them means anything by its body, so none is kept: that could be megabytes of each.
    """

    def __init__(
        self, hub: Hub, seconds: float, perform: Callable[[LinkConnection, ask.Request, memoryview], None]
    ) -> None:
        self._hub = hub
        self._seconds = seconds
        self._perform = perform
        self._held: list[tuple[float, LinkConnection, ask.Request]] = []

    def hold(self, connection: LinkConnection, request: ask.Request) -> bool:
        """Keep a request if it has to wait; return whether it does."""
        if self._hub.head_doubt() is None or not _tells_of_the_head(request, self._hub.log.head):
            return False
        deadline = asyncio.get_running_loop().time() + self._seconds
        self._held.append((deadline, connection, request))
        return True

    def tick(self, now: float) -> None:
        """Go on with all requests if the head is known, and refuse those that have waited too long if not."""
        if not self._held:
            return
        doubt = self._hub.head_doubt()
        held, self._held = self._held, []
        for each in held:
            deadline, connection, request = each
            if connection.tube.closed:
                continue
            if doubt is not None and now < deadline:
                self._held.append(each)
                continue
            try:
                if doubt is not None:
                    raise UnavailableError(f"{doubt}: ask another node, or again later")
                self._perform(connection, request, _NO_BODY)
            except HeadraceError as error:
                connection.fail(request.id, error)


def _tells_of_the_head(request: ask.Request, head: int) -> bool:
    match request:
        case (
            ask.HeadRequest()
            | ask.SnapshotRequest()
            | ask.ChainRequest()
            | ask.EntriesRequest()
            | ask.SubscriptionsRequest()
            | ask.ServicesRequest()
        ):
            return True
        case ask.ReadRequest(last=last):
            return last is None or last > head
        case ask.FollowRequest(from_seq=from_seq, consumer=consumer):
            return from_seq is None and consumer is None
    return False
