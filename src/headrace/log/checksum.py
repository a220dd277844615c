"""CRC32C over whatever has bytes: the one checksum of everything the log writes."""

from __future__ import annotations

import google_crc32c
import numpy as np
import numpy.typing as npt


def crc32c(data: bytes | npt.NDArray[np.uint8], seed: int = 0) -> int:
    """CRC32C of ``data``, going on from ``seed``.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    result: int = google_crc32c.extend(seed, data)
    return result
