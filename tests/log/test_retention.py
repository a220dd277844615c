from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from headrace.log.retention import RetentionDecision, SegmentExtent, decide


def extent(first: int, last: int, time: int, *, covered: bool = True) -> SegmentExtent:
    return SegmentExtent(first, last, 100, time, covered)


EXTENTS = [extent(1, 10, 1000), extent(11, 20, 2000), extent(21, 30, 3000)]


def judged(extents: list[SegmentExtent] = EXTENTS, **changes: Any) -> RetentionDecision:
    given: dict[str, Any] = {
        "open_bytes": 50,
        "now": 3000,
        "retain_bytes": 1000,
        "retain_us": None,
        "holds": {},
    }
    return decide(extents, **(given | changes))


def kept_from(extents: list[SegmentExtent] = EXTENTS, **changes: Any) -> int:
    decision = judged(extents, **changes)
    assert decision.broken == ()
    gone = extents[: decision.remove]
    assert decision.keep_from == (gone[-1].last + 1 if gone else extents[0].first if extents else 0)
    return decision.keep_from


class TestExamples:
    def test_only_what_the_archive_has_goes_and_holds_do_not_matter(self) -> None:
        assert kept_from(retain_bytes=0, archived=0) == 1
        assert kept_from(retain_bytes=0, archived=19) == 11
        assert kept_from(retain_bytes=0, archived=20, holds={"job": 1}) == 21
        assert kept_from(retain_us=1, now=9000, archived=30, holds={"job": 1}) == 31
        assert kept_from(archived=30) == 1

    def test_nothing_to_do(self) -> None:
        assert judged() == RetentionDecision(0, 1)
        assert judged([]) == RetentionDecision(0, 0)

    def test_bytes(self) -> None:
        assert kept_from(retain_bytes=350) == 1
        assert kept_from(retain_bytes=349) == 11
        assert kept_from(retain_bytes=150) == 21
        assert kept_from(retain_bytes=0) == 31

    def test_age(self) -> None:
        assert kept_from(retain_us=2000) == 1
        assert kept_from(retain_us=1999) == 11
        assert kept_from(retain_us=0, now=3001) == 31

    def test_a_hold_delays_age(self) -> None:
        assert kept_from(retain_us=0, now=9999, holds={"job": 15}) == 11
        assert kept_from(retain_us=0, now=9999, holds={"job": 10}) == 1
        assert kept_from(retain_us=0, now=9999, holds={"job": 11, "other": 25}) == 11
        assert kept_from(retain_us=0, now=9999, holds={"job": 31}) == 31

    def test_a_hold_does_not_stop_bytes_and_breaks(self) -> None:
        holds = {"late": 5, "later": 11, "fine": 21}
        assert judged(retain_bytes=250, holds=holds) == RetentionDecision(1, 11, ("late",))
        assert judged(retain_bytes=150, holds=holds) == RetentionDecision(2, 21, ("late", "later"))

    def test_a_hold_breaks_once(self) -> None:
        decision = judged(EXTENTS[1:], retain_bytes=150, holds={"late": 5, "later": 15})
        assert decision == RetentionDecision(1, 21, ("later",))

    def test_nothing_goes_without_a_snapshot(self) -> None:
        for covered in range(3):
            extents = [replace(each, covered=place < covered) for place, each in enumerate(EXTENTS)]
            assert judged(extents, retain_bytes=0).remove == covered

    def test_what_is_not_sealed_counts_but_stays(self) -> None:
        assert judged([], open_bytes=5000) == RetentionDecision(0, 0)
        assert kept_from(open_bytes=5000) == 31

    def test_segments_of_entries_only(self) -> None:
        """They go in their turn, with no message; a hold on the message after them does not keep them."""
        extents = [extent(1, 0, 500), extent(1, 10, 1000), extent(11, 10, 1500), extent(11, 20, 2000)]
        assert judged(extents, retain_us=0, now=9999, holds={"job": 11}) == RetentionDecision(3, 11)
        assert judged(extents, retain_us=0, now=9999, holds={"job": 1}) == RetentionDecision(1, 1)
        assert judged(extents, retain_bytes=449) == RetentionDecision(1, 1)
        assert judged(extents, retain_bytes=0, holds={"job": 15}) == RetentionDecision(4, 21, ("job",))


@dataclass(frozen=True)
class Case:
    extents: list[SegmentExtent]
    open_bytes: int
    now: int
    retain_bytes: int
    retain_us: int | None
    holds: dict[str, int]

    def decision(self) -> RetentionDecision:
        return judged(**{name: getattr(self, name) for name in self.__dataclass_fields__})

    def kept(self) -> list[SegmentExtent]:
        return self.extents[self.decision().remove :]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    first, time = draw(st.integers(1, 50)), draw(st.integers(0, 50))
    extents = []
    count = draw(st.integers(0, 6))
    covered = draw(st.integers(0, count))
    for place in range(count):
        # One of entries only has no message.
        last = first + draw(st.integers(-1, 9))
        time += draw(st.integers(0, 9))
        extents.append(SegmentExtent(first, last, draw(st.integers(1, 100)), time, place < covered))
        first = last + 1
    seqs = st.integers(0, first + 5)
    return Case(
        extents,
        draw(st.integers(0, 100)),
        time + draw(st.integers(-5, 60)),
        draw(st.integers(0, 500)),
        draw(st.none() | st.integers(0, 60)),
        draw(st.dictionaries(st.sampled_from("abcd"), seqs)),
    )


class TestProperties:
    @given(cases())
    def test_whole_segments_go_from_the_beginning(self, case: Case) -> None:
        decision = case.decision()
        gone = case.extents[: decision.remove]
        begin = case.extents[0].first if case.extents else 0
        assert decision.keep_from == (gone[-1].last + 1 if gone else begin)

    @given(cases())
    def test_a_snapshot_precedes_trimming(self, case: Case) -> None:
        assert all(each.covered for each in case.extents[: case.decision().remove])

    @given(cases())
    def test_bytes_are_a_hard_limit(self, case: Case) -> None:
        kept = case.kept()
        if kept and kept[0].covered:
            assert case.open_bytes + sum(each.size for each in kept) <= case.retain_bytes

    @given(cases())
    def test_nothing_goes_without_a_reason(self, case: Case) -> None:
        total = case.open_bytes + sum(each.size for each in case.extents)
        for each in case.extents[: case.decision().remove]:
            old = case.retain_us is not None and each.last_time < case.now - case.retain_us
            held = any(seq <= each.last for seq in case.holds.values())
            event(f"too much {total > case.retain_bytes}, too old {old}, held {held}")
            assert total > case.retain_bytes or (old and not held)
            total -= each.size

    @given(cases())
    def test_what_is_too_old_and_not_held_goes(self, case: Case) -> None:
        kept = case.kept()
        if kept and kept[0].covered and case.retain_us is not None:
            held = any(seq <= kept[0].last for seq in case.holds.values())
            assert held or kept[0].last_time >= case.now - case.retain_us

    @given(cases())
    def test_the_holds_that_it_passes_are_named(self, case: Case) -> None:
        decision = case.decision()
        gone = {n for each in case.extents[: decision.remove] for n in range(each.first, each.last + 1)}
        assert set(decision.broken) == {name for name, seq in case.holds.items() if seq in gone}
        assert list(decision.broken) == sorted(decision.broken)

    @given(cases())
    def test_to_decide_again_changes_nothing(self, case: Case) -> None:
        kept = case.kept()
        again = replace(case, extents=kept).decision()
        assert again == RetentionDecision(0, kept[0].first if kept else 0)
