"""Holds requests whose answer depends on the head, while a node that has just started does not know the head.

Before it ended, such a node may have shown more messages as committed than it knows of now. If it answered at once, a
client would see the sequence go back. The node knows the head as soon as it hears from the cluster, which rarely takes
a second.
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
    """The requests that wait, for at most ``seconds``; a connection bounds how many it has open.

    Their bodies, which could take megabytes, mean nothing and are not kept.
    """

    def __init__(
        self, hub: Hub, seconds: float, perform: Callable[[LinkConnection, ask.Request, memoryview], None]
    ) -> None:
        self._hub = hub
        self._seconds = seconds
        self._perform = perform
        self._held: list[tuple[float, LinkConnection, ask.Request]] = []

    def hold(self, connection: LinkConnection, request: ask.Request) -> bool:
        """Hold a request if it has to wait; return whether it does."""
        if self._hub.head_doubt() is None or not _tells_of_the_head(request, self._hub.log.head):
            return False
        deadline = asyncio.get_running_loop().time() + self._seconds
        self._held.append((deadline, connection, request))
        return True

    def tick(self, now: float) -> None:
        """Perform all held requests once the head is known; until then, refuse those that have waited too long."""
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
