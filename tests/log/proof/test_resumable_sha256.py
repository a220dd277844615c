"""SHA-256 that can be resumed gives what ``hashlib`` gives, wherever it is interrupted."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.proof.resumable_sha256 import _BEGINNING, _CONSTANTS, STATE_BYTES, Sha256, compress
from headrace.wire.numba_kernels import Kernel


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_the_same_digest_as_hashlib_after_each_interruption(pieces: list[bytes]) -> None:
    state = Sha256().state()
    expected = hashlib.sha256()
    for piece in pieces:
        resumed = Sha256(state)
        resumed.update(piece)
        expected.update(piece)
        assert resumed.digest() == expected.digest()
        state = resumed.state()
        assert len(state) == STATE_BYTES


def test_many_bytes_go_through_the_kernel() -> None:
    data = bytes(range(256)) * 300
    made = Sha256()
    made.update(memoryview(data)[:70_001])
    made.update(memoryview(data)[70_001:])
    assert made.digest() == hashlib.sha256(data).digest()


def test_the_kernel_is_what_plain_python_is() -> None:
    assert isinstance(compress, Kernel)
    data = np.arange(640, dtype=np.uint32).astype(np.uint8)
    compiled, plain = np.array(_BEGINNING, np.int64), np.array(_BEGINNING, np.int64)
    compress.compile()(compiled, data, _CONSTANTS)
    compress.py_func(plain, data, _CONSTANTS)
    assert np.array_equal(compiled, plain)
