"""A hub process as these tests use it: what is in its log, and how it is sealed and trimmed."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.hubprocess import HubProcess

import headrace
from headrace.client.link.client import Extent
from headrace.log.frame_file import HEADER_BYTES
from headrace.message import Message, messages

SECONDS = 60.0

TRIMMING = ("log.retain_bytes=28000", "log.segment_bytes=20000", "log.segment_seconds=0.1")
"""Settings of a hub whose log loses its beginning soon, with room for some entries behind it; see :func:`trimmed`."""


class Hub(HubProcess):
    @property
    def servers(self) -> str:
        return self.doors["tube_tcp"]

    def link(self, **options: Any) -> Any:
        return headrace.connect_sync(f"tube://{self.servers}", **options)

    def publish(self, payloads: Sequence[bytes], **options: Any) -> tuple[int, int]:
        with self.link() as link:
            first, last = link.publish(payloads, **options)
            return first, last

    def head(self) -> Extent:
        with self.link() as link:
            extent: Extent = link.head()
            return extent

    def messages(self, **options: Any) -> list[Message]:
        with self.link() as link:
            return [message for rows in link.read(**options) for message in messages(rows)]

    def payloads(self, **options: Any) -> list[bytes]:
        return [message.payload for message in self.messages(**options)]

    def seal(self) -> None:
        seal(self)


def seal(hub: HubProcess) -> None:
    """Have a hub seal all that it has committed."""
    asked = urllib.request.Request(
        f"http://{hub.doors['http']}/api/log/seal", b"", {"X-Headrace": "1"}, method="POST"
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        answer.read()


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def trimmed(hub: Hub) -> None:
    """Fill a log until its beginning is gone, and wait until it stays as it is."""
    with hub.link() as link:
        for _ in range(40):
            link.publish([bytes(500)] * 4)
        path = Path(link.head().path)

        def settled() -> bool:
            try:
                tails = [tail.stat().st_size for tail in path.glob("*.open")]
            except FileNotFoundError:
                # It was sealed while it was looked for.
                return False
            return tails == [HEADER_BYTES] and link.status()["disk"]["bytes"] < 20_000

        until(settled)
        assert link.head().first > 4
