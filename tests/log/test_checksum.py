from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.checksum import crc32c, joined


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


@given(st.binary(max_size=200), st.binary(max_size=5000), st.integers(0, (1 << 32) - 1))
def test_pieces_that_are_summed_up_are_joined(front: bytes, behind: bytes, seed: int) -> None:
    assert joined(crc32c(front, seed), crc32c(behind), len(behind)) == crc32c(front + behind, seed)


LONG = [15, 16, 17, 255, 256, 65_535, 65_536, 1 << 20, (1 << 22) + 12_345]


@given(st.integers(0, (1 << 32) - 1), st.sampled_from(LONG))
def test_long_pieces_are_joined(front: int, length: int) -> None:
    behind = b"\xa5" * length
    assert joined(front, crc32c(behind), length) == crc32c(behind, front)
