"""Requests as the outbox keeps them, and how they are read from its log: small ones are joined and go up together.

A request that is sent again must be the same as before, or the upstream hub cannot recognise it. So which requests go
up together is decided and written down before they are sent:

- Rows that this hub numbers are kept under the number of a **group** (:class:`Groups`). All requests of a group go up
  as one. A group is closed when it is large enough, before anything else is kept, and when it is about to be sent.
- A publisher's own consecutive requests are joined as they are read. The upstream hub recognises each of their rows by
  its number, however they are cut.

A joined request that is refused for good is taken apart, so that only the offending part is set aside: the members of a
group get numbers of their own (:attr:`Renamed.members`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.message import Batch

PART: Final = "outbox"
"""The outbox's part of its state, and the first word of its entries' topics."""

TOGETHER: Final = 512 << 10
"""Approximate size up to which requests are joined."""

MOST_JOINED: Final = 4096
"""Most requests that are joined."""


class KeptTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a request in addition to its rows."""

    batches: int
    """Number of batches that follow: the request's rows, and a mark if they are passed on."""
    messages: int
    size: int
    passed: bool = False
    follows: bool = False
    epoch: int | None = None
    client: str = ""
    retry: int | None = None
    since: int = 0
    """A position of the frontend's log before which the request was never sent."""
    group: int | None = None
    """The number of its group, under which it goes up; ``None`` for the number of its own mark."""


class KeptRequest(NamedTuple):
    """A request, or several joined ones, as the outbox has them; ``last_op`` is their last operation in its log."""

    ops: tuple[int, ...]
    """The first operation of each of the requests."""
    last_op: int
    time: int
    """Time when it was kept, in µs since 1970."""
    terms: KeptTerms
    rows: Sequence[Batch]
    publisher: str
    number: int
    """The name and the number that it goes up with."""
    mark: int
    """The number of its mark in the outbox, if it has one."""

    @property
    def op(self) -> int:
        """The first operation."""
        return self.ops[0]

    @property
    def end(self) -> int:
        """The number after the last row, if the rows have a publisher's numbers."""
        return self.number + sum(map(len, self.rows))


class Renamed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new name: marks of ``old`` from ``number`` on go under ``new``, counted from 0.

    With ``members``, the group with ``number`` is taken apart: each of its members goes by its own mark, counted from
    ``first`` on.
    """

    old: str
    number: int
    new: str
    members: int = 1
    first: int = 0


def known_as(renamed: Sequence[Renamed], publisher: str, number: int, mark: int) -> tuple[str, int]:
    """Return the name and the number under which a request goes up, after all renamings."""
    for each in renamed:
        if publisher != each.old or number < each.number:
            continue
        publisher = each.new
        if number > each.number:
            number += each.members - 1 - each.number
        else:
            number = mark - each.first if each.members > 1 else 0
    return publisher, number


class Groups:
    """Names and numbers for requests that have none: each gets a mark of its own and the number of its group."""

    def __init__(self, make_name: Callable[[], str]) -> None:
        self._make_name = make_name
        self._name, self._mark, self._group = make_name(), 0, 0
        self._members = self._size = 0

    def give(self, request: RelayRequest) -> int:
        """Give a request its name and its mark's number; return the number of its group."""
        if self._members == MOST_JOINED or self._size + request.size > TOGETHER:
            self.close()
        request.publisher, request.number = self._name, self._mark
        self._mark += 1
        self._members += 1
        self._size += request.size
        return self._group

    def close(self) -> None:
        """Begin the next group, since this one is about to be sent."""
        if self._members:
            self._group += 1
            self._members = self._size = 0

    def end_before(self, publisher: str) -> None:
        """Close the group before another publisher's request: a group's members stand together in the outbox."""
        if publisher != self._name:
            self.close()

    def leave_gap(self, request: RelayRequest) -> bool:
        """Take a new name if a request with this name was not kept: its group may have no other members."""
        if request.publisher != self._name:
            return False
        self._name, self._mark, self._group = self._make_name(), 0, 0
        self._members = self._size = 0
        return True


class KeptReader:
    """Makes requests from the outbox's log, which is read piece by piece from operation ``op`` on.

    Requests that are ``done`` already are not joined with others. Requests with publishers' own numbers are not joined
    at all up to operation ``apart``.
    """

    def __init__(self, op: int, renamed: Sequence[Renamed], done: Collection[int], apart: int = 0) -> None:
        self.op = op
        """The operation to read from next."""
        self._renamed = renamed
        self._done = done
        self._apart = apart
        self._described: tuple[Batch, KeptTerms] | None = None
        self._rows: list[Batch] = []
        self._joined: list[KeptRequest] = []

    def take(self, batches: Sequence[Batch]) -> list[KeptRequest]:
        """Take the next operations; return the requests that are complete now."""
        found: list[KeptRequest] = []
        for batch in batches:
            self.op = batch.last_op + 1
            if self._described is None:
                if batch.topic == f"{PART}/kept":
                    self._described = batch, msgspec.json.decode(batch.run[0], type=KeptTerms)
                continue
            self._rows.append(batch)
            described, terms = self._described
            if len(self._rows) == terms.batches:
                request = self._request(described, terms)
                self._described, self._rows = None, []
                if self._joined and not self._joins(self._joined[-1], request):
                    found += self.rest()
                self._joined.append(request)
        # A group may have more members. Rows with numbers of their own can go up in any parts.
        if self._joined and not self._joined[0].terms.passed:
            found += self.rest()
        return found

    def rest(self) -> list[KeptRequest]:
        """Return the joined requests that wait for more members."""
        joined, self._joined = self._joined, []
        return [_join(joined)] if joined else []

    def _request(self, described: Batch, terms: KeptTerms) -> KeptRequest:
        last = self._rows[-1]
        publisher, number = last.publisher, last.number or 0
        mark = number
        if terms.passed:
            number = number if terms.group is None else terms.group
            publisher, number = known_as(self._renamed, publisher, number, mark)
        rows = self._rows[:-1] if terms.passed else self._rows
        return KeptRequest(
            (described.op,), last.last_op, described.time, terms, rows, publisher, number, mark
        )

    def _joins(self, before: KeptRequest, request: KeptRequest) -> bool:
        """Return whether a request goes up together with the previous one."""
        mine, theirs = request.terms, before.terms
        if request.publisher != before.publisher or mine.passed is not theirs.passed:
            return False
        if mine.passed:
            return request.number == before.number
        return (
            request.number == before.end
            and (mine.epoch, mine.client, mine.retry) == (theirs.epoch, theirs.client, theirs.retry)
            and request.rows[0].origin == before.rows[0].origin
            and request.op > self._apart
            and (request.op in self._done) is (before.op in self._done)
            and len(self._joined) < MOST_JOINED
            and sum(each.terms.size for each in self._joined) + mine.size <= TOGETHER
        )


def _join(requests: Sequence[KeptRequest]) -> KeptRequest:
    first = requests[0]
    if len(requests) == 1:
        return first
    terms = msgspec.structs.replace(
        first.terms,
        messages=sum(each.terms.messages for each in requests),
        size=sum(each.terms.size for each in requests),
        since=min(each.terms.since for each in requests),
    )
    ops = tuple(op for each in requests for op in each.ops)
    rows = [batch for each in requests for batch in each.rows]
    return first._replace(ops=ops, last_op=requests[-1].last_op, terms=terms, rows=rows)
