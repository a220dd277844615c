"""Who numbers messages: this hub, or another one.

A lone hub is its own sequencer. A frontend's is its upstream hub, and a node that follows a cluster's primary has that
primary: what their doors take in goes there, and comes back numbered, as part of the one sequence that they follow.
That is the only difference between them. So there is one seam: :attr:`headrace.hub.sequence.Hub.sequencer`, which is
``None`` or a :class:`Sequencer`.

There are three ways into a sequence, and each can be tried again without harm, wherever that ends up:

- what doors submit (messages, and entries of the hub's state): under a mark, a number of the hub that passes it on,
  which is appended with it (:meth:`Sequencer.order`);
- what publishers number themselves: under those numbers (:meth:`Sequencer.publish`);
- what is staged and committed: under the query's batch (:meth:`Sequencer.commit`).

The judgement whether something is there already is the sequencer's alone. Others know only how far they have followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from headrace.errors import HeadraceError, StorageError
from headrace.message import Batch

Done: TypeAlias = Callable[[Batch | StorageError], None]
"""Told how a submitted batch ended: the batch as it was numbered once it is committed, or why it was not taken.

Where another hub numbers, ``first`` is the place that it gave; ``time`` is not known to whoever submitted.
"""


class Submission(NamedTuple):
    """A batch waiting for the end of the turn."""

    batch: Batch
    done: Done | None = None
    tied: bool = False
    """Whether it is appended together with the next one, or not at all."""


def tied_groups(submitted: Sequence[Submission]) -> list[list[Submission]]:
    """What must be appended together, in order."""
    groups: list[list[Submission]] = [[]]
    for submission in submitted:
        groups[-1].append(submission)
        if not submission.tied:
            groups.append([])
    return [group for group in groups if group]


class Published(NamedTuple):
    """Where the first and the last row of a publish are, if that is still known; how many were there before."""

    first: int | None
    last: int | None
    repeated: int = 0


Told: TypeAlias = Callable[[Published | HeadraceError], None]
"""Told how a publish ended, once it is committed or cannot be."""

ToldNewest: TypeAlias = Callable[[int | HeadraceError | None], None]
"""Told a publisher's highest number, if it has any, or why that cannot be said."""


class Sequencer(Protocol):
    """Another hub that numbers what this one takes in. Whatever is answered here is committed here, too."""

    @property
    def congested(self) -> bool:
        """Whether publishers must wait: more is under way than this hub wants to hold."""

    def order(self, submitted: Sequence[Submission]) -> None:
        """Have what doors submitted numbered, in this order."""

    def publish(self, batch: Batch, told: Told, *, follows: bool, behind: Batch | None) -> None:
        """Have a publisher's numbered batch appended, once; ``behind`` a batch that is appended right before it."""

    def commit(self, query: str, batch: int, rows: Sequence[Batch], told: Told) -> None:
        """Have a query's batch appended, all or none, once."""

    def newest(self, publisher: str, told: ToldNewest) -> None:
        """Find out a publisher's highest number: what is followed so far may not have it yet."""

    def committed(self, head: int) -> None:
        """Everything up to ``head`` is committed here, and every door has it."""
