"""Checking that a frontend's log is the beginning of its upstream hub's.

Two logs of one uuid are equal as far as both reach, unless one of them lost its end and continued without it (a power
failure, a restored backup). So the frontend's last operation, a message or an entry, is compared with the one in its
position upstream, with its whole envelope. A mismatch is an error that names both: a copy of something else must never
be served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from headrace.client.link.requests import LinkSession, Make, check
from headrace.errors import UnexpectedError, UnreachableError, UsageError
from headrace.log import Log
from headrace.log.replication_frames import unpack
from headrace.log.snapshots.snapshot import Snapshot, parse
from headrace.message import Batch
from headrace.wire.link import requests as ask
from headrace.wire.link.message import Body, LinkMessage

CREDIT: Final = 8 << 20

_PATIENCE_SECONDS: Final = 5.0
"""Seconds that an upstream hub may lag: a frontend of a frontend, or of several nodes, may be ahead of it."""
_LOOK_SECONDS: Final = 0.1

T = TypeVar("T")


async def meet(session: LinkSession, log: Log, silence: float) -> bool:
    """Compare a log with the upstream hub's; ``False`` if that one no longer has what follows ours.

    Raises :class:`~headrace.errors.UnreachableError` if it gives no answer for ``silence`` seconds.
    """
    deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    while True:
        head = (await head_of(session, silence)).head
        theirs = head.get("log")
        if theirs != str(log.uuid):
            raise UsageError(
                f"{log.directory} has the log {log.uuid}, the upstream hub at {session.tube.peer} the log {theirs}:"
                " choose that log's hub, or an empty data directory"
            )
        first_op, head_op = _operations(head)
        if head_op >= log.tail_op:
            break
        if asyncio.get_running_loop().time() > deadline:
            raise UsageError(
                f"{log.directory} ends with message {log.tail}, the upstream hub at {session.tube.peer} with"
                f" {head.get('head')}: it has lost its end, or is another copy; choose an empty data directory"
            )
        await asyncio.sleep(_LOOK_SECONDS)
    if log.tail_op + 1 < first_op:
        return False
    if log.first_op <= log.tail_op and log.tail_op >= first_op:
        await _compare(session, log, silence)
    return True


async def fetch_snapshot(session: LinkSession, silence: float) -> Snapshot:
    """Fetch a snapshot of the upstream hub's state."""
    inbox = session.stream(lambda n: ask.SnapshotRequest(id=n, credit=CREDIT), CREDIT)
    pieces = []
    while (message := await answered(session, inbox.get(), silence)) is not None:
        pieces.append(bytes(message.body))
    return parse(b"".join(pieces), "the upstream hub's snapshot")


async def head_of(session: LinkSession, silence: float) -> LinkMessage:
    """Ask for the upstream hub's head."""
    return await answered(session, call(session, lambda n: ask.HeadRequest(id=n)), silence)


async def answered(session: LinkSession, answer: Awaitable[T], silence: float) -> T:
    """Wait for what needs no more than a look; a hub that is silent for so long is as good as lost."""
    try:
        async with asyncio.timeout(silence):
            return await answer
    except TimeoutError:
        raise UnreachableError(str(session.tube.peer), f"it has not answered for {silence:g} s") from None


async def call(session: LinkSession, make: Make[Any], body: Body | None = None) -> LinkMessage:
    """Make a request, and raise a refusal."""
    message = await session.call(make, body)
    check(message)
    return message


def received_operations(message: LinkMessage, log: Log) -> list[Batch]:
    """Read an event of a ``replicate``: batches of this log, messages and entries."""
    first, last = message.head.get("first"), message.head.get("last")
    if type(first) is not int or type(last) is not int:
        raise UnexpectedError("link", "ops", dict(message.head), "first and last as whole numbers")
    uuid, batches = unpack(bytes(message.body), first, last)
    if uuid != log.uuid:
        raise UnexpectedError("link", "ops", str(uuid), f"must be of log {log.uuid}")
    return batches


def _operations(head: Mapping[str, Any]) -> tuple[int, int]:
    """Return the first and the last operation in the answer to ``head``."""
    match head.get("ops"):
        case [int(first), int(last)]:
            return first, last
        case wrong:
            raise UnexpectedError("link", "ops", wrong, "the first and the last as whole numbers")


async def _compare(session: LinkSession, log: Log, silence: float) -> None:
    tail = log.tail_op
    inbox = session.stream(lambda n: ask.ReplicateRequest(id=n, from_op=tail, last_op=tail), CREDIT)
    theirs: list[Batch] = []
    while (message := await answered(session, inbox.get(), silence)) is not None:
        theirs += received_operations(message, log)
    mine = log.read_ops(tail, tail)
    if [list(batch) for batch in mine] != [list(batch) for batch in theirs]:
        what = f"the entry after message {log.tail}" if mine[0].is_entries else f"message {log.tail}"
        raise UsageError(
            f"{what} in {log.directory} is another one than at the upstream hub {session.tube.peer}, though"
            f" both are of log {log.uuid}: one of them lost its end and continued; choose an empty data directory"
        )
