"""The chain does not depend on how messages are grouped, and changes with every message."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.log.content import batch
from tests.log.proof.test_canonical import made

from headrace.errors import DamagedError, UsageError
from headrace.log.proof import chain as module
from headrace.log.proof.chain import Chain, ChainExtension, block_range

LOG = UUID("01234567-89ab-cdef-0123-456789abcdef")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)


def rows(first: int, last: int) -> pa.RecordBatch:
    return batch(first, *(b"message %d" % seq for seq in range(first, last + 1)), topic="t").to_arrow()


@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), max_size=5))
def test_any_grouping_gives_the_same_chain(passes: Sequence[Sequence[int]]) -> None:
    """Each list is an extension of batches, and the chain is kept as bytes after it, as between two seals."""
    chain = Chain(LOG)
    for sizes in passes:
        first, batches = chain.through + 1, []
        for size in sizes:
            batches.append(rows(first, first + size - 1))
            first += size
        extended = chain.extended(batches, first - 1)
        chain = Chain.parse(extended.serialize(), "test")
        assert chain == extended
    blocks = [
        hashlib.sha256(b"".join(made(rows(*block_range(block))))).digest() for block in range(chain.blocks)
    ]
    assert [chain.digest(block) for block in range(chain.blocks)] == blocks
    assert chain.digest(chain.blocks) is None
    begin = chain.blocks * 8 + 1
    left = b"".join(made(rows(begin, chain.through))) if begin <= chain.through else b""
    assert chain.open_digest == hashlib.sha256(left).digest()
    value = hashlib.sha256(b"headrace chain 1" + LOG.bytes).digest()
    for digest in blocks:
        value = hashlib.sha256(value + digest).digest()
    assert chain.value == value


def test_a_log_that_begins_later_knows_the_blocks_after_its_beginning() -> None:
    whole = Chain(LOG).extended([rows(1, 30)], 30)
    for first in (5, 9, 10):
        late = Chain.beginning_at(LOG, first).extended([rows(first, 30)], 30)
        assert late == Chain.parse(late.serialize(), "test")
        assert late.value is None
        known = [block for block in range(4) if late.digest(block) is not None]
        assert known == list(range(-(-(first - 1) // 8), 3))
        assert all(late.digest(block) == whole.digest(block) for block in known)
        assert late.open_digest == whole.open_digest


def test_the_open_part_of_an_unknown_block_is_unknown() -> None:
    late = Chain.beginning_at(LOG, 5).extended([rows(5, 7)], 7)
    assert (late.open_digest, late.value, late.digest(0)) == (None, None, None)


def test_what_does_not_follow_is_refused() -> None:
    with pytest.raises(UsageError, match="messages 2 to 3 cannot follow message 0"):
        Chain(LOG).extended([rows(2, 3)], 3)
    extension = ChainExtension(Chain(LOG), 20)
    extension.add(rows(1, 4))
    with pytest.raises(UsageError, match="further than message 4"):
        extension.finish()


def test_a_damaged_chain_is_refused() -> None:
    good = Chain(LOG).extended([rows(1, 12)], 12).serialize()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(DamagedError):
            Chain.parse(bytes(bad), "test")
        with pytest.raises(DamagedError):
            Chain.parse(good[:at], "test")
