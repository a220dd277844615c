from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headrace.tube import Handler, TubeOptions, TubeServer, serve

Start = Callable[..., Awaitable[TubeServer]]


@pytest.fixture(params=["tcp", "websocket"])
def transport(request: pytest.FixtureRequest) -> str:
    """Both transports behave the same: most tests take this and do not care."""
    name: str = request.param
    return name


@pytest.fixture
async def start(transport: str) -> AsyncIterator[Start]:
    """Start servers that are closed with the test."""
    async with AsyncExitStack() as stack:

        async def start_server(
            handler: Handler, options: TubeOptions | None = None, **more: Any
        ) -> TubeServer:
            return await stack.enter_async_context(
                serve(handler, "127.0.0.1", 0, transport=transport, options=options or TubeOptions(), **more)
            )

        yield start_server
