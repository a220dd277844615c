"""The cluster's judgement: who is there (:class:`Membership`), and what the one sequence is (:class:`Replica`).

Nothing here has a socket, a disk, a thread or a clock. A driver calls a method for everything that happens, with the
time, and gets back a list of effects to carry out. This is what a driver has to do.

**Starting.** Load the state (:func:`load`), open the log with what the state holds to be committed
(``Log.open(committed=state.commit)``), and make a :class:`Replica` of both: ``commit`` is the log's head, ``tail`` its
tail, ``size`` the number of configured nodes. ``intact`` says whether everything that this node may have vouched for
is still there. It is not if there is no state, or one of another log (:attr:`Kept.log`). Otherwise, with
``fsync=always`` (``synced_only``) it is; without, it is only if the machine has not been booted since (compare
:attr:`Kept.boot` with ``/proc/sys/kernel/random/boot_id``). When in doubt it is not: the node then recovers from the
others, which takes a second. A state that does not match its checksum raises; it must not be taken for none. Then call
:meth:`Replica.start`. A replica takes the whole log that it is given to be synced: opening a log syncs it.

**Effects** are carried out in the order of the list, each finished before the next begins, and all before the next
input is handed over: what a door submits while it is told of a commit waits. If one fails (the disk is full, a sync
fails), the rest is dropped, and the replica with it, as if the process had been killed: make another from what the
disk has.

:class:`Persist`
    Write the state with :func:`save`, which syncs it. A barrier: nothing after it is done before it is.
:class:`Append`
    Append the messages ``first`` to ``last``, out of those that came as bulk of the parcel which this very call was
    given. They bring their numbers and times; a batch may begin before ``first`` and end after ``last``.
:class:`CutBack`
    ``Log.cut_back``. Whoever waits for those messages is told that they were not taken.
:class:`Sync`
    Start ``Log.sync`` in a thread, or count on one that begins after this. When it ends, call :meth:`Replica.synced`
    with the token and what it returned. It does not hold up the list.
:class:`Advance`
    ``Hub.committed``: show it at the doors, acknowledge it.
:class:`Send`, :class:`Broadcast`
    Put the parcel on the stream to that node, or to each node of the configured cluster but this one. If there is no
    stream, or no room, drop it: whatever matters is asked for again. The bulk of a Prepare is the batch just
    appended, encoded once for all.
:class:`Serve`
    Send what ``Log.read(first, last, uncommitted=True)`` gives as NewState. If the read takes place elsewhere or
    later, send it only if :attr:`Replica.view` is still that of the effect: another view may have cut the log back.
:class:`FetchSnapshot`
    Fetch a snapshot from that node in the background; then call :meth:`Replica.fetched` with its number, or None.
:class:`Install`
    Have the log begin behind the snapshot that was fetched under that token
    (:func:`headrace.log.start_after_snapshot.install`, with the log closed meanwhile), and the hub's state with it. A
    snapshot that is not installed at once is dropped.
:class:`Become`
    For the doors: while the status is normal, publishes go to ``primary``; otherwise they wait. A node that was
    primary, and is no longer, tells whoever waits that the outcome is not known. Then
    :meth:`Membership.replica_is`, and :meth:`Membership.began` with :attr:`Replica.nodes` once there are some.
:class:`Halt`
    :meth:`Membership.failed`, and a log line. Nothing is published here any more; reads go on.

**Inputs.** :meth:`Replica.receive` takes each parcel of replication that :meth:`Membership.refusal` lets pass. The
driver has made sure that the bulk of Prepare and NewState holds the messages ``first`` to ``last``, whole and in
order; bulk that is no testimony raises :class:`~headrace.errors.MalformedError`. Both are the peer's fault.
:meth:`Replica.appended` is the hub's commit rule: it is called after this node, while it is
:meth:`~Replica.accepting`, has numbered and appended a batch. :meth:`Replica.tick` is called at
:meth:`Replica.next_timer`, which is asked for after every input. :meth:`Replica.vouch` is an operator's word that the
cluster should go on with what this node has left.

Times are seconds of any clock that does not go back. Streams may lose, repeat and reorder parcels: nothing relies on
them for more than speed. What is numbered and not committed is bounded by the hub (``Hub.congested``).
"""

from headrace.cluster.durable_state import Kept, State, load, save
from headrace.cluster.effects import (
    Advance,
    Append,
    Become,
    Broadcast,
    CutBack,
    Effect,
    FetchSnapshot,
    Halt,
    Install,
    Persist,
    Send,
    Serve,
    Status,
    Sync,
)
from headrace.cluster.history import History
from headrace.cluster.membership import Membership
from headrace.cluster.replica import Replica
from headrace.cluster.replica_state import Timing

__all__ = [
    "Advance",
    "Append",
    "Become",
    "Broadcast",
    "CutBack",
    "Effect",
    "FetchSnapshot",
    "Halt",
    "History",
    "Install",
    "Kept",
    "Membership",
    "Persist",
    "Replica",
    "Send",
    "Serve",
    "State",
    "Status",
    "Sync",
    "Timing",
    "load",
    "save",
]
