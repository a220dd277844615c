"""A hub for tests: in this process, on free ports, its data gone when the test is over.

    from headrace.testing import Hub

    def test_orders_are_announced():
        with Hub() as hub:
            place_order(hub.url("tube"))                  # your code, which publishes
            [message] = hub.wait_for(1, topic="orders/*")
            assert message.payload == b"one mill wheel"

It is the whole hub, with every door, in a thread of its own: code that works with it works with ``headrace serve``.
Settings are given by their dotted names: ``Hub({"services.auto": True, "log.fsync": "always"})``.
As a pytest fixture::

    @pytest.fixture
    def hub():
        with Hub() as hub:
            yield hub
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Self, Unpack, overload

from headrace import web
from headrace.client.base import Client
from headrace.client.connect import (
    FyrehoseScheme,
    LinkScheme,
    PublisherScheme,
    SdkScheme,
    SppScheme,
    connect,
    connect_sync,
)
from headrace.client.fyrehose.client import FyrehoseClient, FyrehoseOptions
from headrace.client.link.client import LinkClient, LinkOptions
from headrace.client.publisher.client import PublisherClient, PublisherOptions
from headrace.client.sdk.client import SdkClient, SdkOptions
from headrace.client.spp.client import SppClient, SppOptions
from headrace.client.sync import (
    SyncClient,
    SyncFyrehoseClient,
    SyncLinkClient,
    SyncPublisherClient,
    SyncSdkClient,
    SyncSppClient,
)
from headrace.config import DOORS, Settings
from headrace.errors import ClosedError, UsageError
from headrace.hub.filters import Filter
from headrace.message import Message, messages
from headrace.net.server.process import Server
from headrace.platforms import new_event_loop
from headrace.protocols import SCHEMES

__all__ = ["Hub"]

_SCHEMES: Final = {"tube_tcp": "tube", "tube_ws": "ws"}
"""The schemes of doors that have another name."""
_POLL: Final = 0.005


class Hub:
    """A running hub, between ``with`` and the end of its block.

    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     link.publish(b"hello", topic="greetings").first
    ...     [message.payload for message in hub.messages()]
    1
    [b'hello']
    """

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, data: str | Path | None = None
    ) -> None:
        """``data`` keeps the hub's files in a directory of yours, for tests that restart it."""
        self._given = dict(settings or {})
        self._data = None if data is None else Path(data)
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._server: Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; when this returns, every door accepts. ``with`` does it."""
        if self._thread is not None:
            raise UsageError("this hub runs already")
        free = {f"listen.{door}": "127.0.0.1:0" for door in DOORS}
        values = {**free, "node.name": "testing", **self._given}
        settings = Settings().override(values, source="headrace.testing")
        data = self._data
        if data is None:
            self._directory = tempfile.TemporaryDirectory(prefix="headrace-testing-")
            data = Path(self._directory.name)
        settings = settings.override({"node.data": str(data)}, source="headrace.testing")
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(settings, started), name="headrace-testing", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread = None
            self._clean()
            raise

    def stop(self) -> None:
        """Stop as ``SIGTERM`` would, and remove what it wrote. ``with`` does it."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()
            self._server = None
            self._clean()

    @property
    def doors(self) -> Mapping[str, str]:
        """Each door's ``host:port``, by its name."""
        return self._running.doors

    def url(self, scheme: str) -> str:
        """Return the URL of a door by its scheme, for :func:`headrace.connect`: ``hub.url("spp")``."""
        scheme = scheme.removesuffix("://")
        doors = self.doors
        door = SCHEMES.get(scheme, scheme)
        if door not in doors:
            raise UsageError(f"no door {scheme!r} is open here; there are {', '.join(doors)}")
        named = scheme if scheme in SCHEMES else _SCHEMES.get(door, scheme)
        return f"{named}://{doors[door]}"

    @overload
    def connect(self, scheme: LinkScheme = ..., **options: Unpack[LinkOptions]) -> LinkClient: ...
    @overload
    def connect(self, scheme: FyrehoseScheme, **options: Unpack[FyrehoseOptions]) -> FyrehoseClient: ...
    @overload
    def connect(self, scheme: SppScheme, **options: Unpack[SppOptions]) -> SppClient: ...
    @overload
    def connect(self, scheme: SdkScheme, **options: Unpack[SdkOptions]) -> SdkClient: ...
    @overload
    def connect(self, scheme: PublisherScheme, **options: Unpack[PublisherOptions]) -> PublisherClient: ...
    @overload
    def connect(self, scheme: str, **options: object) -> Client: ...

    def connect(self, scheme: str = "tube://", **options: Any) -> Client:
        """Make an asynchronous client of a door, for ``async with``: ``hub.connect("spp://")``."""
        return connect(self.url(scheme), **options)

    @overload
    def connect_sync(self, scheme: LinkScheme = ..., **options: Unpack[LinkOptions]) -> SyncLinkClient: ...
    @overload
    def connect_sync(
        self, scheme: FyrehoseScheme, **options: Unpack[FyrehoseOptions]
    ) -> SyncFyrehoseClient: ...
    @overload
    def connect_sync(self, scheme: SppScheme, **options: Unpack[SppOptions]) -> SyncSppClient: ...
    @overload
    def connect_sync(self, scheme: SdkScheme, **options: Unpack[SdkOptions]) -> SyncSdkClient: ...
    @overload
    def connect_sync(
        self, scheme: PublisherScheme, **options: Unpack[PublisherOptions]
    ) -> SyncPublisherClient: ...
    @overload
    def connect_sync(self, scheme: str, **options: object) -> SyncClient[Client]: ...

    def connect_sync(self, scheme: str = "tube://", **options: Any) -> SyncClient[Client]:
        """Make a client of a door whose methods block, for ``with``."""
        return connect_sync(self.url(scheme), **options)

    def messages(self, *, topic: str = "**", origin: str | None = None) -> list[Message]:
        """Return every committed message, or those of a topic pattern and an origin."""
        log = self._running.hub.log
        wanted = Filter(topic, None if origin is None else [origin])
        return [
            message for batch in log.scan(log.first) for message in messages(wanted.apply(batch.to_arrow()))
        ]

    def wait_for(
        self, count: int, *, topic: str = "**", origin: str | None = None, timeout: float = 10.0
    ) -> list[Message]:
        """Wait until there are ``count`` messages, or fail with what there is after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while len(found := self.messages(topic=topic, origin=origin)) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(found)} messages of {count} after {timeout:g} s: {found[-5:]}")
            time.sleep(_POLL)
        return found

    @property
    def status(self) -> dict[str, object]:
        """The hub's status, as ``/api/status`` has it."""
        return self._running.status()

    @property
    def _running(self) -> Server:
        if self._server is None:
            raise ClosedError("this hub is not running: use it in its with block")
        return self._server

    def _run(self, settings: Settings, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(settings, started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, settings: Settings, started: Future[None]) -> None:
        server = Server(settings, http=web.start)
        await server.start()
        self._loop, self._stop, self._server = asyncio.get_running_loop(), asyncio.Event(), server
        started.set_result(None)
        await self._stop.wait()
        await server.drain()

    def _clean(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None
