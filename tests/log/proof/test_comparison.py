"""Copies are equal if their messages are; else the first message that differs is named."""

from __future__ import annotations

import pytest
from tests.log.proof.copies import LOG, ListCopy, changes, history, rows

from headrace.log.proof import chain as module
from headrace.log.proof.chain import Chain
from headrace.log.proof.comparison import (
    computed,
    first_difference,
    first_differing_block,
    overlaid,
)

WHOLE = history(50)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)


def whole() -> Chain:
    return Chain(LOG).extended([rows(WHOLE)], 50)


@pytest.mark.parametrize("first", [1, 8, 9, 20])
def test_digests_are_computed_from_rows(first: int) -> None:
    steps: list[int] = []
    chain, missing = computed(ListCopy(WHOLE[first - 1 :]), steps.append, threads=3)
    assert missing is None
    expected = Chain.beginning_at(LOG, first).extended([rows(WHOLE[first - 1 :])], 50)
    assert chain == expected
    assert sum(steps) == 8 * (6 - expected.base)


@pytest.mark.parametrize("hole", [1, 4, 8, 9, 30, 49, 50])
def test_a_message_that_is_missing_is_named(hole: int) -> None:
    kept = [message for message in WHOLE if message.seq != hole]
    copy = ListCopy(kept)
    chain, missing = computed(copy)
    if hole in (1, 50):
        # It is only shorter.
        assert missing is None
    else:
        assert missing is not None
        assert missing.seq == hole
        assert first_differing_block(chain, whole()) is None
        assert chain.through <= hole - 1


@pytest.mark.parametrize("what", changes(WHOLE, 21))
@pytest.mark.parametrize("at", [1, 8, 21, 49])
def test_the_first_message_that_differs_is_named(what: str, at: int) -> None:
    other = ListCopy(changes(WHOLE, at)[what], "other", each=3)
    chain, _ = computed(other)
    block = first_differing_block(whole(), chain)
    assert block == ((at - 1) // 8 if at < 49 else None)
    found = first_difference(ListCopy(WHOLE, "one"), other, 1, 50)
    assert found is not None
    assert found.seq == at
    assert found.fields
    assert all(field in found.evidence for field in found.fields)
    assert "one" in found.evidence
    assert "other" in found.evidence


def test_equal_copies_have_no_difference_however_they_are_cut() -> None:
    for each in (1, 7, 50):
        assert first_difference(ListCopy(WHOLE), ListCopy(WHOLE, each=each), 1, 50) is None


def test_a_hole_is_a_difference() -> None:
    kept = [message for message in WHOLE if message.seq != 20]
    found = first_difference(ListCopy(WHOLE), ListCopy(kept, "holey"), 17, 24)
    assert found is not None
    assert (found.seq, found.fields, found.evidence) == (20, (), "message 20 is missing in holey")
    found = first_difference(ListCopy(WHOLE[:20]), ListCopy(WHOLE[:22]), 17, 24)
    assert found is not None
    assert found.seq == 21


def test_what_is_computed_replaces_what_was_recorded() -> None:
    changed = changes(WHOLE, 30)["a changed bit"]
    fresh, _ = computed(ListCopy(changed[18:]))
    merged = overlaid(whole(), fresh)
    assert first_differing_block(merged, whole()) == 3
    assert merged.digest(0) == whole().digest(0)
    assert merged.digest(4) == whole().digest(4)
    assert merged.open_digest == whole().open_digest
