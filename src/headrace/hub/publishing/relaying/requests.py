"""The requests of a relay: rows, with the number by which the other hub recognises them if they are sent again.

A batch that is too large for one request is cut into pieces, and the answers to its pieces are joined into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import HeadraceError
from headrace.hub.sequencer import KEPT, UNCLAIMED, Claim, Published, WhenPublished
from headrace.message import Batch

MOST_BYTES: Final = 4 << 20
"""Larger batches are sent in pieces: a message of the link has at most 8 MiB."""

_ROW_COST: Final = 64
"""Approximate bytes of a row beside its payload."""


@dataclass(slots=True, eq=False)
class RelayRequest:
    """Rows to relay: a publisher's own, or (``passed``) any messages and entries, with a mark after them."""

    rows: Sequence[Batch]
    reply: WhenPublished
    passed: bool
    publisher: str = ""
    """Owner of the number; a request without both gets them from this hub when it is first sent."""
    number: int = 0
    follows: bool = False
    claim: Claim = UNCLAIMED
    sent: bool = False
    """Whether the request was sent, so that the other hub may have taken it."""
    since: int = 0
    """The newest operation of this hub's log when the request was first sent."""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(cost_of, self.rows))


class OwnNumbers:
    """The name and the numbers that this hub gives to requests without a publisher's number."""

    def __init__(self, make_name: Callable[[], str]) -> None:
        self._make_name = make_name
        self._name, self._next = make_name(), 0

    def give(self, request: RelayRequest) -> None:
        """Number a request that is sent for the first time."""
        request.publisher, request.number = self._name, self._next
        request.follows = self._next > 0
        self._next += 1

    def take_back(self, request: RelayRequest) -> None:
        """Reuse the number of a request that is not sent after all, if it was the last."""
        if (request.publisher, request.number) == (self._name, self._next - 1):
            self._next -= 1

    def leave_gap(self, request: RelayRequest) -> bool:
        """Take a new name if a request with this name was refused: all that follow it would be refused, too."""
        if request.publisher != self._name:
            return False
        self.begin_anew()
        return True

    def begin_anew(self) -> None:
        """Use a new name from now on."""
        self._name, self._next = self._make_name(), 0


def joined_reply(pieces: int, reply: WhenPublished) -> WhenPublished:
    """Return a reply that joins the answers to several pieces: the range of all of them, or the first error."""
    results: list[Published | HeadraceError] = []

    def joined(result: Published | HeadraceError) -> None:
        results.append(result)
        if len(results) < pieces:
            return
        error = next((each for each in results if isinstance(each, HeadraceError)), None)
        if error is not None:
            reply(error)
            return
        places = [each for each in results if isinstance(each, Published)]
        repeated = sum(each.repeated for each in places)
        if any(each.kept for each in places):
            reply(KEPT._replace(repeated=repeated))
            return
        ops = [each.op for each in places if each.op is not None]
        reply(Published(places[0].first, places[-1].last, repeated, max(ops, default=None)))

    return joined


def cost_of(batch: Batch) -> int:
    """Return about how many bytes a batch takes in a request."""
    return batch.size + _ROW_COST * len(batch)


def cut_up(batch: Batch) -> Iterator[Batch]:
    """Yield a batch in pieces that fit a request each."""
    if cost_of(batch) <= MOST_BYTES or len(batch) == 1:
        yield batch
        return
    half = len(batch) // 2
    yield from cut_up(batch.slice(0, half))
    yield from cut_up(batch.slice(half, len(batch)))
