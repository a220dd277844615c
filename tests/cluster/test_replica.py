"""Single rules, seen from outside; the simulation holds all of them together."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

import pytest

from headrace.cluster.durable_state import DurableState, parse_testimony, serialize_testimony
from headrace.cluster.effects import (
    Advance,
    Append,
    Become,
    Broadcast,
    CutBack,
    Effect,
    Halt,
    Persist,
    Send,
    Serve,
    Status,
    Sync,
)
from headrace.cluster.history import MAX_SPANS, History
from headrace.cluster.normal_operation import LULL
from headrace.cluster.replica import Replica
from headrace.errors import MalformedError, UsageError
from headrace.wire.parcel.body import (
    Commit,
    DoViewChange,
    GetState,
    NewState,
    Prepare,
    PrepareOk,
    Recovery,
    RecoveryResponse,
    StartView,
    StartViewChange,
)

T = TypeVar("T", bound=Effect)

NODES = (10, 20, 30)
"""View 1 has primary 20, view 2 has 30, view 3 has 10."""

BEGUN = History([(1, 1)])


def replica(
    me: int, tail: int = 0, *, synced_only: bool = False, intact: bool = True, **state: Any
) -> Replica:
    """One that has been in view 1, with a log written by it."""
    kept = DurableState(
        **{"view": 1, "last_normal": 1, "voter": True, "nodes": NODES, "history": BEGUN, **state}
    )
    return Replica(
        me,
        len(kept.nodes) or 3,
        stored=kept,
        commit=0,
        tail=tail,
        intact=intact,
        synced_only=synced_only,
        random=Random(1),
    )


def told(history: History = BEGUN, **state: Any) -> bytes:
    return serialize_testimony(DurableState(**{"voter": True, "nodes": NODES, **state}), history)


def backup(tail: int = 0, **options: Any) -> Replica:
    made = replica(10, tail, **options)
    made.start(0.0)
    return made


def primary(tail: int = 0, **options: Any) -> Replica:
    """Of view 4, with both backups' agreement to come."""
    made = replica(20, tail, view=4, **options)
    made.start(0.0)
    made.receive(10, DoViewChange(4, 1, 0, 0), told(), 0.0)
    assert made.accepting(0.0)
    return made


def only(effects: list[Effect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def bodies(effects: list[Effect]) -> list[Any]:
    return [effect.body for effect in effects if isinstance(effect, Send | Broadcast)]


class TestNormalOrder:
    def test_a_batch_is_committed_when_one_of_two_backups_has_it(self) -> None:
        one = primary()
        assert one.appended(1, 3, 0.0) == [Broadcast(Prepare(4, 1, 3, 0))]
        assert one.appended(4, 5, 0.0) == [Broadcast(Prepare(4, 4, 5, 0))]
        assert one.receive(10, PrepareOk(4, 3), b"", 0.1) == [Advance(3)]
        assert one.receive(30, PrepareOk(4, 3), b"", 0.1) == []
        # Nothing else is under way: the backups need not wait for the next heartbeat.
        assert one.receive(30, PrepareOk(4, 5), b"", 0.1) == [Advance(5), Broadcast(Commit(4, 5, 5))]

    def test_while_batches_follow_one_another_the_next_one_tells_what_is_committed(self) -> None:
        one = primary()
        one.appended(1, 1, 1.0)
        one.receive(10, PrepareOk(4, 1), b"", 1.0002)
        one.appended(2, 2, 1.0004)
        # The next one is expected soon.
        assert one.receive(10, PrepareOk(4, 2), b"", 1.0006) == [Advance(2)]
        assert one.appended(3, 3, 1.0008) == [Broadcast(Prepare(4, 3, 3, 2))]
        assert one.receive(10, PrepareOk(4, 3), b"", 1.001) == [Advance(3)]
        # Somebody waits at node 30, and nobody anywhere else.
        assert one.tell(30, 1.001) == [Send(30, Commit(4, 3, 3))]
        # None comes: the others are not left to wait.
        due = 1.0008 + LULL
        assert (one.next_timer() or 0) <= due
        assert one.tick(due - 0.0001) == []
        assert one.tick(due) == [Broadcast(Commit(4, 3, 3))]
        assert one.tick(due) == one.tell(30, due) == []
        # One that comes alone is told of at once.
        one.appended(4, 4, 2.0)
        assert one.receive(10, PrepareOk(4, 4), b"", 2.0002) == [Advance(4), Broadcast(Commit(4, 4, 4))]

    def test_only_a_primary_tells_what_is_committed(self) -> None:
        assert backup(tail=3).tell(30, 0.1) == []

    def test_what_a_cut_leaves_is_synced_again_if_a_sync_was_under_way(self) -> None:
        """The one under way says nothing any more, and nothing else may ever be appended."""
        one = backup(synced_only=True)
        one.receive(20, Prepare(1, 1, 3, 0), b"", 0.1)
        effects = one.receive(30, StartView(2, 2, 0), told(History([(1, 1), (2, 3)])), 0.2)
        assert only(effects, CutBack) == [CutBack(2)]
        assert effects.index(CutBack(2)) < effects.index(Sync(1, 2))
        assert one.synced(0, 3, 0.3) == []
        assert PrepareOk(2, 2) in bodies(one.synced(1, 2, 0.4))

    def test_a_snapshot_from_after_the_views_start_is_of_the_same_history(self) -> None:
        """The node began anew behind it, and enters the view that it was taken in."""
        history = History([(1, 1), (2, 26)])
        one = replica(10, tail=28, view=2, commit=28, history=history)
        assert one.start(0.0)
        effects = one.receive(30, StartView(2, 25, 28), told(history), 0.1)
        assert only(effects, Halt) == only(effects, CutBack) == []
        assert (one.state.status, one.state.tail) == (Status.NORMAL, 28)
        assert PrepareOk(2, 28) in bodies(effects)

    def test_synced_counts_where_synced_is_asked_for(self) -> None:
        one = primary(synced_only=True)
        assert one.appended(1, 2, 0.0) == [Sync(0, 2), Broadcast(Prepare(4, 1, 2, 0))]
        assert one.receive(10, PrepareOk(4, 2), b"", 0.1) == []
        assert one.synced(0, 2, 0.2) == [Advance(2), Broadcast(Commit(4, 2, 2))]
        two = backup(synced_only=True)
        assert two.receive(20, Prepare(1, 1, 2, 0), b"", 0.1) == [Append(1, 2), Sync(0, 2)]
        assert two.synced(0, 2, 0.2) == [Send(20, PrepareOk(1, 2))]

    def test_a_sync_from_before_a_cut_says_nothing(self) -> None:
        two = backup(synced_only=True)
        two.receive(20, Prepare(1, 1, 9, 0), b"", 0.1)
        history = History([(3, 1)])
        effects = two.receive(30, StartView(5, 4, 0), told(history.began(5, 5)), 0.2)
        assert only(effects, CutBack) == [CutBack(0)]
        two.receive(30, NewState(5, 1, 4, 0), b"", 0.3)
        assert two.synced(0, 9, 0.4) == []
        assert two.state.status is Status.VIEW_CHANGE
        assert two.synced(1, 4, 0.5)[-1] == Send(30, PrepareOk(5, 4))
        assert two.state.status is Status.NORMAL

    def test_a_backup_appends_what_it_lacks_and_confirms_what_it_has(self) -> None:
        two = backup(tail=3)
        assert two.receive(20, Prepare(1, 2, 5, 3), b"", 0.1) == [
            Append(4, 5),
            Send(20, PrepareOk(1, 5)),
            Advance(3),
        ]
        assert two.receive(20, Prepare(1, 4, 5, 4), b"", 0.1) == [Send(20, PrepareOk(1, 5)), Advance(4)]

    def test_a_gap_is_asked_for_once_and_filled(self) -> None:
        two = backup(tail=3)
        assert two.receive(20, Prepare(1, 6, 7, 3), b"", 0.1) == [Send(20, GetState(1, 3)), Advance(3)]
        assert two.receive(20, Prepare(1, 8, 8, 3), b"", 0.1) == []
        assert two.receive(20, NewState(1, 4, 6, 4), b"", 0.2) == [
            Append(4, 6),
            Advance(4),
            Send(20, GetState(1, 6)),
            Send(20, PrepareOk(1, 6)),
        ]
        assert two.receive(20, NewState(1, 4, 6, 4), b"", 0.2) == []
        assert bodies(two.receive(20, NewState(1, 7, 8, 4), b"", 0.2)) == [PrepareOk(1, 8)]

    def test_a_heartbeat_tells_of_what_was_lost(self) -> None:
        two = backup(tail=3)
        assert bodies(two.receive(20, Commit(1, 5, 2), b"", 0.1)) == [GetState(1, 3), PrepareOk(1, 3)]

    def test_stale_views_and_wrong_senders_are_not_heard(self) -> None:
        two = backup(tail=3, view=4, last_normal=4)
        assert two.receive(20, Prepare(1, 4, 5, 5), b"", 0.1) == []
        assert two.receive(30, Prepare(4, 4, 5, 5), b"", 0.1) == []
        assert two.receive(77, Prepare(4, 4, 5, 5), b"", 0.1) == []
        one = primary()
        one.appended(1, 1, 0.0)
        assert one.receive(10, PrepareOk(1, 1), b"", 0.1) == []
        assert one.receive(10, PrepareOk(4, 2), b"", 0.1) == []

    def test_only_the_primary_numbers_and_only_what_follows(self) -> None:
        with pytest.raises(UsageError):
            backup().appended(1, 1, 0.0)
        with pytest.raises(UsageError):
            primary(tail=3).appended(3, 4, 0.0)

    def test_a_primary_that_nobody_answers_accepts_nothing(self) -> None:
        one = primary()
        assert one.accepting(1.9)
        assert not one.accepting(3.1)
        assert Commit(4, 0, 0) not in bodies(one.tick(3.1))
        one.receive(30, PrepareOk(4, 0), b"", 3.2)
        assert one.accepting(3.2)


class TestAlone:
    def test_everything_is_committed_at_once(self) -> None:
        lone = Replica(7, 1, stored=None, commit=0, tail=5, intact=False, synced_only=False, random=Random(1))
        effects = lone.start(0.0)
        assert only(effects, Persist)[-1].state.history == History([(1, 6)])
        assert lone.accepting(1e9)
        assert lone.appended(6, 7, 1.0) == [Advance(7)]


class TestViews:
    def test_the_new_view_is_stored_before_anybody_hears_of_it(self) -> None:
        two = backup(tail=3)
        effects = two.receive(20, StartViewChange(3), b"", 0.1)
        assert [type(effect) for effect in effects] == [Become, Persist, Send]
        assert only(effects, Persist)[0].state.view == 2
        assert bodies(effects) == [DoViewChange(2, 1, 3, 0)]

    def test_one_wish_moves_nobody(self) -> None:
        assert backup().receive(30, StartViewChange(2), b"", 0.1) == []

    def test_a_wish_is_forgotten(self) -> None:
        two = backup()
        two.receive(30, StartViewChange(2), b"", 0.1)
        two.receive(20, Commit(1, 0, 0), b"", 3.0)
        assert bodies(two.tick(5.9)) == [GetState(1, 0), StartViewChange(2)]
        assert two.state.view == 1
        two.receive(30, StartViewChange(2), b"", 6.0)
        assert two.state.view == 2

    def test_the_latest_view_counts_for_more_than_length(self) -> None:
        longer = History([(1, 1)])
        later = History([(1, 1), (2, 3)])
        new = replica(20, 9, view=4, history=longer)
        new.start(0.0)
        effects = new.receive(30, DoViewChange(4, 2, 4, 1), told(later), 0.1)
        assert only(effects, CutBack) == [CutBack(2)]
        assert bodies(effects) == [GetState(4, 2)]
        effects = new.receive(30, NewState(4, 3, 4, 1), b"", 0.2)
        assert only(effects, Append) == [Append(3, 4)]
        assert bodies(effects) == [StartView(4, 4, 1), StartView(4, 4, 1)]
        assert only(effects, Persist)[-1].state.history == History([(1, 1), (2, 3), (4, 5)])

    def test_a_report_from_an_earlier_life_does_not_count(self) -> None:
        new = replica(20, view=4, incarnations={10: 2})
        new.start(0.0)
        new.receive(10, DoViewChange(4, 1, 0, 0), told(incarnations={10: 1}), 0.1)
        assert new.state.status is Status.VIEW_CHANGE
        new.receive(10, DoViewChange(4, 1, 0, 0), told(incarnations={10: 2}), 0.2)
        assert new.state.status is Status.NORMAL

    def test_a_number_that_others_know_from_an_unfinished_life_is_taken_over(self) -> None:
        new = replica(20, view=4, incarnations={10: 9, 20: 3})
        new.start(0.0)
        new.receive(10, DoViewChange(4, 1, 0, 0), told(incarnations={10: 7, 20: 4}), 0.1)
        assert new.state.status is Status.VIEW_CHANGE
        [report] = only(new.receive(30, StartViewChange(6), b"", 0.2), Send)
        assert parse_testimony(report.bulk).incarnations[20] == 4
        assert isinstance(report.body, DoViewChange)

    def test_a_log_on_its_way_is_not_served_to_others(self) -> None:
        two = backup(tail=3)
        two.receive(30, StartViewChange(3), b"", 0.1)
        assert two.receive(20, GetState(2, 0), b"", 0.2) == []
        assert two.receive(30, GetState(2, 1), b"", 0.2) == [Serve(30, 2, 2, 3, 0)]

    def test_a_log_that_disagrees_below_its_commit_gives_up(self) -> None:
        two = backup(tail=3, commit=3)
        effects = two.receive(30, StartView(2, 4, 2), told(History([(1, 1), (2, 5)])), 0.1)
        assert not only(effects, Halt)
        two = backup(tail=3, commit=3)
        effects = two.receive(30, StartView(5, 4, 2), told(History([(1, 1), (3, 3), (5, 5)])), 0.1)
        [halt] = only(effects, Halt)
        assert "this node has committed what the cluster has not" in halt.reason
        assert halt.after == 2
        assert two.state.status is Status.FAULTY
        assert two.tick(9.0) == []
        assert two.next_timer() is None
        assert two.receive(30, Commit(5, 4, 2), b"", 9.0) == []

    def test_a_node_that_was_away_for_too_long_recovers_before_it_votes(self) -> None:
        two = backup(tail=3, commit=2)
        history = History([(10 + view, 100 + view) for view in range(MAX_SPANS)])
        effects = two.receive(30, StartView(1034, 1123, 2), told(history), 0.1)
        assert two.state.view == 1034
        assert only(effects, CutBack) == []
        assert not only(effects, Persist)[-1].state.voter
        assert two.state.status is Status.RECOVERING
        [asked] = bodies(two.tick(0.2))
        assert isinstance(asked, Recovery)
        answer = told(history, incarnations={10: asked.incarnation})
        two.receive(20, RecoveryResponse(1034, asked.nonce, 1123, 2), answer, 0.3)
        effects = two.receive(30, RecoveryResponse(1034, asked.nonce, 1123, 2), answer, 0.3)
        # What it cuts off without knowing better is not relied on, now that it has no vote.
        assert only(effects, CutBack) == [CutBack(2)]
        assert bodies(effects) == [GetState(1034, 2)]

    def test_bulk_that_is_no_testimony_is_the_peers_fault(self) -> None:
        two = backup()
        for body in (StartView(2, 0, 0), DoViewChange(3, 1, 0, 0)):
            with pytest.raises(MalformedError):
                two.receive(30, body, b"\xc1", 0.1)
        assert two.state.view == 1


class TestRecovery:
    def recovering(self, **options: Any) -> tuple[Replica, Recovery]:
        two = replica(10, 3, intact=False, **options)
        [asked] = bodies(two.start(0.0))
        assert isinstance(asked, Recovery)
        return two, asked

    def test_a_log_that_ends_too_early_has_lost_something(self) -> None:
        two = replica(10, 3, commit=4, synced_only=True)
        assert isinstance(bodies(two.start(0.0))[0], Recovery)
        assert two.state.commit == 3

    def test_what_is_stored_as_committed_is_on_the_disk(self) -> None:
        two = backup(synced_only=True)
        two.receive(20, Prepare(1, 1, 5, 3), b"", 0.1)
        assert two.state.commit == 3
        [stored] = only(two.receive(30, StartViewChange(3), b"", 0.2), Persist)
        assert stored.state.commit == 0

    def test_it_takes_a_majority_and_the_primary(self) -> None:
        two, asked = self.recovering()
        mine = {10: asked.incarnation}
        answer = told(incarnations=mine)
        assert two.receive(30, RecoveryResponse(1, asked.nonce, 9, 0), answer, 0.1) == []
        effects = two.receive(20, RecoveryResponse(1, asked.nonce, 5, 2), answer, 0.1)
        assert bodies(effects) == [GetState(1, 3)]
        assert not two.state.voter
        effects = two.receive(20, NewState(1, 4, 5, 2), b"", 0.2)
        assert only(effects, Persist)[-1].state.voter
        assert two.state.status is Status.NORMAL

    @pytest.mark.parametrize("last", [3, 5, 9])
    def test_a_log_that_the_cluster_has_not_written_is_not_vouched_for(self, last: int) -> None:
        """A lone hub's, say, whichever of the two is longer: its messages are committed, and not the cluster's."""
        other = Replica(
            10, 3, stored=None, commit=5, tail=5, intact=False, synced_only=False, random=Random(1)
        )
        [asked] = bodies(other.start(0.0))
        answer = told(incarnations={10: asked.incarnation})
        other.receive(30, RecoveryResponse(1, asked.nonce, last, 0), answer, 0.1)
        effects = other.receive(20, RecoveryResponse(1, asked.nonce, last, 0), answer, 0.1)
        assert bodies(effects) == []
        [halt] = only(effects, Halt)
        assert "headrace cluster replace" in halt.reason
        assert not other.state.voter

    def test_one_that_was_away_for_too_long_and_committed_more_than_the_primary_gives_up(self) -> None:
        two = replica(10, 9, commit=9, intact=False)
        [asked] = bodies(two.start(0.0))
        answer = told(History([(10, 2), (11, 3), (13, 4)]), incarnations={10: asked.incarnation})
        two.receive(20, RecoveryResponse(13, asked.nonce, 6, 6), answer, 0.1)
        [halt] = only(two.receive(30, RecoveryResponse(13, asked.nonce, 6, 6), answer, 0.1), Halt)
        assert "this node has committed what the cluster has not" in halt.reason
        assert halt.after == 6

    def test_one_killed_before_it_reached_what_is_remembered_goes_on_where_it_was(self) -> None:
        """It is filled again by a cluster that has forgotten which views wrote the beginning of the log."""
        two = replica(10, 5, commit=4, intact=False, history=History([(10, 9), (11, 12)]))
        [asked] = bodies(two.start(0.0))
        answer = told(History([(10, 9), (11, 12)]), incarnations={10: asked.incarnation})
        two.receive(30, RecoveryResponse(11, asked.nonce, 20, 18), answer, 0.1)
        effects = two.receive(20, RecoveryResponse(11, asked.nonce, 20, 18), answer, 0.1)
        assert only(effects, Halt) == []
        assert bodies(effects) == [GetState(11, 4)]

    def test_two_backups_are_not_enough(self) -> None:
        two, asked = self.recovering(nodes=(10, 20, 30, 40, 50))
        for node in (30, 40, 50):
            answer = told(nodes=(10, 20, 30, 40, 50), incarnations={10: asked.incarnation})
            assert two.receive(node, RecoveryResponse(1, asked.nonce, 3, 0), answer, 0.1) == []
        assert two.state.status is Status.RECOVERING

    def test_it_votes_for_nothing_meanwhile(self) -> None:
        two, asked = self.recovering()
        for body in (Prepare(1, 4, 4, 0), Commit(1, 3, 3), StartViewChange(5), GetState(1, 0)):
            assert two.receive(20, body, b"", 0.1) == []
        assert two.receive(20, RecoveryResponse(1, asked.nonce ^ 1, 3, 0), told(), 0.1) == []

    def test_a_number_that_is_taken_is_raised(self) -> None:
        two, asked = self.recovering()
        effects = two.receive(20, RecoveryResponse(1, asked.nonce, 3, 0), told(incarnations={10: 8}), 0.1)
        [again] = bodies(effects)
        assert isinstance(again, Recovery)
        assert again.incarnation > 8
        assert again.nonce != asked.nonce

    def test_the_number_is_stored_before_the_answer(self) -> None:
        one = backup()
        effects = one.receive(20, Recovery(5, 3), b"", 0.1)
        assert [type(effect) for effect in effects] == [Persist, Send]
        assert only(effects, Persist)[0].state.incarnations == {20: 3}
        assert [type(effect) for effect in one.receive(20, Recovery(5, 3), b"", 0.2)] == [Send]
        [other] = only(one.receive(20, Recovery(6, 3), b"", 0.2), Send)
        assert other.bulk == serialize_testimony(
            DurableState(voter=True, nodes=NODES, incarnations={20: 4}), History()
        )

    def test_a_new_cluster_waits_for_everyone(self) -> None:
        new = Replica(10, 3, stored=None, commit=0, tail=0, intact=False, synced_only=True, random=Random(1))
        [asked] = bodies(new.start(0.0))
        blank = serialize_testimony(DurableState(incarnations={10: 1}), History())
        assert new.receive(30, RecoveryResponse(0, asked.nonce, 0, 0), blank, 0.1) == []
        effects = new.receive(20, RecoveryResponse(0, asked.nonce, 0, 0), blank, 0.1)
        assert only(effects, Persist)[0].state.nodes == NODES
        assert (new.state.status, new.state.primary) == (Status.NORMAL, None)

    def test_a_new_node_beside_one_that_remembers_founds_nothing(self) -> None:
        new = Replica(10, 3, stored=None, commit=0, tail=0, intact=False, synced_only=True, random=Random(1))
        [asked] = bodies(new.start(0.0))
        blank = serialize_testimony(DurableState(incarnations={10: 1}), History())
        new.receive(30, RecoveryResponse(0, asked.nonce, 0, 0), blank, 0.1)
        old = serialize_testimony(DurableState(nodes=NODES, incarnations={10: 1}), BEGUN)
        assert new.receive(20, RecoveryResponse(3, asked.nonce, 7, 0), old, 0.1) == []
        assert new.state.status is Status.RECOVERING

    def test_an_operators_word(self) -> None:
        two, _ = self.recovering()
        effects = two.vouch(1.0)
        assert only(effects, Persist)[-1].state.voter
        assert two.state.status is Status.VIEW_CHANGE
        with pytest.raises(UsageError):
            two.vouch(1.0)
        new = Replica(10, 3, stored=None, commit=0, tail=0, intact=False, synced_only=True, random=Random(1))
        new.start(0.0)
        with pytest.raises(
            UsageError, match="not every node of the cluster has been heard from yet: 2 missing"
        ):
            new.vouch(1.0)
