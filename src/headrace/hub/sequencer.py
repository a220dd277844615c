"""The interface to another hub that numbers messages.

A lone hub numbers messages itself (:attr:`headrace.hub.sequence.Hub.sequencer` is ``None``). A frontend's sequencer is
its upstream hub, a cluster node's is the primary. Everything that their doors receive goes there, and comes back
numbered, as part of the sequence that they follow.

There are three ways into a sequence, and each can be retried without harm:

- messages and state entries that doors submit, identified by a mark that is appended with them: a number that the hub
  gives when it passes them on (:meth:`Sequencer.order`);
- messages that publishers number, identified by those numbers (:meth:`Sequencer.publish`);
- staged commits, identified by the query's batch (:meth:`Sequencer.commit`).

Only the sequencer can tell whether something is in the log already; others know only how far they have followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from headrace.errors import HeadraceError, StorageError
from headrace.message import Batch

Done: TypeAlias = Callable[[Batch | StorageError], None]
"""Called with the numbered batch once it is committed, or with the reason why it was refused.

If another hub numbers messages, ``first`` is the number that it gave, and ``time`` is unknown. A batch without a number
is kept here until that hub can be reached (:func:`is_kept`).
"""


class Submission(NamedTuple):
    """A batch waiting for the end of the turn."""

    batch: Batch
    done: Done | None = None
    tied: bool = False
    """Whether it must be appended together with the next one."""


def tied_groups(submitted: Sequence[Submission]) -> list[list[Submission]]:
    """Group submissions that must be appended together, in order."""
    groups: list[list[Submission]] = [[]]
    for submission in submitted:
        groups[-1].append(submission)
        if not submission.tied:
            groups.append([])
    return [group for group in groups if group]


class Published(NamedTuple):
    """The sequence numbers of a publish's first and last row, if still known, and the number of repeated rows.

    A hub that follows the answering hub must have committed operation ``op`` before it passes the answer on.
    """

    first: int | None
    last: int | None
    repeated: int = 0
    op: int | None = None
    kept: bool = False
    """Whether the rows have no numbers yet, since a frontend keeps them until its upstream hub is back."""


KEPT: Final = Published(None, None, kept=True)


def is_kept(done: Batch) -> bool:
    """Return whether a submitted batch was not numbered, but kept by a frontend without its upstream hub."""
    return not done.first and not done.is_entries


class Claim(NamedTuple):
    """A publisher's claims in addition to its name and numbers."""

    epoch: int | None = None
    """The epoch in which it opened its name, if it did."""
    client: str = ""
    """The id of the client, where clients prove theirs."""
    retry: int | None = None
    """In a resend, an operation before which it was never sent."""


UNCLAIMED: Final = Claim()


class Opened(NamedTuple):
    """A publisher's name as it was opened: the epoch of its holder, and its highest number, if it has any."""

    epoch: int
    newest: int | None


class Opening(NamedTuple):
    """The opening of a publisher's name; ``holder`` is a word unique to it, which identifies repeats of the request."""

    holder: str
    client: str = ""
    by: str = ""
    """The name that errors give to holders that this opening fences."""


class Commit(NamedTuple):
    """The terms of a query's batch, in addition to its rows."""

    digest: int = 0
    """The digest of the rows (:mod:`headrace.hub.publishing.cover`)."""
    token: int = 0
    """The word that identifies a repeat of the same request."""
    client: str = ""
    """The id of the client, where clients prove theirs."""


WhenOpened: TypeAlias = Callable[[Opened | HeadraceError], None]
"""Called when a name is opened, or cannot be."""

WhenPublished: TypeAlias = Callable[[Published | HeadraceError], None]
"""Called with the outcome of a publish, once it is committed or cannot be."""

WhenNewest: TypeAlias = Callable[[int | HeadraceError | None], None]
"""Called with a publisher's highest number, if it has any, or with the error."""


class Sequencer(Protocol):
    """Another hub that numbers what this hub receives. It answers once that is committed here, too."""

    @property
    def congested(self) -> bool:
        """Whether publishers must wait, since too much is unanswered."""

    def order(self, submitted: Sequence[Submission]) -> None:
        """Number submissions, in this order."""

    def publish(
        self,
        batch: Batch,
        reply: WhenPublished,
        *,
        follows: bool,
        preceding: Sequence[Batch],
        claim: Claim,
    ) -> None:
        """Append a publisher's numbered batch once, right after the ``preceding`` batches if there are any."""

    def commit(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
    ) -> None:
        """Append a query's batch once, as a whole or not at all."""

    def newest(self, publisher: str, reply: WhenNewest) -> None:
        """Ask for a publisher's highest number, which may not have been followed yet."""

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        """Open a publisher's name, and fence its previous holder."""

    def committed(self, op: int) -> None:
        """Note that every operation up to ``op`` is committed here; doors are handed its messages right after."""
