"""How code without an event loop uses an asynchronous client.

Strategy: the client lives in an event loop of its own, in a background thread. A coroutine there is a blocking call
here; ``for`` stands for ``async for``, and ``with`` for ``async with``; likewise for the streams, subscriptions,
consumers and publishers that its methods make. Threads may share a client: properties and methods that do not wait are
evaluated in the background thread too, where nothing changes meanwhile.

A class in :mod:`headrace.client.sync` declares its methods by descriptors such as :class:`Blocking`. Type checkers take
the signature from the asynchronous method; when the class is made, it becomes a plain method with the same signature
and docstring.

A switch of threads costs tens of microseconds. So a client that receives messages in batches has a method ``at_hand``,
which returns the next message of the current batch; only when there is none does it ask the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from headrace.client.base import Client
from headrace.errors import ClosedError, UsageError
from headrace.platforms import new_event_loop

P = ParamSpec("P")
T = TypeVar("T")
X = TypeVar("X")
S = TypeVar("S")
C_co = TypeVar("C_co", bound=Client, covariant=True)

_END: Final = object()


class Begun(Generic[T]):
    """Work in a client's event loop that is under way."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        """Wait until it is done, and return its result."""
        try:
            return self._future.result()
        except CancelledError:
            raise ClosedError("the client was closed meanwhile") from None
        except BaseException:
            # Ctrl-C came while waiting; on a future that is done this does nothing.
            self._future.cancel()
            raise

    def cancel(self) -> None:
        """Give it up, unless it is done."""
        self._future.cancel()


class LoopThread:
    """An event loop in a background thread."""

    def __init__(self) -> None:
        self.started = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changing = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether the loop runs."""
        return self._loop is not None

    @property
    def here(self) -> bool:
        """Whether this is the thread of the loop."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the loop; it is started once, unless it fails to start."""
        if self.started:
            raise UsageError("a client is opened once: make another one")
        starting: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_serve, args=(starting,), name="headrace-client", daemon=True)
        self._thread.start()
        self._loop = starting.result()
        self.started = True

    def stop(self) -> None:
        """End the loop and its thread."""
        with self._changing:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work in the loop."""
        if self.here:
            work.close()
            raise UsageError("a client's callback cannot wait for the client: it runs in the client's thread")
        with self._changing:
            if self._loop is None:
                work.close()
                raise ClosedError("the client is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the loop."""
        return Begun(self.begin(work)).wait()

    def look(self, look: Callable[[], T]) -> T:
        """Call a function that does not wait, in the loop's thread if it runs: nothing changes meanwhile there."""
        if self._loop is None or self.here:
            return look()
        return self.wait(_looked(look))


class AtUrl(Generic[P]):
    """The ``at`` of a client's class, declared in its synchronous one."""

    def __init__(self, at: Callable[P, object]) -> None:
        self._at = at

    def __get__(self, owner: object, kind: Callable[[Any], S]) -> Callable[P, S]:
        @wraps(self._at)
        def at(*args: P.args, **options: P.kwargs) -> S:
            return kind(self._at(*args, **options))

        return at


class Property(Generic[T]):
    """A property or attribute of an asynchronous class, declared in a synchronous one."""

    def __init__(self, described: object = None, *, opens: bool = False) -> None:
        """``opens``: it is known only once the client is open."""
        self.__doc__ = described.__doc__
        self._opens = opens

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        if owner is None:
            return cast("T", self)
        if self._opens:
            owner._prepare()
        return cast("T", owner._thread.look(partial(getattr, owner._async, self._name)))


class SyncObject:
    """An asynchronous object whose methods block."""

    _async: Any
    _thread: LoopThread
    _taking: threading.RLock

    def _prepare(self) -> None:
        """Make sure that the loop runs."""


class SyncPart(SyncObject):
    """An object that a client made: a stream, a subscription, a publisher."""

    def __init__(self, client: SyncObject, made: Any) -> None:
        self._async = made
        self._thread = client._thread
        # A part of a client with ``at_hand`` shares its messages, and so its lock. Other parts have a lock each, so
        # that waiting for one stream does not hold up another.
        self._taking = client._taking if hasattr(client._async, "at_hand") else threading.RLock()


class SyncIterator(SyncPart, Generic[T]):
    """An iteration that blocks.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("fyrehose://", from_seq=1) as client:
    ...     client.publish([b"a", b"b"])
    ...     next(client.batches()).first
    1
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        item: T = _step(self._thread, self._async, self._taking)
        return item


class SyncContext(SyncPart):
    """A part that ``with`` opens and closes."""

    def __enter__(self) -> Self:
        self._thread.wait(self._async.__aenter__())
        return self

    def __exit__(self, *why: Any) -> None:
        self._thread.wait(self._async.__aexit__(*why))


class SyncClient(SyncObject, Generic[C_co]):
    """A client whose methods block; :func:`headrace.connect_sync` makes one.

    It opens on first use, and closes when the program ends; ``with`` opens and closes it explicitly.

    >>> import headrace, headrace.testing
    >>> with headrace.testing.Hub() as hub:
    ...     link = headrace.connect_sync(hub.url("tube"))
    ...     link.publish(b"hello").first, link.connected
    ...     link.close()
    (1, True)
    """

    connected = Property[bool](Client.connected)
    connects = Property[int](Client.connects)

    def __init__(self, client: C_co) -> None:
        self._async = client
        self._thread = LoopThread()
        self._taking = threading.RLock()
        self._opening = threading.RLock()
        self._opened = False

    @property
    def client(self) -> C_co:
        """The asynchronous client, for work in its event loop: see :meth:`wait`."""
        return cast("C_co", self._async)

    def open(self) -> Self:
        """Connect; the first use does it."""
        with self._opening:
            self._thread.start()
            atexit.register(self._close_at_exit)
            try:
                self._thread.wait(self._async.open())
            except BaseException:
                self.close()
                raise
            finally:
                self._opened = True
        return self

    def close(self) -> None:
        """Disconnect, and end the thread; it may be called again."""
        atexit.unregister(self._close_at_exit)
        try:
            with suppress(ClosedError):
                self._thread.wait(self._async.close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self if self._thread.running else self.open()

    def __exit__(self, *why: Any) -> None:
        try:
            # At its end ``with`` waits for whatever ``async with`` does: a link's publishes, say.
            with suppress(ClosedError):
                self._thread.wait(self._async.__aexit__(*why))
        finally:
            self.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the client's event loop, such as a method of its :attr:`client`."""
        self._prepare()
        return self._thread.wait(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> Begun[T]:
        """Begin work in the client's event loop, to wait for it later."""
        self._prepare()
        return Begun(self._thread.begin(work))

    def _prepare(self) -> None:
        if not self._opened and not self._thread.here:
            # Another thread may be opening it: then this one waits, as it could not be used yet.
            with self._opening:
                if not self._thread.started:
                    self.open()

    def _close_at_exit(self) -> None:
        self.__exit__(None, None, None)


class SyncReceiver(SyncClient[C_co], Generic[C_co, T]):
    """A client that is itself iterated over."""

    def __iter__(self) -> Iterator[T]:
        self._prepare()
        aiter(self._async)
        return self

    def __next__(self) -> T:
        self._prepare()
        with self._taking:
            message: T | None = self._async.at_hand()
            return _step(self._thread, self._async, self._taking) if message is None else message

    def at_hand(self) -> T | None:
        """The next message of the batch at hand, without waiting; ``None`` if there is none."""
        message: T | None = self._async.at_hand()
        return message


class SyncMethod(Generic[P, T]):
    """A method of an asynchronous class, declared in a synchronous one: the base of all kinds."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        method = self._method.__name__

        @wraps(self._method)
        def call(this: SyncObject, *args: Any, **kwargs: Any) -> Any:
            this._prepare()
            return self.finish(this, partial(getattr(this._async, method), *args, **kwargs))

        call.__name__, call.__qualname__ = name, f"{owner.__qualname__}.{name}"
        setattr(owner, name, call)

    def __get__(self, owner: object, kind: type | None = None) -> Callable[P, T]:
        raise AttributeError("a method of a class that was never made")

    def finish(self, this: Any, call: Callable[[], Any]) -> T:
        """Call the asynchronous method, and return the synchronous result."""
        raise NotImplementedError


class Blocking(SyncMethod[P, T]):
    """A coroutine, as a call that blocks."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        super().__init__(method)

    def finish(self, this: Any, call: Callable[[], Any]) -> T:
        """Wait for the coroutine."""
        return cast("T", this._thread.wait(call()))


class Ahead(SyncMethod[P, Future[T]]):
    """A coroutine that returns a future, as a call that returns one of :mod:`concurrent.futures`."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, asyncio.Future[T]]]) -> None:
        super().__init__(method)

    def finish(self, this: Any, call: Callable[[], Any]) -> Future[T]:
        """Wait for the coroutine, and pass its future on."""
        return cast("Future[T]", this._thread.begin(_result(this._thread.wait(call()))))


class Making(SyncMethod[P, S]):
    """A method that makes an asynchronous object, as one that makes the synchronous counterpart."""

    def __init__(self, method: Callable[Concatenate[Any, P], X], part: Callable[[SyncObject, X], S]) -> None:
        super().__init__(method)
        self._part = part

    def finish(self, this: Any, call: Callable[[], Any]) -> S:
        """Wrap what the method makes."""
        return self._part(this, this._thread.look(call))


def _step(thread: LoopThread, iterator: AsyncIterator[T], taking: threading.RLock) -> T:
    # One thread at a time uses the iterator.
    with taking:
        try:
            item = thread.wait(_next(iterator))
        except ClosedError:
            item = _END
    if item is _END:
        raise StopIteration
    return cast("T", item)


async def _looked(look: Callable[[], T]) -> T:
    return look()


async def _result(future: asyncio.Future[T]) -> T:
    return await future


async def _next(iterator: AsyncIterator[T]) -> T | object:
    return await anext(iterator, _END)


def _serve(starting: Future[asyncio.AbstractEventLoop]) -> None:
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            loop = runner.get_loop()
            starting.set_result(loop)
            loop.run_forever()
    except BaseException as error:
        if starting.done():
            raise
        # There is no loop (too many open files, say): raise in the waiting thread.
        starting.set_exception(error)
