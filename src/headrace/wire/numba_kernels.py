"""How a function becomes a kernel: compiled for explicit types, callable without the interpreter's lock.

Loading numba takes a third of a second and 80 MB, and compiling a module's kernels for the first time takes seconds. So
declaring a kernel does neither:

- The first call of a kernel loads all kernels of its module, if numba has them in its cache.
- If they must be compiled, a thread does that, and until it has, the plain Python function does the work: slowly, with
  the same result. A hub, whose event loop must not wait, never loads them in any other way (:func:`never_wait`).
- Whoever has a lot to do calls :func:`load` first, which waits.

Each kernel without its decorator (``.py_func``) is its own reference: plain Python on the same arrays.

Numba recompiles a kernel when its own file changes, but not when a function or constant of another file does. So a
kernel module has its own copy of constants, or its package removes stale caches.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., object])


class _Expression:
    """An expression over numba's types, which is evaluated when numba is loaded."""

    __slots__ = ("_evaluate",)

    def __init__(self, evaluate: Callable[[], Any]) -> None:
        self._evaluate = evaluate

    def __getattr__(self, name: str) -> _Expression:
        return _Expression(lambda: getattr(self._evaluate(), name))

    def __getitem__(self, key: object) -> _Expression:
        return _Expression(lambda: self._evaluate()[key])

    def __call__(self, *args: object, **options: object) -> _Expression:
        return _Expression(lambda: self._evaluate()(*(_value(each) for each in args), **options))


def _value(given: object) -> Any:
    if isinstance(given, _Expression):
        return given._evaluate()
    return [_value(each) for each in given] if isinstance(given, list) else given


def _numba_types() -> Any:
    import numba

    return numba.types


types: Any = _Expression(_numba_types)

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
OFFSETS_IN = types.Array(types.int32, 1, "C", readonly=True, aligned=False)
WIDE_IN = types.Array(types.int64, 1, "C", readonly=True)
BYTES = types.uint8[::1]
INTS = types.int32[::1]
INTS_2 = types.int32[:, ::1]
WIDE = types.int64[::1]
INDEX = types.intp


class Kernel:
    """A function that is plain Python at first, and compiled once its module is loaded."""

    def __init__(self, function: Callable[..., Any], signature: object) -> None:
        self.py_func = function
        self.signature = signature
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.compiled: Any = None
        """Numba's function, or ``None`` as long as plain Python does the work."""
        self._call: Callable[..., Any] = self._first_call

    def __call__(self, *args: Any) -> Any:
        """Do the work, by compiled code if there is some."""
        return self._call(*args)

    def compile(self) -> Any:
        """Compile it, or load it from numba's cache."""
        import numba

        njit, signature = cast("Any", numba.njit), _value(self.signature)
        try:
            return njit(signature, nogil=True, cache=True)(self.py_func)
        except RuntimeError:
            # Numba found no directory for its cache: then each process compiles, for some seconds.
            return njit(signature, nogil=True)(self.py_func)

    def use(self, compiled: Any) -> None:
        """Use the compiled function from now on."""
        with _switching:
            self._call = self.compiled = compiled

    def use_plain(self) -> None:
        """Use plain Python until there is a compiled function."""
        with _switching:
            if self.compiled is None:
                self._call = self._plain

    def _first_call(self, *args: Any) -> Any:
        module = self.py_func.__module__
        if _patient and is_cached(module) and _loading.acquire(blocking=False):
            try:
                load(module)
            finally:
                _loading.release()
        else:
            load_in_thread(module)
        return self._call(*args)

    def _plain(self, *args: Any) -> Any:
        # Hashes overflow on purpose; compiled code does not look.
        with np.errstate(all="ignore"):
            return self.py_func(*args)


_KERNELS: Final[defaultdict[str, list[Kernel]]] = defaultdict(list)
"""The kernels of each module."""

_BEFORE: Final[list[Callable[[], object]]] = []
"""What numba has to be told before anything is compiled."""

_loading = threading.RLock()
_switching = threading.Lock()
_patient = True
"""Whether a first call may wait for its kernel to be loaded from the cache."""
_loaded: Final[set[str]] = set()
_begun: Final[set[str]] = set()
"""Modules that a thread loads, or has loaded."""


def _after_fork() -> None:
    """Begin anew in a child process: the thread that held a lock, or was loading, is not in it."""
    global _loading, _switching
    _loading, _switching = threading.RLock(), threading.Lock()
    _begun.intersection_update(_loaded)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def kernel(signature: object) -> Callable[[F], F]:
    """Compile a function for these types."""

    def declared(function: F) -> F:
        made = Kernel(function, signature)
        _KERNELS[function.__module__].append(made)
        return cast("F", made)

    return declared


def inline(function: F) -> F:
    """Let kernels call a function that plain Python can call too."""

    def tell() -> None:
        import numba.extending

        cast("Any", numba.extending).register_jitable(function)

    before_compiling(tell)
    return function


def before_compiling(tell: Callable[[], object]) -> None:
    """Tell numba something when it is loaded."""
    _BEFORE.append(tell)


def load(*modules: str, before_step: Callable[[], None] = lambda: None) -> None:
    """Load the kernels of these modules, or compile them; wait until that is done.

    ``before_step`` is called again and again meanwhile, and may raise to leave it undone.
    """
    with _loading:
        while _BEFORE:
            before_step()
            _BEFORE[0]()
            del _BEFORE[0]
        for module in modules:
            if module not in _loaded:
                ready = []
                for each in _KERNELS[module]:
                    before_step()
                    ready.append((each, each.compile()))
                for each, compiled in ready:
                    each.use(compiled)
                _loaded.add(module)


def never_wait() -> None:
    """Load kernels in threads only, from now on: this process has an event loop that must not be held up."""
    global _patient
    _patient = False


def load_in_thread(*modules: str) -> None:
    """Have a thread load or compile the kernels of these modules; until then plain Python does their work."""
    for module in modules:
        if module not in _loaded and module not in _begun:
            _begun.add(module)
            for each in _KERNELS[module]:
                each.use_plain()
            # No daemon: a process that ended while numba or LLVM is at work would crash.
            threading.Thread(target=_load_meanwhile, args=(module,), name="headrace-kernels").start()


def _load_meanwhile(module: str) -> None:
    """Load a module's kernels, or leave that when the program ends: it waits for the step under way, no longer."""
    with _loading, _quick_switches(), contextlib.suppress(_EndingError):
        load(module, before_step=_check_ending)
    if not _patient:
        # What numba has loaded stays: a full collection that visits it holds up an event loop for 20 to 35 ms.
        gc.freeze()


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Give other threads their turn ten times as soon: loading is half a second of Python beside an event loop."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class _EndingError(Exception):
    """The main thread is done, and the process waits for this one."""


def _check_ending() -> None:
    if not threading.main_thread().is_alive():
        raise _EndingError


def is_loaded(module: str) -> bool:
    """Whether a module's kernels are compiled code."""
    return module in _loaded


def is_cached(module: str) -> bool:
    """Whether numba has a module's kernels in its cache, as far as can be seen without loading it.

    Numba's cache is beside the module. If it cannot write there its cache is elsewhere, and this is ``False``.
    """
    origin = sys.modules[module].__file__
    if origin is None:
        return False
    source = Path(origin)
    changed = source.stat().st_mtime
    cache = Path(cache_from_source(origin)).parent
    # Another process may be renewing the cache.
    with contextlib.suppress(OSError):
        return all(
            any(
                index.stat().st_mtime >= changed
                for index in cache.glob(f"{source.stem}.{each.__name__}-*.nbi")
            )
            for each in _KERNELS[module]
        )
    return False
