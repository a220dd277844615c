from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.checksum import crc32c


def test_known_values() -> None:
    """The vectors of RFC 3720, appendix B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(reversed(range(32)))) == 0x113FDB5C


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, (1 << 32) - 1))
def test_it_goes_on_from_where_it_was(data: bytes, cut: int, seed: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut], seed)) == crc32c(data, seed)


@given(st.binary(max_size=200))
def test_arrays_are_taken_as_their_bytes(data: bytes) -> None:
    assert crc32c(np.frombuffer(data, np.uint8)) == crc32c(data)
