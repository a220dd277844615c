"""Reads the log for a request, in a thread; an error of the log becomes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from headrace.errors import ArchiveError, HeadraceError, TrimmedError
from headrace.net.server.process import Server
from headrace.web.refusals import refusal

T = TypeVar("T")


async def in_thread(server: Server, work: Callable[..., T], *arguments: Any, at: int | None = None) -> T:
    """Do work that reads the log, if known from message ``at`` on, and return its result."""
    readers = server.readers
    share = readers.bulk if at is None else readers.at(server.hub.log, at, readers.bulk)
    try:
        return await asyncio.get_running_loop().run_in_executor(share, work, *arguments)
    except TrimmedError as error:
        raise refusal(web.HTTPGone, str(error)) from None
    except ArchiveError as error:
        raise refusal(web.HTTPServiceUnavailable, str(error)) from None
    except HeadraceError as error:
        raise refusal(web.HTTPInternalServerError, str(error)) from None
