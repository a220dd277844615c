"""CRC32C: the one checksum of everything the log writes.

A CRC is the remainder of the bytes, taken as a polynomial, divided by :data:`_POLYNOMIAL`. So the checksum of two
pieces side by side follows from those of each (:func:`joined`): multiply the first by x for every bit of the second,
and add the second. Long rows are summed when they come in, not when they are appended.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt


def crc32c(data: bytes | npt.NDArray[np.uint8], seed: int = 0) -> int:
    """CRC32C of ``data``, continued from ``seed``.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    result: int = google_crc32c.extend(seed, data)
    return result


def joined(front: int, back: int, length: int) -> int:
    """CRC32C of two pieces side by side from those of each; the second is ``length`` bytes long.

    >>> hex(joined(crc32c(b"12345"), crc32c(b"6789"), 4))
    '0xe3069283'
    """
    digit = 0
    while length:
        length, times = divmod(length, _DIGIT)
        if times:
            front = _product(front, _shifts(digit)[times])
        digit += 1
    return front ^ back


_POLYNOMIAL: Final = 0x82F63B78
"""As in all polynomials here, the highest power is the lowest bit; x^32 is left out."""

_ONE: Final = 1 << 31
_DIGIT: Final = 16
"""Base of a length's digits: a product costs as much as the checksum of some fifty kilobytes."""


def _product(one: int, other: int) -> int:
    """The remainder of the product of two polynomials."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = (one << 1) & 0xFFFFFFFF
        other = (other >> 1) ^ _POLYNOMIAL if other & 1 else other >> 1
    return product


@cache
def _shifts(digit: int) -> tuple[int, ...]:
    """For each value of a length's digit, the power of x by which that many bytes shift the bytes before them."""
    if digit:
        once = _product(_shifts(digit - 1)[-1], _shifts(digit - 1)[1])
    else:
        once = _ONE >> 8
    powers = [_ONE]
    for _ in range(_DIGIT - 1):
        powers.append(_product(powers[-1], once))
    return tuple(powers)
