"""The open streams of one connection: they are bounded, and charged to the client's account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.errors import RefusedError
from headrace.hub.access.accounts import Account, Resource
from headrace.net.link.refusals import ExplainedError
from headrace.net.link.streams.credit import LinkStream
from headrace.net.server.accepting.admission import Admission

MAX_STREAMS: Final = 64


class OpenStreams:
    """The open streams of one connection, by their ids."""

    def __init__(self, account: Account, admission: Admission) -> None:
        self.account = account
        self.ended = False
        """Whether the tube has ended, so that no stream may begin."""
        self._admission = admission
        self._streams: dict[int, LinkStream] = {}
        self._charged = self._charged_cost = 0
        """Number and filter cost of the streams that the account is charged for."""

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[LinkStream]:
        return iter(self._streams.values())

    def get(self, stream_id: int) -> LinkStream | None:
        """Return an open stream."""
        return self._streams.get(stream_id)

    def check_room(self, cost: int = 0) -> None:
        """Raise an error if no stream may begin now; ``cost`` is that of the stream's filter."""
        if self.ended:
            raise RefusedError("stopping", "the tube has ended")
        if len(self) >= MAX_STREAMS:
            raise ExplainedError("busy", f"{MAX_STREAMS} streams are open on this tube", limit=MAX_STREAMS)
        if self._admission.shut is not None:
            raise ExplainedError("busy", self._admission.shut)
        for resource, amount in ((Resource.SUBSCRIPTIONS, 1), (Resource.FILTER_COST, cost)):
            if (detail := self.account.lacks(resource, amount)) is not None:
                raise RefusedError("limit", detail)

    def add(self, stream: LinkStream) -> None:
        """Add a stream that begins."""
        self._streams[stream.id] = stream
        self._charge()

    def remove(self, stream_id: int) -> None:
        """Forget a stream that is over, if it was open."""
        self._streams.pop(stream_id, None)
        self._charge()

    def take_all(self) -> list[LinkStream]:
        """Remove and return all streams."""
        taken = list(self)
        self._streams.clear()
        self._charge()
        return taken

    def _charge(self) -> None:
        count, cost = len(self), sum(stream.cost for stream in self)
        self.account.adjust(Resource.SUBSCRIPTIONS, count - self._charged)
        self.account.adjust(Resource.FILTER_COST, cost - self._charged_cost)
        self._charged, self._charged_cost = count, cost
