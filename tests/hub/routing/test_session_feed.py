"""How a connector feeds its sessions: by which path, across every seam."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub.connector_scene import ALICE, WANTED, Scene, Wire

from headrace.errors import TrimmedError
from headrace.hub.routing.client_session import NOTHING, MatcherPaths, PushSource
from headrace.hub.routing.session_feed import CACHE_BYTES
from headrace.wire.attribute.messages import msg_id


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.log.close()


class TestFeeding:
    def test_what_has_no_room_comes_from_the_log(self, scene: Scene) -> None:
        wire = scene.subscribed(wire=Wire(free=60))
        scene.match(None)
        seqs = scene.publish(5, ALICE)
        assert wire.got == seqs[:2]
        assert scene.connector.behind == 1
        more = scene.publish(3, ALICE)
        wire.free = 60
        scene.connector.resume(scene.session())
        scene.read()
        assert wire.got == seqs[:4]
        wire.free = 1 << 20
        scene.connector.resume(scene.session())
        scene.read_all()
        assert wire.got == seqs + more
        assert scene.connector.behind == 0
        assert scene.publish(1, ALICE) == wire.got[-1:]

    def test_after_is_read_from_the_log_and_then_live(self, scene: Scene) -> None:
        seqs = scene.publish(6)
        wire = scene.subscribed(after=seqs[2])
        scene.match(None)
        scene.read(most=1)
        more = scene.publish(2, ALICE)
        scene.read_all()
        assert wire.got == seqs[3:] + more
        assert scene.session().live
        assert scene.publish(1, ALICE) == wire.got[-1:]

    def test_what_retention_took_parts(self, scene: Scene) -> None:
        seqs = scene.publish(3)
        wire = scene.subscribed(after=seqs[0] - 1)
        *_, then = scene.reads.pop()
        then(TrimmedError(seqs[0], seqs[-1], seqs[-1]))
        assert wire.parted == "lagging"
        assert scene.hub.counters.get("undeliverable", door="sdk") == 2

    def test_what_came_from_the_log_without_room_is_not_kept(self, scene: Scene) -> None:
        """However many clients take nothing, what was read for them is read again."""
        seqs = scene.publish(3)
        wire = scene.subscribed(after=seqs[0] - 1)
        wire.free = 0
        scene.read()
        assert scene.session().place.pop() is None
        wire.free = 1 << 20
        scene.connector.resume(scene.session())
        assert [first for _, first, _, _ in scene.reads] == [seqs[0]]
        scene.read_all()
        assert wire.got == seqs

    def test_many_short_messages_take_no_more_memory_than_few_long_ones(self, scene: Scene) -> None:
        scene.subscribed()
        scene.match(None)
        for _ in range(20):
            scene.publish(1000, ALICE)
        kept = [frame for chunk in scene.connector._feeding._cache._chunks for frame in chunk.frames.values()]
        assert 0 < sum(map(sys.getsizeof, kept)) <= CACHE_BYTES

    def test_a_read_for_who_has_left_goes_nowhere(self, scene: Scene) -> None:
        seqs = scene.publish(3)
        wire = scene.subscribed(after=seqs[0] - 1)
        scene.connector.leave(scene.session())
        scene.read_all()
        assert wire.got == []

    def test_a_push_from_elsewhere_does_not_overtake_the_matcher_here(self, scene: Scene) -> None:
        """Who matches for its own clients does so whoever else does: of what comes twice, none may be missed."""
        wire = scene.subscribed()
        scene.match(None)
        assert scene.session().live
        batch = scene.commit(3)
        assert batch is not None
        scene.connector.pushed(PushSource(), msg_id(batch.last, 1), b"m", [ALICE])
        scene.match(batch, ALICE)
        assert wire.got == list(range(batch.first, batch.last + 1))


class TestPaths:
    """A connector that relies on matchers elsewhere."""

    @pytest.fixture
    def paths(self, scene: Scene) -> MatcherPaths:
        paths = MatcherPaths()
        scene.connector.relying = True
        scene.connector.find_path = lambda _client: paths.get(7)
        return paths

    def test_without_a_path_the_log_feeds(self, scene: Scene, paths: MatcherPaths) -> None:
        wire = scene.subscribed()
        seqs = [*scene.publish(2), *scene.publish(1)]
        scene.read_all()
        assert wire.got == seqs
        assert not scene.session().live

    def test_a_path_takes_over_behind_its_mark(self, scene: Scene, paths: MatcherPaths) -> None:
        wire = scene.subscribed()
        source = PushSource()
        assert paths.mark(source, 7, scene.log.head)
        scene.connector.reroute()
        assert scene.session().live
        (seq,) = scene.publish(1)
        assert wire.got == []
        scene.connector.pushed(source, msg_id(seq, 1), b"m", [ALICE])
        assert wire.got == [seq]

    def test_a_path_that_comes_during_a_read_leaves_nothing_of_it(
        self, scene: Scene, paths: MatcherPaths
    ) -> None:
        wire = scene.subscribed()
        (seq,) = scene.publish(1)
        source = PushSource()
        paths.mark(source, 7, seq - 1)
        scene.connector.reroute()
        scene.read()
        assert scene.session().live
        assert scene.session().place.pop() is None
        scene.connector.pushed(source, msg_id(seq, 1), b"m", [ALICE])
        assert wire.got == [seq]
        # What is asked for again at the same place is read again: the client may want something else by now.
        scene.session().cursor = seq
        assert scene.session().place.step(seq).chunk is None

    def test_a_push_that_came_too_early_is_found_in_the_log(self, scene: Scene, paths: MatcherPaths) -> None:
        """The matcher is ahead of this process's own copy of the log."""
        source = PushSource()
        scene.publish(1)
        paths.mark(source, 7, 1)
        wire = Wire()
        session = scene.connector.join(ALICE, wire)
        scene.connector.subscribe(session, (WANTED,))
        scene.connector.pushed(source, msg_id(3, 1), b"m", [ALICE])
        # It was delivered to nobody: the client has no subscription here yet.
        assert wire.got == []
        assert scene.publish(2) == [2, 3]
        scene.read_all()
        assert wire.got == [2, 3]
        assert scene.session().live

    def test_a_broken_path_is_bridged_by_the_log(self, scene: Scene, paths: MatcherPaths) -> None:
        wire = scene.subscribed()
        source = PushSource()
        paths.mark(source, 7, scene.log.head)
        scene.connector.reroute()
        one, two, three = scene.publish(3)
        scene.connector.pushed(source, msg_id(one, 1), b"m", [ALICE])
        assert paths.lose(source)
        scene.connector.reroute()
        scene.connector.pushed(source, msg_id(two, 1), b"m", [ALICE])
        scene.read_all()
        assert wire.got == [one, two, three]
        again = PushSource()
        paths.mark(again, 7, three)
        scene.connector.reroute()
        (four,) = scene.publish(1)
        scene.connector.pushed(again, msg_id(four, 1), b"m", [ALICE])
        assert wire.got == [one, two, three, four]

    def test_where_the_newer_of_two_paths_is_lost_the_older_is_used(
        self, scene: Scene, paths: MatcherPaths
    ) -> None:
        wire = scene.subscribed()
        older, newer = PushSource(), PushSource()
        paths.mark(older, 7, scene.log.head)
        paths.mark(newer, 7, scene.log.head)
        scene.connector.reroute()
        (one,) = scene.publish(1)
        for source in (older, newer):
            scene.connector.pushed(source, msg_id(one, 1), b"m", [ALICE])
        assert paths.lose(newer)
        scene.connector.reroute()
        scene.read_all()
        assert scene.session().live
        (two,) = scene.publish(1)
        scene.connector.pushed(older, msg_id(two, 1), b"m", [ALICE])
        assert wire.got == [one, two]
        assert not scene.reads
        assert paths.lose(older)
        scene.connector.reroute()
        assert paths.get(7) is None

    def test_a_path_that_is_not_used_is_lost_unnoticed(self, paths: MatcherPaths) -> None:
        older, newer = PushSource(), PushSource()
        assert paths.mark(older, 7, 1)
        assert paths.mark(newer, 7, 1)
        assert not paths.lose(older)
        assert not paths.mark(newer, 7, 2)

    def test_what_two_sources_bring_is_not_mixed(self, scene: Scene, paths: MatcherPaths) -> None:
        """One is ahead of the other: what it brings is not what comes next to who relies on the other."""
        wire = scene.subscribed()
        ahead, behind = PushSource(), PushSource()
        paths.mark(ahead, 7, scene.log.head)
        (one,), (two,) = scene.publish(1), scene.publish(1)
        for seq in (one, two):
            scene.connector.pushed(ahead, msg_id(seq, 1), b"m", [ALICE])
        paths.mark(behind, 7, one)
        scene.connector.reroute()
        scene.read()  # up to the first
        assert scene.session().live
        (three,) = scene.publish(1)
        scene.connector.pushed(ahead, msg_id(three, 1), b"m", [ALICE])
        for seq in (two, three):
            scene.connector.pushed(behind, msg_id(seq, 1), b"m", [ALICE])
        assert wire.got == [one, two, three]

    def test_a_mark_in_an_empty_log_vouches_for_all(self, paths: MatcherPaths) -> None:
        assert paths.mark(PushSource(), 7, 0)
        assert (path := paths.get(7)) is not None
        assert path.begins == 1

    def test_a_mark_of_nothing_withdraws_a_path(self, scene: Scene, paths: MatcherPaths) -> None:
        wire = scene.subscribed()
        source = PushSource()
        assert not paths.mark(source, 7, NOTHING)
        paths.mark(source, 7, scene.log.head)
        scene.connector.reroute()
        assert scene.session().live
        assert paths.mark(source, 7, NOTHING)
        scene.connector.reroute()
        seqs = scene.publish(2)
        # It went another way, and what comes by this one is no place to go on from.
        paths.mark(source, 7, seqs[-1])
        scene.connector.reroute()
        scene.read_all()
        assert wire.got == seqs
        assert scene.session().live

    def test_a_push_of_another_make_has_no_place_in_the_sequence(
        self, scene: Scene, paths: MatcherPaths
    ) -> None:
        wire = scene.subscribed()
        scene.connector.pushed(PushSource(), b"\xff" * 12, b"theirs", [ALICE])
        seqs = scene.publish(1)
        scene.read_all()
        assert wire.got == [0, *seqs]

    def test_marks_spare_the_log_what_is_known_to_be_for_others(
        self, scene: Scene, paths: MatcherPaths
    ) -> None:
        scene.subscribed()
        source = PushSource()
        paths.mark(source, 7, scene.log.head)
        scene.connector.reroute()
        scene.publish(5)
        paths.mark(source, 7, scene.log.head - 1)
        paths.lose(source)
        scene.connector.reroute()
        ((_, first, last, _),) = scene.reads
        assert (first, last) == (scene.log.head, scene.log.head)

    @given(data=st.data())
    def test_whatever_breaks_whenever_each_message_comes_once_in_order(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        random = Random(data.draw(st.integers(0, 1 << 32)))
        scene = Scene(tmp_path_factory.mktemp("log"))
        paths = MatcherPaths()
        scene.connector.relying = True
        scene.connector.find_path = lambda _client: paths.get(7)
        wire = scene.subscribed()
        matched = scene.log.head  # how far the matcher elsewhere is
        flights: dict[
            PushSource, list[tuple[int, bool]]
        ] = {}  # what is on its way from it, by each of two dispatchers
        withdrawn: set[PushSource] = set()  # those it does not push by any more
        expected: list[int] = []

        def arrive(came: PushSource, seq: int, is_mark: bool) -> None:
            if not is_mark:
                scene.connector.pushed(came, msg_id(seq, 1), b"m", [ALICE])
            elif paths.mark(came, 7, seq):
                scene.connector.reroute()

        def push() -> None:
            nonlocal matched
            matched += 1
            for source, flight in flights.items():
                if source not in withdrawn:
                    flight.append((matched, False))
                    if random.random() < 0.5:
                        flight.append((matched, True))

        for _ in range(data.draw(st.integers(1, 200))):
            some = random.choice(list(flights)) if flights else None
            match random.choice([0, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 6, 7, 7, 8, 9]):
                case 0 | 1:
                    expected += scene.publish(random.randrange(1, 5))
                case 2 | 3 if matched < scene.log.head:
                    push()
                case 4 | 5 if some is not None and flights[some]:
                    arrive(some, *flights[some].pop(0))
                case 6:
                    if some is not None and (len(flights) == 2 or random.random() < 0.5):
                        # What was on its way is lost with the connection.
                        del flights[some]
                        if paths.lose(some):
                            scene.connector.reroute()
                    flights[PushSource()] = [(matched, True)]
                case 7 if scene.reads:
                    scene.read(most=random.randrange(1, 4))
                case 8:
                    wire.free = random.choice([0, 40, 100, 1 << 20])
                    scene.connector.resume(scene.session())
                case 9 if some is not None:
                    # The messages go another way from here on, or this way again.
                    flights[some].append((matched if some in withdrawn else NOTHING, True))
                    withdrawn ^= {some}
        wire.free = 1 << 30
        scene.connector.resume(scene.session())
        scene.read_all()
        # The matcher gets to the end, and what is on its way arrives.
        while matched < scene.log.head:
            push()
        for source, flight in flights.items():
            for seq, is_mark in flight:
                arrive(source, seq, is_mark)
        scene.read_all()
        assert wire.got == expected
        scene.log.close()
