"""Judges copies of a history: does each agree with its digests, does it extend a checkpoint, are all of them equal?

Digests are compared first. If they differ, and two copies have the rows, the first message that differs is named,
otherwise the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DamagedError
from headrace.log.proof.chain import Chain, block_of, block_range, end_of
from headrace.log.proof.checkpoint import Checkpoint
from headrace.log.proof.comparison import (
    Copy,
    MissingError,
    computed,
    digest_of,
    first_difference,
    first_differing_block,
    overlaid,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a copy is not what it should be."""

    copy: str
    first: int
    last: int
    """``first`` to ``last`` is where it first differs: one message, or a block with the difference somewhere in it."""
    reason: str

    def __str__(self) -> str:
        where = (
            f"message {self.first}" if self.first == self.last else f"messages {self.first} to {self.last}"
        )
        return f"{self.copy}: {where}: {self.reason}"

    def facts(self) -> dict[str, Any]:
        """Return the finding as JSON has it; ``message`` is null if only the block is known."""
        message = self.first if self.first == self.last else None
        facts = {"copy": self.copy, "block": block_of(self.first), "message": message}
        return {**facts, "first": self.first, "last": self.last, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Examined:
    """A copy, its digests, and what is wrong with it alone."""

    copy: Copy
    chain: Chain
    computed: bool
    """Whether the digests are those of its rows, as far as it has them, and not only what it recorded."""
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Messages that could not be checked."""

    copy: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.copy}: messages {self.first} to {self.last} could not be checked: they are no longer there"


def examine(copy: Copy, full: bool, progress: Callable[[int], None] = lambda _: None) -> Examined:
    """Get a copy's digests: those it has recorded, or with ``full`` those of its rows."""
    recorded = copy.recorded()
    if recorded is not None and not full:
        return Examined(copy, recorded, computed=False)
    try:
        fresh, missing = computed(copy, progress)
    except DamagedError as damage:
        last = copy.head if damage.last is None else damage.last
        chain = recorded or Chain.beginning_at(copy.log, copy.first)
        return Examined(copy, chain, False, [Finding(copy.name, damage.first, last, damage.reason)])
    found = [] if missing is None else [_missing(copy, missing)]
    if recorded is None:
        return Examined(copy, fresh, True, found)
    wrong = first_differing_block(recorded, fresh)
    if wrong is not None:
        found.append(Finding(copy.name, *block_range(wrong), "it has other messages than it recorded"))
    elif fresh.through == recorded.through and fresh.open is not None and fresh.open != recorded.open:
        first = end_of(fresh.blocks) + 1
        found.append(Finding(copy.name, first, fresh.through, "it has other messages than it recorded"))
    return Examined(copy, overlaid(recorded, fresh), True, found)


def check(examined: Sequence[Examined], checkpoint: Checkpoint | None) -> Iterator[Finding | Unchecked]:
    """Check copies against a checkpoint, if there is one, and against the first of them."""
    for each in examined:
        yield from each.findings
        if checkpoint is not None:
            yield from _extends(each, checkpoint, [other for other in examined if other is not each])
    for other in examined[1:]:
        yield from _equal(examined[0], other)


def _extends(
    each: Examined, checkpoint: Checkpoint, others: Sequence[Examined]
) -> Iterator[Finding | Unchecked]:
    copy, chain = each.copy, each.chain
    if copy.log != checkpoint.log:
        yield Finding(
            copy.name,
            1,
            max(copy.head, 2),
            f"it belongs to log {copy.log}, the checkpoint to log {checkpoint.log}",
        )
        return
    signed = Chain(checkpoint.log, end_of(checkpoint.blocks), 0, checkpoint.digests)
    if chain.base and checkpoint.blocks:
        yield Unchecked(copy.name, 1, end_of(min(chain.base, checkpoint.blocks)))
    wrong = first_differing_block(chain, signed)
    if wrong is not None:
        right = [other for other in others if other.chain.digest(wrong) == signed.digest(wrong)]
        yield _descend(each, right, *block_range(wrong))
        return
    if copy.head < checkpoint.head:
        yield Finding(
            copy.name, copy.head + 1, copy.head + 1,
            f"it ends with message {copy.head}, and the checkpoint with {checkpoint.head}",
        )  # fmt: skip
        return
    first, last = signed.through + 1, checkpoint.head
    unproven = Finding(copy.name, 1, last, "nothing of what was signed is there, nor are its digests")
    compared = chain.base < checkpoint.blocks
    if first > last:
        if not compared and last:
            yield unproven
        return
    if chain.through == last and chain.open_digest is not None:
        found = chain.open_digest
    elif copy.first <= first:
        try:
            found = digest_of(copy, first, last)
        except MissingError as missing:
            yield _missing(copy, missing)
            return
    else:
        yield Unchecked(copy.name, first, last) if compared else unproven
        return
    if found != checkpoint.open_digest:
        right = [other for other in others if other.copy.first <= first and other.copy.head >= last]
        yield _descend(each, right, first, last)


def _descend(each: Examined, right: Sequence[Examined], first: int, last: int) -> Finding:
    """Name the first message that differs from a copy that agrees with the checkpoint; without one, the block."""
    name = each.copy.name
    for other in right:
        if max(each.copy.first, other.copy.first) <= first:
            difference = first_difference(each.copy, other.copy, first, last)
            if difference is not None:
                return Finding(name, difference.seq, difference.seq, difference.evidence)
    return Finding(
        name,
        first,
        last,
        "they differ from the checkpoint; name a copy that has them to see which differs",
    )


def _equal(ours: Examined, theirs: Examined) -> Iterator[Finding | Unchecked]:
    one, other = ours.copy, theirs.copy
    if one.log != other.log:
        yield Finding(
            other.name, 1, max(other.head, 2), f"it belongs to log {other.log}, {one.name} to log {one.log}"
        )
        return
    first, last = max(one.first, other.first), min(one.head, other.head)
    # The blocks that both have digested, and the parts of blocks before and after them.
    begin = end_of(max(ours.chain.base, theirs.chain.base))
    end = end_of(min(ours.chain.blocks, theirs.chain.blocks))
    wrong = first_differing_block(ours.chain, theirs.chain)
    ranges = [(1, begin), (max(begin, end) + 1, last) if wrong is None else block_range(wrong)]
    for low, high in ranges:
        low, high = max(low, first), min(high, last)
        difference = first_difference(one, other, low, high) if low <= high else None
        if difference is not None:
            yield Finding(other.name, difference.seq, difference.seq, difference.evidence)
            return
    if wrong is not None:
        yield Finding(other.name, *block_range(wrong), f"its digest differs from that of {one.name}")
    elif begin >= end and first > last > 0:
        yield Finding(
            other.name, 1, last, f"it has none of them in common with {one.name}: nothing was compared"
        )
    elif begin and first > 1:
        yield Unchecked(other.name, 1, min(begin, first - 1))


def _missing(copy: Copy, missing: MissingError) -> Finding:
    return Finding(copy.name, missing.seq, missing.seq, str(missing))
