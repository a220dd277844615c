"""What a replica asks its driver to do, and what the driver owes the replica.

**Counting.** A log is a sequence of operations, counted 1, 2, 3, …: each is a message, or an entry, which takes no
sequence number. All numbers here (``first``, ``last``, ``commit``, ``after``, and the replica's ``tail``) count
operations. What both kinds have in common is all that the rules know of them; people are shown sequence numbers.

**Starting.** The driver opens the log and its state (:func:`headrace.cluster.durable_state.open_log`) and makes a
:class:`~headrace.cluster.replica.Replica` of both. ``intact`` says whether everything that this node may have vouched
for is still there (:func:`~headrace.cluster.durable_state.is_intact`); when in doubt it is not, and the node recovers
from the others, which takes a second. A replica assumes that the whole log is synced: opening a log syncs it.

**Effects** are carried out in the order of the list, each before the next, and all before the next input; whatever a
door submits while it is told of a commit waits. If one fails (a full disk, a failed sync), the rest is dropped and the
replica with it, as if the process had been killed: make another from what the disk has.

**Inputs.** :meth:`Replica.receive` takes each parcel of replication that ``Membership.refusal`` lets pass. The driver
has checked that the bulk of Prepare and NewState holds the operations ``first`` to ``last``, whole and in order.
:meth:`Replica.appended` is the hub's commit rule: it is called after this node, while it is
:meth:`~Replica.accepting`, has numbered and appended operations. :meth:`Replica.tick` is called at
:meth:`Replica.next_timer`, which is asked for after every input. :meth:`Replica.vouch` is an operator's word that the
cluster should go on with what this node has left.

Times are seconds of any clock that does not go back. Streams may lose, repeat and reorder parcels: they are relied on
for speed alone. The hub bounds what is numbered and not committed (``Hub.congested``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from headrace.cluster.durable_state import DurableState
from headrace.wire.parcel.body import Replication


class Status(Enum):
    """What a replica is doing."""

    NORMAL = "normal"
    VIEW_CHANGE = "view change"
    RECOVERING = "recovering"
    FAULTY = "faulty"


@dataclass(frozen=True, slots=True)
class Send:
    """Send a parcel to one node. Without a stream to it, or room on that, drop it: what matters is asked for again."""

    to: int
    body: Replication
    bulk: bytes = b""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send a parcel to every other node of the configured cluster.

    The bulk of a Prepare is the batch just appended, encoded once for all.
    """

    body: Replication


@dataclass(frozen=True, slots=True)
class Serve:
    """Send ``to`` a NewState of ``view`` with operations from ``first`` on, none past ``last``: a parcel full.

    Without any, or if the log no longer has ``first``, send one without bulk: its ``first`` is the next one, or the
    oldest one kept, and its ``last`` the one before that. If the read happens later, send it only if the replica is
    still in that view: another may have cut the log back.
    """

    to: int
    view: int
    first: int
    last: int
    commit: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append operations ``first`` to ``last`` of those that came with the parcel just received.

    They bring their positions, sequence numbers and times; a batch may begin before ``first`` and end after ``last``.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CutBack:
    """Remove every operation after ``last`` from the log, durably; those who wait for them learn that they are gone."""

    last: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Sync the log in a thread, at least up to ``last``; then call ``synced`` with this ``token``.

    A sync that has not begun yet will do. It does not hold up the list.
    """

    token: int
    last: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Save the state, synced, before any effect that follows."""

    state: DurableState


@dataclass(frozen=True, slots=True)
class Advance:
    """Show everything up to ``commit`` at the doors, and acknowledge it: it is committed."""

    commit: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Fetch a snapshot that reaches past ``after`` from ``source``; then call ``fetched`` with this ``token``."""

    token: int
    source: int
    after: int


@dataclass(frozen=True, slots=True)
class Install:
    """Begin the log, and the hub's state with it, anew after the snapshot at ``last``, fetched as ``token``.

    A snapshot that is not installed at once is dropped.
    """

    token: int
    last: int


@dataclass(frozen=True, slots=True)
class Become:
    """Take up another status, in ``view``, whose primary is ``primary``, if it has one.

    While the status is normal, publishes go to the primary; otherwise they wait. A node that is no longer primary tells
    those who wait that the outcome is not known. The membership is told, too, with the replica's nodes once known.
    """

    status: Status
    view: int
    primary: int | None


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop for good and tell the membership why: a person must look. Nothing is published here; reads go on.

    ``after`` is the last operation that this log and the cluster's have in common, if that is what is wrong.
    """

    reason: str
    after: int | None = None


Effect: TypeAlias = (
    Send
    | Broadcast
    | Serve
    | Append
    | CutBack
    | Sync
    | Persist
    | Advance
    | FetchSnapshot
    | Install
    | Become
    | Halt
)
