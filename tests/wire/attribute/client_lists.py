"""Client lists of pushes, put together for tests."""

from __future__ import annotations

from collections.abc import Iterable


def pack_routes(routes: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Pairs of client and connector id as the client list of a matcher."""
    return b"".join(client + connector for client, connector in routes)
