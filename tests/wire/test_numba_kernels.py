"""Kernels before and after they are compiled."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from headrace.wire import numba_kernels
from headrace.wire.numba_kernels import Kernel, is_cached, is_loaded, kernel, load, load_in_thread, types

NAME = __name__


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel of this module that nobody has loaded."""
    numba_kernels._KERNELS.pop(NAME, None)
    numba_kernels._loaded.discard(NAME)
    numba_kernels._begun.discard(NAME)
    monkeypatch.setattr(numba_kernels, "_patient", True)

    @kernel(types.void(types.uint64[::1]))
    def double(values: Any) -> None:
        for index in range(len(values)):
            values[index] = values[index] * np.uint64(2)

    return double


def doubled(by: Any) -> list[int]:
    values = np.array([1, 1 << 63], np.uint64)
    by(values)
    return [int(each) for each in values]


def test_declaring_kernels_does_not_load_numba() -> None:
    script = (
        "import sys, headrace.wire.fyrehose.kernels, headrace.wire.attribute.kernels, headrace.matching.kernels;"
        "assert not [name for name in sys.modules if name.startswith(('numba', 'llvmlite'))]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_until_it_is_compiled_plain_python_does_the_work(
    doubling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    compile_kernel = Kernel.compile

    def compile_later(each: Kernel) -> Any:
        assert may_go_on.wait(60)
        return compile_kernel(each)

    monkeypatch.setattr(Kernel, "compile", compile_later)
    assert not is_cached(NAME)
    assert doubled(doubling) == [2, 0]
    assert doubling.compiled is None
    assert not is_loaded(NAME)
    may_go_on.set()
    load(NAME)
    assert is_loaded(NAME)
    assert doubling._call is doubling.compiled
    assert doubled(doubling) == [2, 0]


def test_what_is_cached_is_loaded_by_the_first_call(doubling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_kernels, "is_cached", lambda _: True)
    assert doubled(doubling) == [2, 0]
    assert doubling.compiled is not None


def test_a_process_that_must_not_wait_loads_in_a_thread(
    doubling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_kernels, "is_cached", lambda _: True)
    numba_kernels.never_wait()
    with numba_kernels._loading:
        # The thread waits for this lock; the caller must not.
        assert doubled(doubling) == [2, 0]
        assert doubling.compiled is None
    load(NAME)
    assert doubling.compiled is not None


def test_loading_twice_in_threads_compiles_once(doubling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Kernel] = []
    compile_kernel = Kernel.compile
    monkeypatch.setattr(Kernel, "compile", lambda each: [compiled.append(each), compile_kernel(each)][1])
    load_in_thread(NAME)
    load_in_thread(NAME)
    load(NAME)
    assert len(compiled) == 1


def test_a_program_that_ends_waits_for_the_kernel_that_is_compiled_and_no_longer() -> None:
    script = """if True:
        import atexit, threading
        from headrace.wire.fyrehose import kernels
        from headrace.wire.numba_kernels import Kernel, load_in_thread

        compiled = []

        def compile_until_the_end(kernel):
            compiled.append(kernel.__name__)
            threading.main_thread().join()

        Kernel.compile = compile_until_the_end
        atexit.register(lambda: print(len(compiled)))
        load_in_thread(kernels.__name__)
        while not compiled:
            pass
        """
    ended = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)
    assert (ended.stdout, ended.stderr) == (b"1\n", b"")


def test_a_program_may_end_while_numba_is_loaded() -> None:
    script = """if True:
        import sys
        from headrace.wire.fyrehose import kernels
        from headrace.wire.numba_kernels import load_in_thread

        load_in_thread(kernels.__name__)
        while "llvmlite" not in sys.modules:
            pass
        """
    ended = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)
    assert ended.stderr == b""


def test_what_a_hub_has_loaded_is_not_visited_by_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_kernels, "_patient", False)
    before = gc.get_freeze_count()
    made: list[list[object]] = [[] for _ in range(1000)]  # what loading leaves behind
    try:
        numba_kernels._load_meanwhile(NAME)
        assert gc.get_freeze_count() >= before + len(made)
    finally:
        gc.unfreeze()
