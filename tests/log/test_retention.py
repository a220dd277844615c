from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from headrace.log.retention import RetentionDecision, SegmentExtent, decide

EXTENTS = [
    SegmentExtent(1, 10, 100, 1000),
    SegmentExtent(11, 20, 100, 2000),
    SegmentExtent(21, 30, 100, 3000),
]


def judged(extents: list[SegmentExtent] = EXTENTS, **changes: Any) -> RetentionDecision:
    given: dict[str, Any] = {
        "open_bytes": 50,
        "now": 3000,
        "retain_bytes": 1000,
        "retain_us": None,
        "holds": {},
        "snapshot_seq": 30,
    }
    return decide(extents, **(given | changes))


class TestExamples:
    def test_nothing_to_do(self) -> None:
        assert judged() == RetentionDecision(1)
        assert judged([]) == RetentionDecision(0)

    def test_bytes(self) -> None:
        assert judged(retain_bytes=350) == RetentionDecision(1)
        assert judged(retain_bytes=349) == RetentionDecision(11)
        assert judged(retain_bytes=150) == RetentionDecision(21)
        assert judged(retain_bytes=0) == RetentionDecision(31)

    def test_age(self) -> None:
        assert judged(retain_us=2000) == RetentionDecision(1)
        assert judged(retain_us=1999) == RetentionDecision(11)
        assert judged(retain_us=0, now=3001) == RetentionDecision(31)

    def test_a_hold_delays_age(self) -> None:
        assert judged(retain_us=0, now=9999, holds={"job": 15}) == RetentionDecision(11)
        assert judged(retain_us=0, now=9999, holds={"job": 10}) == RetentionDecision(1)
        assert judged(retain_us=0, now=9999, holds={"job": 11, "other": 25}) == RetentionDecision(11)
        assert judged(retain_us=0, now=9999, holds={"job": 31}) == RetentionDecision(31)

    def test_a_hold_does_not_stop_bytes_and_breaks(self) -> None:
        holds = {"late": 5, "later": 11, "fine": 21}
        assert judged(retain_bytes=250, holds=holds) == RetentionDecision(11, ("late",))
        assert judged(retain_bytes=150, holds=holds) == RetentionDecision(21, ("late", "later"))

    def test_a_hold_breaks_once(self) -> None:
        assert judged(EXTENTS[1:], retain_bytes=150, holds={"late": 5, "later": 15}) == RetentionDecision(
            21, ("later",)
        )

    def test_nothing_goes_without_a_snapshot(self) -> None:
        assert judged(retain_bytes=0, snapshot_seq=0) == RetentionDecision(1)
        assert judged(retain_bytes=0, snapshot_seq=19) == RetentionDecision(11)
        assert judged(retain_bytes=0, snapshot_seq=20) == RetentionDecision(21)

    def test_what_is_not_sealed_counts_but_stays(self) -> None:
        assert judged([], open_bytes=5000) == RetentionDecision(0)
        assert judged(open_bytes=5000) == RetentionDecision(31)


@dataclass(frozen=True)
class Case:
    extents: list[SegmentExtent]
    open_bytes: int
    now: int
    retain_bytes: int
    retain_us: int | None
    holds: dict[str, int]
    snapshot_seq: int

    def decision(self) -> RetentionDecision:
        return judged(**{name: getattr(self, name) for name in self.__dataclass_fields__})


@st.composite
def cases(draw: st.DrawFn) -> Case:
    first, time = draw(st.integers(1, 50)), draw(st.integers(0, 50))
    extents = []
    for _ in range(draw(st.integers(0, 6))):
        last = first + draw(st.integers(0, 9))
        time += draw(st.integers(0, 9))
        extents.append(SegmentExtent(first, last, draw(st.integers(1, 100)), time))
        first = last + 1
    seqs = st.integers(0, first + 5)
    return Case(
        extents,
        draw(st.integers(0, 100)),
        time + draw(st.integers(-5, 60)),
        draw(st.integers(0, 500)),
        draw(st.none() | st.integers(0, 60)),
        draw(st.dictionaries(st.sampled_from("abcd"), seqs)),
        draw(seqs),
    )


class TestProperties:
    @given(cases())
    def test_whole_segments_go_from_the_beginning(self, case: Case) -> None:
        decision = case.decision()
        edges = [extent.first for extent in case.extents] + [extent.last + 1 for extent in case.extents]
        assert decision.keep_from in (edges or [0])

    @given(cases())
    def test_a_snapshot_precedes_trimming(self, case: Case) -> None:
        decision = case.decision()
        begin = case.extents[0].first if case.extents else 0
        assert decision.keep_from <= max(case.snapshot_seq + 1, begin)

    @given(cases())
    def test_bytes_are_a_hard_limit(self, case: Case) -> None:
        decision = case.decision()
        kept = [extent for extent in case.extents if extent.last >= decision.keep_from]
        if kept and kept[0].last <= case.snapshot_seq:
            assert case.open_bytes + sum(extent.size for extent in kept) <= case.retain_bytes

    @given(cases())
    def test_nothing_goes_without_a_reason(self, case: Case) -> None:
        decision = case.decision()
        total = case.open_bytes + sum(extent.size for extent in case.extents)
        for extent in (extent for extent in case.extents if extent.last < decision.keep_from):
            old = case.retain_us is not None and extent.last_time < case.now - case.retain_us
            held = any(seq <= extent.last for seq in case.holds.values())
            event(f"too much {total > case.retain_bytes}, too old {old}, held {held}")
            assert total > case.retain_bytes or (old and not held)
            total -= extent.size

    @given(cases())
    def test_what_is_too_old_and_not_held_goes(self, case: Case) -> None:
        decision = case.decision()
        kept = [extent for extent in case.extents if extent.last >= decision.keep_from]
        if kept and kept[0].last <= case.snapshot_seq and case.retain_us is not None:
            held = any(seq <= kept[0].last for seq in case.holds.values())
            assert held or kept[0].last_time >= case.now - case.retain_us

    @given(cases())
    def test_the_holds_that_it_passes_are_named(self, case: Case) -> None:
        decision = case.decision()
        gone = {
            n
            for extent in case.extents
            for n in range(extent.first, extent.last + 1)
            if n < decision.keep_from
        }
        assert set(decision.broken) == {name for name, seq in case.holds.items() if seq in gone}
        assert list(decision.broken) == sorted(decision.broken)

    @given(cases())
    def test_to_decide_again_changes_nothing(self, case: Case) -> None:
        decision = case.decision()
        kept = [extent for extent in case.extents if extent.last >= decision.keep_from]
        again = Case(
            kept, case.open_bytes, case.now, case.retain_bytes, case.retain_us, case.holds, case.snapshot_seq
        ).decision()
        assert again == RetentionDecision(kept[0].first if kept else 0)
