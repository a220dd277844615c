"""``POST /api/sql``: a query over the log for the dashboard, read-only and bounded.

Each query has a process of its own (:mod:`headrace.client.sql.worker`), which is ended when it takes too long; few run
at a time. Reading ``messages`` needs the right to read every message; the state's tables need ``admin``.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, Final, cast

import msgspec
from aiohttp import web

from headrace.client.sql import asks_for_state
from headrace.client.sql.worker import Question
from headrace.hub.access.principal import Action
from headrace.net.server.process import Server
from headrace.web.access.rights import check, principal_of
from headrace.web.answers import as_json, body_as
from headrace.web.refusals import refusal

ASK: Final = "/api/sql"
SECONDS: Final = 10.0
"""How long a query may take."""
AT_A_TIME: Final = 2
MAX_QUERY: Final = 10_000
MAX_ANSWER: Final = 8 << 20


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A query, and the message that it is to be exact for."""

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_QUERY)]
    as_of: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SqlHandlers:
    """The handler of queries, and how many it runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._running = 0

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handler."""
        return [web.post(ASK, self._ask)]

    async def _ask(self, request: web.Request) -> web.Response:
        asked = await body_as(request, Asked, "not a question", SECONDS)
        if not principal_of(request).reads_everything:
            check(self._server.access, request, Action.READ, "**")
            raise refusal(web.HTTPForbidden, "a query can be about every message: it needs the right read **")
        if asks_for_state(asked.query):
            check(self._server.access, request, Action.ADMIN)
        if find_spec("duckdb") is None:
            raise refusal(web.HTTPNotImplemented, "SQL needs DuckDB: pip install 'headrace[sql]'")
        if self._running >= AT_A_TIME:
            raise refusal(web.HTTPTooManyRequests, f"{self._running} queries are running: ask again later")
        log = self._server.hub.log
        question = Question(asked.query, str(log.directory.absolute()), log.head, asked.as_of)
        self._running += 1
        try:
            answer = await _answered(msgspec.json.encode(question))
        finally:
            self._running -= 1
        if b'"error"' in answer[:9]:
            why = msgspec.json.decode(answer, type=dict[str, str])["error"]
            raise refusal(web.HTTPUnprocessableEntity, why)
        return as_json(msgspec.Raw(answer))


async def _answered(question: bytes) -> bytes:
    """Let a process answer; it ends with this task."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.client.sql.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    stdin, stdout = cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout)
    try:
        async with asyncio.timeout(SECONDS):
            stdin.write(question)
            stdin.close()
            try:
                # No more is taken into the hub's memory than it passes on.
                await stdout.readexactly(MAX_ANSWER + 1)
            except asyncio.IncompleteReadError as whole:
                answer = whole.partial
                await process.wait()
            else:
                raise refusal(web.HTTPUnprocessableEntity, "the query was ended: its answer is too large")
    except TimeoutError:
        raise refusal(
            web.HTTPUnprocessableEntity, f"the query was ended: it took more than {SECONDS:g} s"
        ) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            # What is in the pipe keeps it open.
            await stdout.read()
            await process.wait()
    if process.returncode:
        raise refusal(web.HTTPUnprocessableEntity, "the query was ended: it takes too much memory")
    return answer
