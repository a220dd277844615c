"""What is published over the link: rows of a client's own, and what a frontend passes on.

The answer comes once the rows are in the log and committed; until then they count against what the connection may have
under way. What was sent before is answered as it was then (:mod:`headrace.hub.publishing.idempotent`).
"""

from __future__ import annotations

from headrace.errors import HeadraceError, RefusedError
from headrace.hub.publishing.idempotent import Publishing, mark
from headrace.hub.sequencer import Published
from headrace.net.link.connection import LinkConnection
from headrace.net.link.request_rows import Bodies, check_origin
from headrace.wire.link import requests as ask


class LinkPublishing:
    """The way from one hub's link into its log."""

    def __init__(self, judge: Publishing, bodies: Bodies) -> None:
        self._judge = judge
        self._bodies = bodies

    def publish(self, connection: LinkConnection, request: ask.PublishRequest, body: memoryview) -> None:
        """Publish rows."""
        check_origin(request.origin)
        batch = self._bodies.published(
            body, origin=request.origin, publisher=request.publisher or connection.peer, number=request.number
        )
        if request.number is not None and not request.publisher:
            raise RefusedError("malformed", "a number is a publisher's: say whose it is")
        size = len(body)
        connection.uncommitted(size)

        def told(result: Published | HeadraceError) -> None:
            connection.uncommitted(-size)
            if isinstance(result, HeadraceError):
                connection.fail(request.id, result)
            else:
                connection.answer(
                    request.id, None, first=result.first, last=result.last, repeated=result.repeated
                )

        self._judge.publish(batch, told, follows=request.follows)

    def pass_on(self, connection: LinkConnection, request: ask.PassRequest, body: memoryview) -> None:
        """Publish what a frontend took in, and its mark behind it."""
        batch, size = self._bodies.passed(body), len(body)
        connection.uncommitted(size)

        def told(result: Published | HeadraceError) -> None:
            connection.uncommitted(-size)
            if isinstance(result, HeadraceError):
                connection.fail(request.id, result)
                return
            # The mark has the place behind the rows.
            last = None if result.last is None else result.last - 1
            first = None if last is None else last - len(batch) + 1
            connection.answer(request.id, None, first=first, last=last, repeated=result.repeated > 0)

        self._judge.publish(
            mark(request.frontend, request.number), told, follows=request.number > 0, behind=batch
        )

    def newest(self, connection: LinkConnection, request: ask.PublisherRequest, _body: memoryview) -> None:
        """Tell the newest number of a publisher."""

        def told(newest: int | HeadraceError | None) -> None:
            if isinstance(newest, HeadraceError):
                connection.fail(request.id, newest)
            else:
                connection.answer(request.id, None, newest=newest)

        self._judge.newest(request.publisher, told)
