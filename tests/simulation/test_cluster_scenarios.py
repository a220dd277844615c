"""What breaks a cluster's promises only if several things come together: played on purpose, not left to chance.

Each scenario is played by the rules, which hold, and by rules of which one is broken, which is then seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.cluster import BrokenPromiseError, Node, Parcel, World
from tests.simulation.network import Endpoint
from tests.simulation.test_cluster import LOST, QUIET, broken

from headrace.cluster.effects import Status
from headrace.cluster.recovery import Recovering
from headrace.cluster.replica import Replica
from headrace.cluster.replica_state import ReplicaState
from headrace.cluster.views import ViewReport, Views
from headrace.wire.parcel.body import Commit, DoViewChange, Prepare

SEEDS = range(10)
"""A seed chooses how patient the nodes are, and how long parcels and disks take: no scenario depends on that."""


def begun(seed: int, rules: type[Replica], **chosen: Any) -> tuple[World, Node]:
    """Three nodes that work, and their primary."""
    world = World(seed, rules, **{**QUIET, **chosen})
    world.network.run(lambda: False, 1.0)
    return world, next(node for node in world.nodes if node.accepting)


def cut_off(world: World, node: Node) -> None:
    """Let nothing pass to and from a node."""
    others = [each.endpoint for each in world.nodes if each is not node]
    world.network.cut |= {(node.endpoint, each) for each in others} | {
        (each, node.endpoint) for each in others
    }


def succeeded(world: World, old: Node) -> tuple[Node, Node]:
    """Wait until another node is primary; return it, and the one that follows it."""
    assert world.network.run(lambda: any(node.accepting for node in world.nodes if node is not old), 60.0)
    new = next(node for node in world.nodes if node.accepting and node is not old)
    (third,) = (node for node in world.nodes if node not in (old, new))
    world.network.run(lambda: False, world.network.now + 0.1)
    assert third.replica is not None
    assert third.replica.state.status is Status.NORMAL
    return new, third


def hold_up(world: World, wanted: Callable[[Parcel, Endpoint, Endpoint], bool]) -> list[Parcel]:
    """Keep parcels back from now on; they are in the list that is returned."""
    held: list[Parcel] = []
    send = world.network.send

    def sending(parcel: Parcel, source: Endpoint, to: Endpoint) -> None:
        if wanted(parcel, source, to):
            held.append(parcel)
        else:
            send(parcel, source, to)

    world.network.send = sending  # type: ignore[method-assign]
    return held


class PicksTheLongestLog(Views):
    """A long log counts for more than a later view."""

    def _best(self, reports: dict[int, ViewReport]) -> ViewReport:
        return max(reports.values(), key=lambda report: (report.last, report.node == self._state.me))


def long_log_of_an_old_view(rules: type[Replica]) -> World:
    """A primary that is cut off numbers a lot; the others commit a little without it. Then it meets one of them."""
    world, old = begun(5, rules)
    cut_off(world, old)
    for count in range(10):
        assert old.publish([f"never committed {count}"])
    assert world.goes_on(within=3.0)
    new, _ = succeeded(world, old)
    world.network.cut.clear()
    cut_off(world, new)
    assert world.goes_on(within=5.0)
    return world


def test_a_view_starts_from_the_latest_log_and_not_from_the_longest() -> None:
    world = long_log_of_an_old_view(Replica)
    assert not any("never" in op.text for op in world.chosen.values())
    with pytest.raises(BrokenPromiseError, match=LOST):
        long_log_of_an_old_view(broken(views_class=PicksTheLongestLog))


class RecoversFromTooFew(Recovering):
    """Any one answer will do."""

    enough = 1  # type: ignore[assignment]


def recovery_beside_an_old_primary(rules: type[Replica]) -> World:
    """A primary that is cut off does not know that the others went on. One of them loses its disk, and hears it."""
    world, old = begun(5, rules)
    cut_off(world, old)
    assert world.goes_on(within=3.0)
    new, third = succeeded(world, old)
    third.end("emptied")
    world.network.cut.clear()
    cut_off(world, new)
    third.start()
    assert not world.goes_on(within=5.0)
    world.network.cut.clear()
    assert world.goes_on(within=10.0)
    return world


def test_one_that_recovers_asks_a_majority() -> None:
    recovery_beside_an_old_primary(Replica)
    with pytest.raises(BrokenPromiseError, match=LOST):
        recovery_beside_an_old_primary(broken(recovering_class=RecoversFromTooFew))


class TakesStaleViews(Replica):
    """A primary that has been replaced is still listened to."""

    def _from_primary(self, body: Prepare | Commit) -> None:
        if isinstance(body, Prepare) and self.state.status is Status.NORMAL:
            self._normal.prepare(body)
        else:
            super()._from_primary(body)


def late_batch_of_an_old_view(rules: type[Replica]) -> World:
    """What a primary numbered before it was cut off arrives when another one has taken its place."""
    world, old = begun(5, rules)
    held = hold_up(
        world, lambda parcel, source, _: source == old.endpoint and isinstance(parcel.body, Prepare)
    )
    assert old.publish(["late"])
    cut_off(world, old)
    _, third = succeeded(world, old)
    third.receive(held[0], old.endpoint, world.network.now)
    assert world.goes_on(within=3.0)
    return world


def test_a_primary_that_was_replaced_is_not_listened_to() -> None:
    world = late_batch_of_an_old_view(Replica)
    assert "late" not in [op.text for op in world.chosen.values()]
    with pytest.raises(BrokenPromiseError, match=LOST):
        late_batch_of_an_old_view(TakesStaleViews)


class VotesWithoutPersisting(Views):
    """The new view is not stored before the report of it is sent."""

    def move_to(self, view: int) -> None:
        persist, self._state.persist = self._state.persist, lambda: None  # type: ignore[method-assign]
        super().move_to(view)
        self._state.persist = persist  # type: ignore[method-assign]


def vote_that_outlives_its_voter(seed: int, rules: type[Replica]) -> World:
    """A node that is killed after it has voted for a view starts again; its vote arrives when it has worked on.

    One backup moves to the next view; its report to that view's primary, the other backup, is held up. It is killed and
    starts again, and meets the old primary, which has not heard of any of this. Then the report arrives.
    """
    world, old = begun(seed, rules)
    network = world.network
    assert old.replica is not None
    view = old.replica.state.view + 1
    following = world.nodes[view % 3]
    (other,) = (node for node in world.nodes if node not in (old, following))
    held = hold_up(
        world, lambda parcel, source, _: source == other.endpoint and isinstance(parcel.body, DoViewChange)
    )
    # Nobody hears anybody but one: with the other's wish and its own it moves, alone.
    for node in world.nodes:
        cut_off(world, node)
    network.cut.remove((following.endpoint, other.endpoint))
    assert network.run(lambda: bool(held), network.now + 2.0)
    other.end("killed")
    network.run(lambda: False, network.now + 0.1)  # until whatever else was sent is lost
    network.cut.clear()
    cut_off(world, following)
    other.start()
    network.run(lambda: old.accepting, network.now + 0.05)
    # All of this is over before anybody has lost patience again.
    world.goes_on(within=0.1)
    following.receive(held[0], other.endpoint, network.now)
    network.cut.clear()
    assert world.goes_on(within=10.0)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_has_voted_for_a_view_never_works_in_an_older_one(seed: int) -> None:
    vote_that_outlives_its_voter(seed, Replica)
    with pytest.raises(BrokenPromiseError, match="starts a view without"):
        vote_that_outlives_its_voter(seed, broken(views_class=VotesWithoutPersisting))


class GoesOnAsPrimary(Views):
    """A primary that was ended numbers on in the view in which it was."""

    def resume(self) -> None:
        if self._state.last_normal == self._state.view:
            self._normal.begin()
        else:
            super().resume()


def primary_that_lost_what_it_sent(seed: int, rules: type[Replica]) -> World:
    """A primary's power fails when it has sent a message that its own disk does not have yet; it is back at once."""
    world, old = begun(seed, rules, synced_only=True)
    others = [node for node in world.nodes if node is not old]
    assert old.publish(["sent"])
    old.end("without power")
    del old.disk.ops[old.disk.synced :]
    assert world.network.run(lambda: all(node.disk.synced == 1 for node in others), world.network.now + 0.1)
    old.start()
    old.publish(["instead"])
    assert world.goes_on(within=10.0)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_primary_that_starts_again_gives_no_number_twice(seed: int) -> None:
    world = primary_that_lost_what_it_sent(seed, Replica)
    assert world.chosen[1].text == "sent"
    assert "instead" not in [op.text for op in world.chosen.values()]
    with pytest.raises(BrokenPromiseError, match="commits 1, which only"):
        primary_that_lost_what_it_sent(seed, broken(views_class=GoesOnAsPrimary))


class TrustsAnySync(ReplicaState):
    """A sync that began before a cut counts for what was appended after it."""

    def synced_upto(self, token: int, last: int) -> bool:
        return super().synced_upto(self.sync_token, min(last, self.tail))


def sync_from_before_a_cut(seed: int, rules: type[Replica]) -> World:
    """A primary that is cut off waits for its disk. Its log is cut back, and grows again; then the disk is done."""
    world, old = begun(seed, rules, synced_only=True)
    network = world.network
    cut_off(world, old)
    under_way: list[Callable[[], None]] = []
    old._later = lambda _, action: under_way.append(action)  # type: ignore[method-assign]
    assert old.publish(["entry never", "to be", "committed"])
    new, third = succeeded(world, old)
    network.cut.clear()
    assert network.run(lambda: not old.disk.ops, network.now + 2.0)
    cut_off(world, third)
    assert new.publish(["written, and on one disk"])
    assert network.run(lambda: bool(old.disk.ops and new.disk.synced), network.now + 0.1)
    before, _ = under_way
    before()
    network.run(lambda: False, network.now + 0.1)
    assert new.commit == 0
    del old._later
    under_way[1]()
    assert world.goes_on(within=2.0)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sync_from_before_a_cut_says_nothing_of_what_came_after(seed: int) -> None:
    sync_from_before_a_cut(seed, Replica)
    with pytest.raises(BrokenPromiseError, match="commits 1, which only"):
        sync_from_before_a_cut(seed, broken(state_class=TrustsAnySync))


class CountsOldLives(Views):
    """Reports count even if their sender has lost its memory since."""

    def _valid_reports(self) -> dict[int, ViewReport]:
        return self._reports


def report_of_an_earlier_life(seed: int, rules: type[Replica]) -> World | None:
    """Let a node's report of one life arrive in its next; None if by chance the nodes do not come to that.

    One backup moves to the next view, and its report to that view's primary, the other backup, is held up. It loses its
    disk, recovers in the old view, and has a part in a commit there, without the other one. Then the report arrives.
    """
    world, primary = begun(seed, rules)
    network = world.network
    assert primary.replica is not None
    view = primary.replica.state.view + 1
    following = world.nodes[view % 3]
    (other,) = (node for node in world.nodes if node not in (primary, following))
    held = hold_up(
        world, lambda parcel, source, _: source == other.endpoint and isinstance(parcel.body, DoViewChange)
    )

    def goes_well() -> bool:
        reached = view if following.replica is None else following.replica.state.view
        return bool(held) and primary.accepting and reached < view

    # The one that follows hears nothing of the primary, and wishes for its own view.
    network.cut = {(primary.endpoint, following.endpoint)}
    network.run(lambda: False, network.now + 1.0)
    # The other one neither: it moves, and only its report would tell.
    network.cut |= {(primary.endpoint, other.endpoint)}
    network.cut |= {(other.endpoint, node.endpoint) for node in (primary, following)}
    network.run(lambda: bool(held), network.now + 1.0)
    if not goes_well():
        return None  # The primary has lost its patience as well.
    other.end("emptied")
    network.cut -= {(primary.endpoint, node.endpoint) for node in world.nodes}
    network.run(lambda: False, network.now + 0.1)  # until whatever else it has sent is lost
    network.cut.clear()
    other.start()
    if not network.run(lambda: other.voting, network.now + 0.5) or not goes_well():
        return None
    cut_off(world, following)
    if not world.goes_on(within=0.1):
        return None
    following.receive(held[0], other.endpoint, network.now)
    network.cut.clear()
    return world


def test_a_report_of_an_earlier_life_does_not_count() -> None:
    worlds = [world for seed in range(20) if (world := report_of_an_earlier_life(seed, Replica))]
    assert worlds
    for world in worlds:
        assert world.goes_on(within=10.0)
    rules = broken(views_class=CountsOldLives)
    with pytest.raises(BrokenPromiseError, match="starts a view without"):
        _ = [report_of_an_earlier_life(seed, rules) for seed in range(20)]
