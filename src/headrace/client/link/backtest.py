"""Backtests: what a subscription would have delivered, by the matcher's own engine over messages of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.matching import FENCE_WINDOW, Matcher
from headrace.matching.matches import CLIENT_BYTES, Matches
from headrace.wire.sdk.predicate import Alternatives, fence_of, split_events

if TYPE_CHECKING:
    from headrace.matching.tracks import Read

EVENTS: Final = pa.field("events", pa.list_(pa.string()))
"""A column beside the envelope's: the events that a message is to the subscription's fences."""


class Backtest:
    """One subscription; to the matcher, each of its alternatives is a client."""

    def __init__(
        self,
        conditions: Alternatives,
        *,
        json_attributes: bool = False,
        window: int = FENCE_WINDOW,
        read: Read | None = None,
    ) -> None:
        """Without ``read``, the first message matched is to fences the first that ever was, and the rest follow it."""
        self.matcher = Matcher(json_attributes=json_attributes, window=window, read=read)
        self._events: list[str] = []
        for place, predicates in enumerate(split_events(conditions)):
            self.matcher.subscribe(place.to_bytes(CLIENT_BYTES), predicates)
            fence = fence_of(predicates)
            self._events.append("" if fence is None else fence[1].events[0])

    @property
    def has_fences(self) -> bool:
        """Whether messages before one matter to it."""
        return any(self._events)

    def passing(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that would have been delivered; with fences they have the column :data:`EVENTS`."""
        matches = self.matcher.match_rows(rows)
        found = np.flatnonzero(np.diff(matches.offsets))
        some = rows.take(pa.array(found))
        return some.append_column(EVENTS, self._named(matches, found.tolist())) if self.has_fences else some

    def _named(self, matches: Matches, found: list[int]) -> pa.Array:
        each = ({self._events[int.from_bytes(place)] for place in matches[row]} for row in found)
        return pa.array([sorted(events - {""}) for events in each], EVENTS.type)
