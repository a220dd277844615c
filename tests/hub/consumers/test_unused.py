from __future__ import annotations

from headrace.hub.consumers.cursors import Consumers, create, use
from headrace.hub.consumers.terms import Terms
from headrace.hub.consumers.unused import GRACE_SECONDS, UnusedConsumers


def consumers(*starts: int) -> Consumers:
    known = Consumers()
    for op, start in enumerate(starts, 1):
        name = f"from {start}"
        known.apply(name, create(name, Terms(), start).run[0], 0, op)
    return known


def test_one_whose_messages_are_old_and_that_has_no_member_is_unused_after_a_while() -> None:
    known = consumers(1, 50, 100)
    unused = UnusedConsumers(known, 30 * 86_400.0)
    # Messages before 60 are older than the bound.
    assert unused.look(0.0, 60) == []
    assert unused.look(GRACE_SECONDS - 1, 60) == []
    assert [each.name for each in unused.look(GRACE_SECONDS, 60)] == ["from 1", "from 50"]


def test_a_member_keeps_it_and_the_time_runs_from_when_it_left() -> None:
    known = consumers(1)
    known.members = lambda _name: 1
    unused = UnusedConsumers(known, 100.0)
    assert unused.look(0.0, 60) == unused.look(1000.0, 60) == []
    known.members = lambda _name: 0
    assert unused.look(1099.0, 60) == []
    assert len(unused.look(1100.0, 60)) == 1


def test_one_that_has_everything_is_left_alone() -> None:
    unused = UnusedConsumers(consumers(60), 100.0)
    assert unused.look(0.0, 60) == unused.look(1000.0, 60) == []


def test_the_word_of_another_node_keeps_it() -> None:
    known = consumers(1)
    unused = UnusedConsumers(known, 100.0)
    for now in (0.0, 90.0, 180.0):
        known.apply("from 1", use("from 1").run[0], 0, 7)
        assert unused.look(now, 60) == []
    assert unused.look(279.0, 60) == []
    assert len(unused.look(280.0, 60)) == 1


def test_only_of_what_looks_unused_is_it_said_to_be_in_use() -> None:
    known = consumers(1, 50, 100)
    known.members = lambda name: int(name != "from 50")
    assert [each.name for each in UnusedConsumers(known, 100.0).in_use(60)] == ["from 1"]
