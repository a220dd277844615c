"""Runs work that would hold up the event loop in threads, and answers its requests on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from headrace.errors import HeadraceError, StorageError
from headrace.net.link.connection import LinkConnection

logger = logging.getLogger("headrace")

T = TypeVar("T")


class BackgroundWork:
    """Threads for the requests of one hub's link."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    def run(
        self, function: Callable[..., T], *arguments: Any, share: Executor | None = None
    ) -> asyncio.Future[T]:
        """Call a function in a thread."""
        return asyncio.get_running_loop().run_in_executor(share or self._threads, function, *arguments)

    def answer(
        self,
        connection: LinkConnection,
        request_id: int,
        then: Callable[[T], None],
        function: Callable[..., T],
        *arguments: Any,
        failed: Callable[[], None] = lambda: None,
        share: Executor | None = None,
    ) -> None:
        """Call ``function`` in a thread, then ``then`` with its result; a Headrace error in either is the answer.

        Any other error of the thread, such as a lack of memory, is reported and answered as a storage error.
        """

        def done(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                return
            try:
                result = future.result()
            except HeadraceError as error:
                failed()
                connection.fail(request_id, error)
                return
            except Exception as error:
                # The client must get an answer, or it would wait for ever.
                failed()
                logger.error("a request has failed", exc_info=error)
                connection.fail(
                    request_id, StorageError(f"the hub has failed: {type(error).__name__} {error}")
                )
                return
            try:
                then(result)
            except HeadraceError as error:
                connection.fail(request_id, error)

        self.run(function, *arguments, share=share).add_done_callback(done)
