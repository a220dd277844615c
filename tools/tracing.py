"""An event loop that knows which functions one event leads to, for ``tools/walks.py``.

A walk begins when bytes arrive on a chosen connection and ends when bytes are written to another. In between, the loop
follows cause and effect:

- a callback that the walk schedules belongs to it, and so does a task or future that the walk completes;
- work that the walk gives to a thread belongs to it, and is done at once, so that the order is the same every time;
- bytes that the walk writes to a connection whose other end is in this process make the next read there part of it;
  they are read in the order in which they were written, also if they are on several connections.

Timers do not belong to a walk: heartbeats, maintenance and deadlines run beside it unseen.

Each callback is a :class:`Leg`. A leg passes the walk on by a :class:`HandOver`. From the last hand-over one can go
back, leg by leg, to the first: that is the walk's way, and legs that lead elsewhere are not on it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import selector_events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src" / "headrace"
_PREFIX = f"{SOURCE}/"
_NUMBERS = count(1)


class Function(NamedTuple):
    """A function of ours: its module under ``headrace``, and its qualified name."""

    module: str
    name: str


def function_of(code: CodeType) -> Function:
    """Name a function of ours."""
    path = code.co_filename.removeprefix(_PREFIX).removesuffix(".py").removesuffix("/__init__")
    return Function(path.replace("/", "."), code.co_qualname)


def stack_of(frame: FrameType | None) -> tuple[CodeType, ...]:
    """The functions of ours on a stack, outermost first. Lambdas and comprehensions belong to what they stand in."""
    found: list[CodeType] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_PREFIX) and not code.co_name.startswith("<"):
            found.append(code)
        frame = frame.f_back
    return tuple(reversed(found))


class Leg:
    """One callback of the loop that belongs to a walk."""

    def __init__(self, cause: HandOver | None) -> None:
        self.cause = cause
        self.calls: list[tuple[CodeType, ...]] = []
        """The stack at every call of a function of ours, in order; that function comes last."""


class HandOver:
    """The moment at which a leg passes the walk on, by a write or by a callback that it schedules."""

    def __init__(self, leg: Leg, frame: FrameType) -> None:
        self.leg = leg
        self.number = next(_NUMBERS)
        self.calls = len(leg.calls)
        self.stack = stack_of(frame)

    def way(self) -> list[HandOver]:
        """The hand-overs from the walk's first to this one."""
        found = [self]
        while (cause := found[-1].leg.cause) is not None:
            found.append(cause)
        return found[::-1]


class Trace:
    """One walk, or several that begin and end alike."""

    def __init__(self, begins: Callable[[Connection], bool], ends: Callable[[Connection], bool]) -> None:
        self.begins = begins
        self.ends = ends
        self.ended: list[HandOver] = []
        self.over = threading.Event()
        """Set when a walk has come to its end."""
        self.leg: Leg | None = None

    @contextmanager
    def recording(self, cause: HandOver | None) -> Iterator[None]:
        """Record a leg."""
        self.leg = Leg(cause)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            self.leg = None

    def wrote(self, connection: Connection, hand_over: HandOver) -> None:
        """Note a write within the walk; it may be the last one."""
        if self.ends(connection):
            self.ended.append(hand_over)
            self.over.set()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and self.leg is not None and code.co_filename.startswith(_PREFIX):
            stack = stack_of(frame)
            if stack and stack[-1] is code:
                self.leg.calls.append(stack)


class Connection(selector_events._SelectorSocketTransport):  # type: ignore[name-defined,misc]
    """A connection of the tracing loop. It knows whether the walk has sent what it will read next."""

    _loop: CausalLoop

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._cause: HandOver | None = None
        super().__init__(*args, **kwargs)
        self.own: tuple[str, int] = self.get_extra_info("sockname")
        self.peer: tuple[str, int] = self.get_extra_info("peername")
        self._loop.connections[self.own, self.peer] = self

    def write(self, data: Any) -> None:
        """Send; within a walk, mark the other end."""
        self._note_write(sys._getframe(1))
        super().write(data)

    def writelines(self, list_of_data: Any) -> None:
        """Send; within a walk, mark the other end."""
        self._note_write(sys._getframe(1))
        super().writelines(list_of_data)

    def _note_write(self, frame: FrameType) -> None:
        trace = self._loop.trace
        if trace is not None and trace.leg is not None:
            hand_over = HandOver(trace.leg, frame)
            other = self._loop.connections.get((self.peer, self.own))
            if other is not None:
                other._cause = hand_over
            trace.wrote(self, hand_over)

    def _read_ready(self) -> None:
        cause, self._cause = self._cause, None
        trace = self._loop.trace
        if trace is not None and (cause is not None or trace.begins(self)):
            self._loop.walk(cause, super()._read_ready)
        else:
            super()._read_ready()


class CausalLoop(asyncio.SelectorEventLoop):
    """A loop that records a :class:`Trace` while it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.trace: Trace | None = None
        self.connections: dict[tuple[object, object], Connection] = {}

    def walk(self, cause: HandOver | None, callback: Callable[..., object], *args: object) -> None:
        """Run a callback as a leg of the walk."""
        if self.trace is None:
            callback(*args)
            return
        with self.trace.recording(cause):
            callback(*args)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """Schedule a callback, as a leg of the walk if the walk does so."""
        if self.trace is None or self.trace.leg is None:
            return super().call_soon(callback, *args, context=context)
        hand_over = HandOver(self.trace.leg, sys._getframe(1))
        return super().call_soon(self.walk, hand_over, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread, or at once if the walk asks for it."""
        if self.trace is None or self.trace.leg is None:
            return super().run_in_executor(executor, func, *args)
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- the future carries it, as it would from a thread
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None:
        super()._process_events(sorted(event_list, key=_written_at))  # type: ignore[misc]

    def _make_socket_transport(self, sock: Any, protocol: Any, waiter: Any = None, **options: Any) -> Any:
        return Connection(self, sock, protocol, waiter, options.get("extra"), options.get("server"))


def _written_at(event: Any) -> int:
    """When the walk wrote what a connection is about to read; 0 if it did not."""
    reader, _ = event[0].data
    connection = getattr(getattr(reader, "_callback", None), "__self__", None)
    cause = getattr(connection, "_cause", None)
    return 0 if cause is None else int(cause.number)


class LoopThread:
    """A tracing loop in a thread of its own, which ends with the block."""

    def __enter__(self) -> LoopThread:
        self.loop = CausalLoop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    @contextmanager
    def tracing(self, trace: Trace) -> Iterator[Trace]:
        """Record a walk in this block."""
        self.run(self._set(trace))
        try:
            yield trace
        finally:
            self.run(self._set(None))

    async def _set(self, trace: Trace | None) -> None:
        self.loop.trace = trace

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
