"""The interface to the hub that numbers messages, where that is another one.

A lone hub numbers messages itself. A frontend's sequencer is its upstream hub, a cluster node's is the primary: what
their doors take in goes there, and comes back numbered, as part of the one sequence that they follow. So
:attr:`headrace.hub.sequence.Hub.sequencer` is ``None`` or a :class:`Sequencer`.

There are three ways into a sequence, and each can be retried without harm:

- what doors submit (messages, and entries of the hub's state): under a mark, a number of the hub that passes it on,
  which is appended with it (:meth:`Sequencer.order`);
- what publishers number themselves: under those numbers (:meth:`Sequencer.publish`);
- what is staged and committed: under the query's batch (:meth:`Sequencer.commit`).

Only the sequencer judges whether something is there already. Others know only how far they have followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from headrace.errors import HeadraceError, StorageError
from headrace.message import Batch

Done: TypeAlias = Callable[[Batch | StorageError], None]
"""Called with the outcome of a submitted batch: the batch as numbered, once it is committed, or why it was not taken.

Where another hub numbers, ``first`` is the number that it gave, and ``time`` is unknown.
"""


class Submission(NamedTuple):
    """A batch waiting for the end of the turn."""

    batch: Batch
    done: Done | None = None
    tied: bool = False
    """Whether it is appended together with the next one or not at all."""


def tied_groups(submitted: Sequence[Submission]) -> list[list[Submission]]:
    """Group submissions that must be appended together, in order."""
    groups: list[list[Submission]] = [[]]
    for submission in submitted:
        groups[-1].append(submission)
        if not submission.tied:
            groups.append([])
    return [group for group in groups if group]


class Published(NamedTuple):
    """The sequence numbers of a publish's first and last row, if still known, and how many rows were there before."""

    first: int | None
    last: int | None
    repeated: int = 0


Told: TypeAlias = Callable[[Published | HeadraceError], None]
"""Called with the outcome of a publish, once it is committed or cannot be."""

ToldNewest: TypeAlias = Callable[[int | HeadraceError | None], None]
"""Called with a publisher's highest number, if it has any, or why it is unknown."""


class Sequencer(Protocol):
    """Another hub that numbers what this one takes in. What it answers is committed here, too."""

    @property
    def congested(self) -> bool:
        """Whether publishers must wait: too much is under way."""

    def order(self, submitted: Sequence[Submission]) -> None:
        """Number what doors submitted, in this order."""

    def publish(self, batch: Batch, told: Told, *, follows: bool, behind: Batch | None) -> None:
        """Append a publisher's numbered batch once, right after the batch ``behind`` if there is one."""

    def commit(self, query: str, batch: int, rows: Sequence[Batch], told: Told) -> None:
        """Append a query's batch once, all of it or none."""

    def newest(self, publisher: str, told: ToldNewest) -> None:
        """Ask for a publisher's highest number: what is followed so far may not have it yet."""

    def committed(self, head: int) -> None:
        """Note that everything up to ``head`` is committed here and handed to every door."""
