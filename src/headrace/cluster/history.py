"""Which view wrote which part of a log, so that two logs can be compared without being read.

A history is a short list of spans: *from this operation on, that view's primary wrote the log*. Each view starts from
one log and has one primary, so a position and the view that wrote it identify an operation: two logs that have
operation *n* from the same view are the same up to *n*. Where they part follows from the newest view that both know.

A span is added when a view starts, not when it writes, so a history is stored with the view change and costs nothing
afterwards. A view that wrote nothing leaves no span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.errors import MalformedError

MAX_SPANS: Final = 1_024
"""The oldest spans are forgotten past this many. A node that would need older ones recovers instead
(:mod:`~headrace.cluster.recovery`)."""


class Span(NamedTuple):
    """``view`` wrote the operations from ``first`` on, up to the next span."""

    view: int
    first: int


class History:
    """The spans of one log, oldest first; never changed, only replaced.

    >>> mine = History([(1, 1), (2, 8)])      # view 2 took over at operation 8
    >>> theirs = History([(1, 1), (3, 6)])    # view 3 never saw view 1's operations 6 and 7
    >>> mine.agreement(9, theirs, 12)
    5
    """

    __slots__ = ("spans",)

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self.spans = tuple(Span(view, first) for view, first in spans)
        if self.spans and self.spans[0].first < 1:
            raise MalformedError("parcel", "history", list(self.spans[0]), "operations begin with 1")
        for before, span in zip(self.spans, self.spans[1:], strict=False):
            if span.view <= before.view or span.first < before.first:
                raise MalformedError("parcel", "history", list(span), f"must be after {list(before)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self.spans == other.spans

    def __hash__(self) -> int:
        return hash(self.spans)

    def __repr__(self) -> str:
        return f"History({[tuple(span) for span in self.spans]})"

    @property
    def start(self) -> int:
        """The operation that the newest view began with."""
        return self.spans[-1].first if self.spans else 1

    def began(self, view: int, first: int) -> History:
        """Return this history with ``view`` started at ``first``."""
        kept = [span for span in self.spans if span.first < first]
        return History([*kept, Span(view, first)][-MAX_SPANS:])

    def upto(self, tail: int) -> History:
        """Return the history of this log cut back to ``tail``."""
        keep = bisect_right(self.spans, tail + 1, key=lambda span: span.first)
        return self if keep == len(self.spans) else History(self.spans[:keep])

    def agreement(self, tail: int, other: History, other_tail: int) -> int | None:
        """Find the last operation up to which two logs are the same; None if the spans do not reach back to it."""
        if not tail or not other_tail:
            return 0
        mine = {span.view: place for place, span in enumerate(self.spans)}
        for place in reversed(range(len(other.spans))):
            shared = mine.get(other.spans[place].view)
            if shared is not None:
                return min(self._end(shared, tail), other._end(place, other_tail))
        return 0 if self._whole and other._whole else None

    @property
    def _whole(self) -> bool:
        """Whether no span has been forgotten."""
        return bool(self.spans) and self.spans[0].first == 1

    def _end(self, place: int, tail: int) -> int:
        return min(self.spans[place + 1].first - 1, tail) if place + 1 < len(self.spans) else tail
