"""Checking that a frontend's log is the beginning of its upstream hub's.

Two logs of one uuid are equal as far as both reach, unless one of them lost its end and continued without it (a power
failure, a restored backup). So the frontend's last message is compared with the one that has its number upstream, with
its whole envelope. A mismatch is an error that names both: a copy of something else must never be served.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headrace.client.link.requests import LinkSession, Make, check
from headrace.client.link.rows import received_rows
from headrace.errors import UnexpectedError, UsageError
from headrace.log import Log
from headrace.log.snapshot import Snapshot, parse
from headrace.message import Batch
from headrace.wire.link import requests as ask
from headrace.wire.link.message import LinkMessage

CREDIT: Final = 8 << 20

_PATIENCE_SECONDS: Final = 5.0
"""Seconds that an upstream hub may lag: a frontend of a frontend, or of several nodes, may be ahead of it."""
_LOOK_SECONDS: Final = 0.1


async def meet(session: LinkSession, log: Log) -> bool:
    """Compare a log with the upstream hub's; ``False`` if that one no longer has what follows ours."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    while True:
        head = (await call(session, lambda n: ask.HeadRequest(id=n))).head
        theirs = head.get("log")
        if theirs != str(log.uuid):
            raise UsageError(
                f"{log.directory} has the log {log.uuid}, the upstream hub at {session.tube.peer} the log {theirs}:"
                " choose that log's hub, or an empty data directory"
            )
        if type(head.get("head")) is not int or type(head.get("first")) is not int:
            raise UnexpectedError("link", "head", dict(head), "first and head as whole numbers")
        if head["head"] >= log.tail:
            break
        if asyncio.get_running_loop().time() > deadline:
            raise UsageError(
                f"{log.directory} ends with message {log.tail}, the upstream hub at {session.tube.peer} with"
                f" {head['head']}: it has lost its end, or is another copy; choose an empty data directory"
            )
        await asyncio.sleep(_LOOK_SECONDS)
    if log.tail + 1 < head["first"]:
        return False
    if log.first <= log.tail and log.tail >= head["first"]:
        await _compare(session, log)
    return True


async def fetch_snapshot(session: LinkSession) -> Snapshot:
    """Fetch a snapshot of the upstream hub's state."""
    inbox = session.stream(lambda n: ask.SnapshotRequest(id=n, credit=CREDIT), CREDIT)
    pieces = []
    while (message := await inbox.get()) is not None:
        pieces.append(bytes(message.body))
    return parse(b"".join(pieces), "the upstream hub's snapshot")


async def call(session: LinkSession, make: Make[Any], body: memoryview | None = None) -> LinkMessage:
    """Make a request, and raise a refusal."""
    message = await session.call(make, body)
    check(message)
    return message


async def _compare(session: LinkSession, log: Log) -> None:
    tail = log.tail
    inbox = session.stream(lambda n: ask.ReadRequest(id=n, first=tail, last=tail), CREDIT)
    theirs: list[Batch] = []
    while (message := await inbox.get()) is not None:
        if message.head.get("event") == "rows":
            theirs.append(Batch.over(received_rows(message, entries=True)))
    mine = [batch.slice(tail - batch.first, tail - batch.first + 1) for batch in log.read(tail, tail)]
    if [list(batch) for batch in mine] != [list(batch) for batch in theirs]:
        raise UsageError(
            f"message {tail} in {log.directory} is another one than at the upstream hub {session.tube.peer}, though"
            f" both are of log {log.uuid}: one of them lost its end and continued; choose an empty data directory"
        )
