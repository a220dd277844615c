"""SHA-256 whose state can be saved: a block of messages may begin in one segment and end in another, after a restart.

``hashlib`` is faster and is used wherever a block is digested in one go, but its state cannot be saved, so a digest
that has to be resumed is computed here. The state is the eight words, the bytes that do not fill a chunk yet, and how
many bytes there were.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.wire.numba_kernels import BYTES_IN, WIDE, WIDE_IN, inline, is_loaded, kernel, load, types

STATE_BYTES: Final = 8 + 32 + 64

_FORM: Final = struct.Struct(">Q8I64s")
_CHUNK: Final = 64
_ROUNDS: Final = 64
_MANY: Final = 16 << 10
"""Bytes from which on the kernel is worth loading; plain Python digests fewer in some tens of milliseconds."""


def _constants(degree: int, count: int) -> list[int]:
    """SHA-256's constants: the first 32 bits of the fractions of roots of the first primes."""
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return [_root(prime << 32 * degree, degree) & 0xFFFFFFFF for prime in primes]


def _root(number: int, degree: int) -> int:
    """The whole part of a root of a whole number."""
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= number:
            low = middle
        else:
            high = middle - 1
    return low


_BEGINNING: Final = tuple(_constants(2, 8))
_CONSTANTS: Final = np.array(_constants(3, _ROUNDS), np.int64)

Words = npt.NDArray[np.int64]


class Sha256:
    """A SHA-256 under way, with ``hashlib``'s methods, whose state can be saved as bytes and resumed.

    >>> one = Sha256()
    >>> one.update(b"message ")
    >>> other = Sha256(one.state())
    >>> other.update(b"digest")
    >>> other.digest().hex()[:16]
    'f7846f55cf23e14e'
    """

    def __init__(self, state: bytes | None = None) -> None:
        parts: tuple[Any, ...] = (0, *_BEGINNING, b"") if state is None else _FORM.unpack(state)
        self._size: int = parts[0]
        self._words: Words = np.array(parts[1:-1], np.int64)
        self._waiting: bytes = parts[-1][: self._size % _CHUNK]

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes to the digest."""
        self._size += len(data)
        first = min(-len(self._waiting) % _CHUNK, len(data))
        waiting = self._waiting + bytes(data[:first])
        if len(waiting) == _CHUNK:
            self._take(waiting)
            waiting = b""
        rest = len(data) - first
        whole = rest - rest % _CHUNK
        if whole:
            self._take(data[first : first + whole])
        self._waiting = waiting + bytes(data[first + whole :])

    def state(self) -> bytes:
        """Return the state to resume from."""
        return _FORM.pack(self._size, *self._words.tolist(), self._waiting)

    def digest(self) -> bytes:
        """The digest of all bytes taken so far."""
        ended = Sha256(self.state())
        padding = -(self._size + 9) % _CHUNK
        ended.update(b"\x80" + bytes(padding) + struct.pack(">Q", self._size * 8))
        return ended._words.astype(">u4").tobytes()

    def _take(self, data: bytes | memoryview) -> None:
        chunks = np.frombuffer(data, np.uint8)
        if len(data) >= _MANY:
            load(__name__)
        if is_loaded(__name__):
            compress(self._words, chunks, _CONSTANTS)
            return
        # A hub that has little to seal spares itself numba and its memory.
        _compress(self._words, chunks, _CONSTANTS)


@inline
def _turned(word: int, by: int) -> int:
    """Rotate a word to the right."""
    return ((word >> by) | (word << (32 - by))) & 0xFFFFFFFF


def _compress(state: Words, data: npt.NDArray[np.uint8], constants: Words) -> None:
    """Take whole chunks of 64 bytes into a state; the letters are those of the standard, FIPS 180-4.

    Words are kept in 64 bits and cut to 32: in plain Python that is ten times faster than numpy's 32-bit numbers.
    """
    w = np.empty(64, np.int64)
    for begin in range(0, len(data), 64):
        for t in range(16):
            at = begin + 4 * t
            high, low = (int(data[at]) << 8) | int(data[at + 1]), (int(data[at + 2]) << 8) | int(data[at + 3])
            w[t] = (high << 16) | low
        for t in range(16, 64):
            one, other = int(w[t - 15]), int(w[t - 2])
            small = _turned(one, 7) ^ _turned(one, 18) ^ (one >> 3)
            large = _turned(other, 17) ^ _turned(other, 19) ^ (other >> 10)
            w[t] = (int(w[t - 16]) + small + int(w[t - 7]) + large) & 0xFFFFFFFF
        a, b, c, d = int(state[0]), int(state[1]), int(state[2]), int(state[3])
        e, f, g, h = int(state[4]), int(state[5]), int(state[6]), int(state[7])
        for t in range(64):
            choice = (e & f) ^ (~e & g)
            one = (
                h + (_turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25)) + choice + int(constants[t]) + int(w[t])
            )
            majority = (a & b) ^ (a & c) ^ (b & c)
            other = (_turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22)) + majority
            h, g, f, e = g, f, e, (d + one) & 0xFFFFFFFF
            d, c, b, a = c, b, a, (one + other) & 0xFFFFFFFF
        for t, word in enumerate((a, b, c, d, e, f, g, h)):
            state[t] = (int(state[t]) + word) & 0xFFFFFFFF


compress = kernel(types.void(WIDE, BYTES_IN, WIDE_IN))(_compress)
