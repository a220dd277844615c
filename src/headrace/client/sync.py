"""Any of our asynchronous clients, for code that has no event loop.

Strategy: the client lives in an event loop of its own, in a background thread. A method that is a coroutine there
blocks here; what is iterated over with ``async for`` there is iterated over with ``for`` here, and ``with`` stands for
``async with``. That holds for what its methods give as well: streams, subscriptions, members of consumers,
publishers. A future there is one of :mod:`concurrent.futures` here; anything else is passed through. Threads may share
a client: properties and methods that do not wait are evaluated in the background thread too, where nothing that they
look at changes meanwhile.

A step from thread to thread costs tens of microseconds. So a client that receives messages in batches has a method
``at_hand``, which gives a message without waiting if one is there, and only when there is none the loop is asked.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

import uvloop

from headrace.errors import ClosedError, UsageError

T = TypeVar("T")


class AsyncClient(Protocol):
    """What every asynchronous client has; those that are iterated over by message have ``at_hand`` besides."""

    async def open(self) -> Any:
        """Connect."""

    async def close(self) -> None:
        """Disconnect; it may be called again."""


@runtime_checkable
class AsyncPart(Protocol):
    """What a client makes for a part of its work that has to be waited for: a publisher."""

    async def publish(self, rows: Any, /) -> Any:
        """Send something."""

    async def flush(self) -> None:
        """Wait until all is sent."""


C = TypeVar("C", bound=AsyncClient)


class Sync(Generic[C]):
    """A client whose methods block; ``with`` opens and closes it. :func:`headrace.connect_sync` makes one.

    >>> import headrace, headrace.testing
    >>> with headrace.testing.Hub() as hub, headrace.connect_sync(hub.url("fyrehose"), from_seq=1) as backbone:
    ...     backbone.push(b"hello")
    ...     next(iter(backbone)).payload
    b'hello'
    """

    def __init__(self, client: C) -> None:
        self.client = client
        """The client itself, for what is to be done in its event loop: see :meth:`wait`."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taking = threading.RLock()
        self._changing = threading.Lock()

    def open(self) -> Self:
        """Connect; ``with`` does it."""
        if self._thread is not None:
            raise UsageError("a client is opened once: make another one")
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_serve, args=(started,), name="headrace-client", daemon=True)
        self._thread.start()
        try:
            self._loop = started.result()
        except Exception:
            self._thread = None
            raise
        try:
            self._wait(self.client.open())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Disconnect, and end the thread; it may be called again."""
        try:
            self._wait(self.client.close())
        except ClosedError:
            return
        finally:
            with self._changing:
                loop, self._loop = self._loop, None
            if loop is not None and self._thread is not None:
                loop.call_soon_threadsafe(loop.stop)
                self._thread.join()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = getattr(self.client, "__aexit__", None)
        try:
            if leave is not None:
                # What ``async with`` waits for at its end, ``with`` waits for: a link's publishes, say.
                with suppress(ClosedError):
                    self._wait(leave(kind, error, trace))
        finally:
            self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._attribute(self.client, name)

    def __iter__(self) -> Iterator[Any]:
        aiter(cast("AsyncIterator[Any]", self.client))
        return self

    def __next__(self) -> Any:
        client: Any = self.client
        with self._taking:
            message = client.at_hand()
            return self._step(client, self._taking) if message is None else message

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work of the client's event loop, such as a method of what the client made."""
        return self._wait(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> Begun[T]:
        """Begin such work, to wait for it later."""
        return Begun(self._begin(work))

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(getattr(type(owner), name, None), property):
            return self._look(partial(getattr, owner, name))
        attribute = getattr(owner, name)
        # What is at hand is taken without asking the loop: that is what it is for.
        return self._blocking(attribute) if callable(attribute) and name != "at_hand" else attribute

    def _look(self, look: Callable[[], T]) -> T:
        """Do what need not be waited for, where nothing changes meanwhile: in the loop's thread, if there is one."""
        if self._loop is None or threading.current_thread() is self._thread:
            return look()
        return self._wait(_looked(look))

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = partial(method, *args, **kwargs)
            result = bound() if inspect.iscoroutinefunction(method) else self._look(bound)
            if inspect.iscoroutine(result):
                result = self._wait(result)
            if isinstance(result, asyncio.Future):
                return self._begin(_result(result))
            return _Part(self, result) if isinstance(result, AsyncIterator | AsyncPart) else result

        return call

    def _step(self, iterator: AsyncIterator[Any], taking: threading.RLock) -> Any:
        # One thread at a time has what is iterated over; the others get theirs behind it.
        with taking:
            try:
                item = self._wait(_next(iterator))
            except ClosedError:
                if self._thread is None:
                    raise
                item = _END
        if item is _END:
            raise StopIteration
        return item

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return Begun(self._begin(work)).wait()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "a callback of the client cannot wait for the client: it runs in the client's thread"
            )
        with self._changing:
            if self._loop is None:
                work.close()
                raise ClosedError("the client is not open: write `with headrace.connect_sync(…) as …`")
            return asyncio.run_coroutine_threadsafe(work, self._loop)


class Begun(Generic[T]):
    """Work of a client's event loop that is under way."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        """Wait until it is done; return what it came to."""
        try:
            return self._future.result()
        except CancelledError:
            raise ClosedError("the client was closed meanwhile") from None
        except BaseException:
            # Ctrl-C came while waiting; on a future that is done this does nothing.
            self._future.cancel()
            raise

    def cancel(self) -> None:
        """Let it be, if it is not done."""
        self._future.cancel()


class _Part:
    """What a client's method gave that is asynchronous itself: a stream, a subscription, a publisher.

    Its methods block, ``for`` and ``with`` stand for ``async for`` and ``async with``.
    """

    def __init__(self, client: Sync[Any], part: Any) -> None:
        self._client = client
        self._part = part
        # A message at hand is taken without the loop's knowing, also while a part takes from the same place. Elsewhere
        # nobody who waits for one stream keeps others from theirs.
        self._taking = client._taking if hasattr(client.client, "at_hand") else threading.RLock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._client._attribute(self._part, name)

    def __iter__(self) -> Self:
        aiter(self._part)
        return self

    def __next__(self) -> Any:
        return self._client._step(self._part, self._taking)

    def __enter__(self) -> Self:
        self._client._wait(self._part.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client._wait(self._part.__aexit__(kind, error, trace))


_END: Final = object()


async def _looked(look: Callable[[], T]) -> T:
    return look()


async def _result(future: asyncio.Future[T]) -> T:
    return await future


async def _next(iterator: AsyncIterator[T]) -> T | object:
    return await anext(iterator, _END)


def _serve(started: Future[asyncio.AbstractEventLoop]) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            loop = runner.get_loop()
            started.set_result(loop)
            loop.run_forever()
    except BaseException as error:
        if started.done():
            raise
        # There is no loop (too many open files, say): whoever waits for it is told.
        started.set_exception(error)
