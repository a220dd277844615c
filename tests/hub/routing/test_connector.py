"""The connector without a socket: who is here, and what each wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.connector_scene import ALICE, BOB, HERE, THERE, WANTED, Scene, Wire

from headrace.errors import LimitError, StorageError
from headrace.hub.routing.connector import Connector
from headrace.hub.routing.subscriptions import (
    Subscriptions,
)
from headrace.message import Batch, Run
from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Equals, Inside, Predicate
from headrace.wire.sdk.region import Circle, Polygon


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.log.close()


class TestSubscribing:
    def test_a_new_client_is_live_behind_its_entry(self, scene: Scene) -> None:
        before = scene.publish(3)
        wire = scene.subscribed()
        scene.match(None)
        assert scene.session().live
        seqs = scene.publish(3, ALICE)
        assert wire.got == seqs
        assert before[-1] < seqs[0]

    def test_messages_before_the_entry_in_the_same_turn_are_not_its(self, scene: Scene) -> None:
        wire = Wire()
        session = scene.connector.join(ALICE, wire)
        done: list[Batch] = []
        scene.hub.submit(Batch(Run.of([b"early"]), origin="test"), done.append)  # type: ignore[arg-type]
        scene.connector.subscribe(session, (WANTED,))
        late = scene.commit(1)
        assert late is not None
        # The index has the subscription already when the turn's messages are matched.
        scene.connector.advance()
        scene.match(done[0], ALICE)
        scene.match(late, ALICE)
        assert wire.got == [late.first]

    def test_nothing_is_appended_for_nothing(self, scene: Scene) -> None:
        session = scene.connector.join(ALICE, Wire())
        scene.connector.subscribe(session, ())
        scene.commit()
        assert scene.log.head_op == 0
        scene.connector.subscribe(session, (WANTED,))
        scene.commit()
        scene.connector.subscribe(session, (WANTED,))
        scene.commit()
        assert scene.log.head_op == 1
        # But where a change is under way, the last word counts.
        scene.connector.subscribe(session, ())
        scene.connector.subscribe(session, (WANTED,))
        scene.commit()
        assert (scene.log.head, scene.log.head_op) == (0, 3)
        assert ALICE in scene.subscriptions

    def test_caps_count_what_is_under_way(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, max_subscriptions=1)
        scene.connector.subscribe(scene.connector.join(ALICE, Wire()), (WANTED,))
        with pytest.raises(LimitError):
            scene.connector.subscribe(scene.connector.join(BOB, Wire()), (WANTED,))
        with pytest.raises(LimitError):
            scene.connector.subscribe(scene.session(), ({str(n): Equals("") for n in range(5)},))
        scene.log.close()

    def test_a_client_that_is_elsewhere_now_is_let_go(self, scene: Scene) -> None:
        wire = scene.subscribed()
        from headrace.hub.routing.subscriptions import (
            move,
        )

        scene.hub.submit(move(ALICE, THERE))
        scene.commit()
        assert wire.parted == "moved"

    def test_a_client_that_comes_from_elsewhere_brings_its_subscription(self, scene: Scene) -> None:
        from headrace.hub.routing.subscription_parts import serialize_fields
        from headrace.hub.routing.subscriptions import subscribe

        scene.hub.submit(subscribe(ALICE, THERE, serialize_fields(WANTED)))
        scene.commit()
        wire = Wire()
        scene.connector.join(ALICE, wire)
        scene.commit()
        scene.match(None)
        assert scene.subscriptions.get(ALICE).connector == HERE  # type: ignore[union-attr]
        assert wire.got == []
        assert scene.publish(2, ALICE) == wire.got

    def test_a_log_that_takes_no_entry_parts(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_batches: object) -> None:
            raise StorageError("no space")

        wire = Wire()
        session = scene.connector.join(ALICE, wire)
        scene.connector.subscribe(session, (WANTED,))
        monkeypatch.setattr(scene.log, "append", full)
        scene.commit()
        assert wire.parted == "storage"
        assert session.pending == 0


class TestFences:
    def fence(self, x: str = "x", event: str = "enter", after: int = 0) -> dict[str, Fence]:
        return {x: Fence("y", Circle(0, 0, 1), "key", (event,), after)}

    def kept(self, scene: Scene) -> list[dict[str, Predicate]]:
        kept = scene.subscriptions.get(ALICE)
        assert kept is not None
        return [part.predicates for part in kept.parts(ALICE).values()]

    def test_a_fence_begins_with_the_next_message(self, scene: Scene) -> None:
        scene.publish(3)
        session = scene.connector.join(ALICE, Wire())
        scene.connector.subscribe(session, (self.fence(after=1),))
        scene.commit()
        assert self.kept(scene) == [self.fence(after=3)]
        # A client that comes back to it, or says it again, goes on with it.
        scene.publish(2)
        again = scene.connector.join(ALICE, Wire())
        entries = scene.log.head_op
        scene.connector.subscribe(again, (self.fence(),))
        scene.commit()
        assert scene.log.head_op == entries
        assert self.kept(scene) == [self.fence(after=3)]
        scene.connector.subscribe(again, (self.fence(event="exit"),))
        scene.commit()
        assert self.kept(scene) == [self.fence(event="exit", after=5)]

    def test_a_push_tells_the_events_by_subscription(self, scene: Scene) -> None:
        wire = Wire()
        session = scene.connector.join(ALICE, wire)
        scene.connector.subscribe(session, (self.fence(),))
        scene.connector.subscribe(session, (self.fence(event="exit"), self.fence()), "near")
        scene.commit()
        scene.connector.advance()
        kept = scene.subscriptions.get(ALICE)
        assert kept is not None
        scene.match(None)
        scene.publish(1, *kept.parts(ALICE))
        push = json.loads(wire.sent.split(b"\r\n")[1])
        assert push["subs"] == ["near"]
        assert push["events"] == {"": ["enter"], "near": ["enter", "exit"]}

    def test_a_plain_fence_is_told_too(self, scene: Scene) -> None:
        wire = Wire()
        session = scene.connector.join(ALICE, wire)
        scene.connector.subscribe(session, (self.fence(event="exit"),))
        scene.commit()
        scene.connector.advance()
        scene.match(None)
        scene.publish(1, ALICE)
        push = json.loads(wire.sent.split(b"\r\n")[1])
        assert (push["events"], "subs" in push) == ({"": ["exit"]}, False)

    def test_tracks_are_counted_before_they_are_in_the_log(self, scene: Scene) -> None:
        session = scene.connector.join(ALICE, Wire())
        for name in ("a", "b"):
            scene.connector.subscribe(session, (self.fence(name),), name)
        with pytest.raises(LimitError, match=r"matching\.max_tracks"):
            scene.connector.subscribe(session, (self.fence("c"),), "c")
        assert scene.connector.usage(session) == (2, 2)
        scene.commit()
        assert scene.connector.usage(session) == (2, 2)
        with pytest.raises(LimitError, match=r"matching\.max_tracks"):
            scene.connector.subscribe(session, (self.fence("c"),), "c")
        scene.connector.subscribe(session, (self.fence("a", "exit"),), "another")
        scene.connector.subscribe(session, (), "b")
        scene.commit()
        assert scene.connector.usage(session) == (2, 1)
        scene.connector.subscribe(session, (self.fence("c"),), "c")
        scene.commit()
        assert {track.x for track in scene.subscriptions.tracks} == {"a", "c"}

    def test_vertices_count_while_they_are_kept(self, scene: Scene) -> None:
        session = scene.connector.join(ALICE, Wire())
        corner = {"x": Inside("y", Polygon(((0, 0), (1, 0), (0, 1))))}
        assert scene.connector.more_usage(session, "near", (corner, WANTED)) == (2 + 3, 0)
        scene.connector.subscribe(session, (corner, WANTED), "near")
        assert scene.connector.usage(session) == (2 + 3, 0)
        scene.commit()
        assert scene.connector.usage(session) == (2 + 3, 0)
        copy = Subscriptions()
        copy.load(scene.subscriptions.dump())
        assert dict(copy) == dict(scene.subscriptions)
        scene.connector.subscribe(session, (WANTED,), "near")
        scene.commit()
        assert scene.connector.usage(session) == (1, 0)


class TestAway:
    def test_a_subscription_is_given_up_after_its_time(self, scene: Scene) -> None:
        scene.connector.tick(100.0)
        scene.subscribed()
        scene.connector.leave(scene.session())
        scene.connector.tick(109.9)
        scene.commit()
        assert ALICE in scene.subscriptions
        scene.connector.tick(110.0)
        scene.commit()
        assert ALICE not in scene.subscriptions

    def test_who_is_back_in_time_keeps_it(self, scene: Scene) -> None:
        scene.connector.tick(100.0)
        scene.subscribed()
        scene.connector.leave(scene.session())
        scene.connector.join(ALICE, Wire())
        scene.connector.tick(1000.0)
        scene.commit()
        assert ALICE in scene.subscriptions

    def test_who_comes_back_while_it_is_given_up_has_it_again(self, scene: Scene) -> None:
        scene.connector.tick(100.0)
        scene.subscribed()
        scene.connector.leave(scene.session())
        scene.connector.tick(200.0)
        wire = Wire()
        scene.connector.join(ALICE, wire)
        scene.commit()
        scene.match(None)
        assert ALICE in scene.subscriptions
        assert scene.publish(1, ALICE) == wire.got

    def test_after_a_restart_the_time_begins_anew(self, scene: Scene) -> None:
        scene.subscribed()
        again = Connector(
            scene.hub,
            scene.subscriptions,
            lambda *_: None,
            connector_id=HERE,
            keep_seconds=10.0,
            max_subscriptions=1,
            max_predicates=1,
            max_tracks=1,
            replay=1,
        )
        again.tick(5000.0)
        again.tick(5009.0)
        scene.commit()
        assert ALICE in scene.subscriptions
        again.tick(5010.0)
        scene.commit()
        assert ALICE not in scene.subscriptions

    def test_a_guest_leaves_nothing(self, scene: Scene) -> None:
        session = scene.connector.join(ALICE, Wire(), guest=True)
        scene.connector.subscribe(session, (WANTED,))
        # It is gone before its subscription is in the log.
        scene.connector.leave(session)
        scene.commit()
        assert ALICE not in scene.subscriptions
