"""What a replica wants done; :mod:`headrace.cluster` says how, and in which order."""

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
    """Send a parcel to one node, ``bulk`` behind it."""

    to: int
    body: Replication
    bulk: bytes = b""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send a parcel to every other node of the configured cluster.

    The bulk of a Prepare is the messages that it numbers, which the driver has just appended.
    """

    body: Replication


@dataclass(frozen=True, slots=True)
class Serve:
    """Send ``to`` a NewState of ``view`` with the log's messages from ``first`` on, none past ``last``: a parcel full.

    Where there is none, or the log no longer has ``first``, a NewState without bulk: its ``first`` is the next
    number, or the oldest one kept, and its ``last`` the number before that.
    """

    to: int
    view: int
    first: int
    last: int
    commit: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append messages ``first`` to ``last`` of those that came with the parcel just received."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CutBack:
    """Remove every message after ``last`` from the log, so that it lasts."""

    last: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Bring the log to the disk, at least up to ``last``; then call ``synced`` with this ``token``."""

    token: int
    last: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Bring the state to the disk before any effect that follows."""

    state: DurableState


@dataclass(frozen=True, slots=True)
class Advance:
    """Everything up to ``commit`` is committed: show it, acknowledge it."""

    commit: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Fetch a snapshot that reaches past ``after`` from ``source``; then call ``fetched`` with this ``token``."""

    token: int
    source: int
    after: int


@dataclass(frozen=True, slots=True)
class Install:
    """Begin the log anew behind the snapshot at ``last``, which was fetched as ``token``, so that it lasts."""

    token: int
    last: int


@dataclass(frozen=True, slots=True)
class Become:
    """The replica's part is now another: in ``view``, whose primary is ``primary``, if it has one."""

    status: Status
    view: int
    primary: int | None


@dataclass(frozen=True, slots=True)
class Halt:
    """The node cannot go on: a person must look. Nothing else follows, ever."""

    reason: str


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
