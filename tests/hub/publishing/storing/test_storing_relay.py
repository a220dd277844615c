"""Store and forward without a socket: what is kept goes up once and in order, whatever breaks in between."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.hub.publishing.relaying.test_publishes import Root, payloads
from tests.hub.publishing.storing.edge import PATIENCE, Edge, full

from headrace.errors import (
    FullError,
    HeadraceError,
    RefusedError,
    StorageError,
    UnavailableError,
    UsageError,
)
from headrace.hub.holds import hold
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.publishing.storing.outbox import Outbox
from headrace.hub.sequencer import KEPT, Claim, Opened, Opening, Published, is_kept
from headrace.hub.state import entry
from headrace.message import Batch


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


@pytest.fixture
def edge(tmp_path: Path, root: Root) -> Edge:
    return Edge(tmp_path / "edge", root)


def is_told_kept(edge: Edge, name: str) -> bool:
    told = edge.told[name]
    return told == KEPT or (isinstance(told, Batch) and is_kept(told))


def test_nothing_is_kept_while_the_upstream_hub_is_there(edge: Edge, root: Root) -> None:
    edge.relay.connected()
    edge.submit("a")
    edge.send()
    edge.receive()
    assert not is_told_kept(edge, "a")
    assert edge.kept_log.tail == 0


def test_kept_first_then_new_and_each_once(edge: Edge, root: Root) -> None:
    edge.away()
    edge.submit("a", "b")
    edge.turn()
    edge.publish("p", 0, "p0")
    edge.turn()
    assert is_told_kept(edge, "a")
    assert is_told_kept(edge, "p0")
    edge.relay.connected()
    edge.submit("c")
    edge.turn()
    assert is_told_kept(edge, "c")
    edge.drain()
    edge.submit("d")
    edge.send()
    edge.receive()
    assert payloads(root.log) == [b"a", b"b", b"p0", b"c", b"d"]
    assert isinstance(edge.told["d"], Batch)
    assert edge.told["d"].first == 5


def test_what_was_under_way_when_it_was_lost_is_not_doubled(edge: Edge, root: Root) -> None:
    """It was taken, the answer was lost, and the frontend dies before it hears of that."""
    edge.relay.connected()
    edge.submit("a")
    edge.turn()
    edge.publish("p", 7, "p7", "p8")
    edge.send()
    assert payloads(root.log) == [b"a", b"p7", b"p8"]
    edge.away()
    assert is_told_kept(edge, "a")
    assert is_told_kept(edge, "p7")
    edge.submit("b")
    edge.turn()
    edge.crash()
    edge.drain()
    assert payloads(root.log) == [b"a", b"p7", b"p8", b"b"]


def test_a_crash_between_sending_and_settling_doubles_nothing(edge: Edge, root: Root) -> None:
    edge.away()
    for number in range(20):
        edge.submit(f"d{number}")
        edge.turn()
        edge.publish("p", number, f"p{number}")
        edge.turn()
    for sent in range(1, 6):
        edge.relay.connected()
        edge.send(sent)
        edge.crash()
    edge.drain()
    expected = [f"{kind}{number}".encode() for number in range(20) for kind in "dp"]
    assert payloads(root.log) == expected


def test_a_retry_of_what_is_kept_is_the_same(edge: Edge, root: Root) -> None:
    edge.away()
    edge.publish("p", 3, "p3", "p4")
    edge.turn()
    edge.crash()
    edge.told.clear()
    edge.publish("p", 3, "p3", "p4", claim=Claim(retry=0))
    edge.turn()
    assert edge.told["p3"] == KEPT._replace(repeated=2)
    # More than was kept: only the rest is new.
    edge.publish("p", 4, "p4", "p5")
    edge.turn()
    assert edge.told["p4"] == KEPT._replace(repeated=1)
    edge.publish("p", 5, "other")
    edge.turn()
    told = edge.told["other"]
    assert isinstance(told, RefusedError)
    assert told.code == "conflict"
    edge.drain()
    assert payloads(root.log) == [b"p3", b"p4", b"p5"]


def test_the_bound_refuses_aloud_and_what_follows_a_refused_one(tmp_path: Path, root: Root) -> None:
    edge = Edge(tmp_path / "edge", root, most=4000)
    edge.away()
    edge.publish("p", 0, "p0")
    edge.publish("p", 1, "x" * 4000, follows=True)
    edge.publish("p", 2, "p2", follows=True)
    edge.turn()
    assert is_told_kept(edge, "p0")
    refused = edge.told["x" * 4000]
    assert isinstance(refused, FullError)
    assert "store_bytes" in str(refused)
    follower = edge.told["p2"]
    assert isinstance(follower, RefusedError)
    assert follower.code == "conflict"
    assert edge.hub.counters.as_dict()["refused"] == {"upstream/outbox": 1}
    edge.publish("p", 1, "p1")
    edge.turn()
    edge.drain()
    assert payloads(root.log) == [b"p0", b"p1"]
    assert edge.outbox.size == 0


def test_no_more_is_kept_once_the_oldest_has_waited_too_long(tmp_path: Path, root: Root) -> None:
    edge = Edge(tmp_path / "edge", root, seconds=60)
    edge.away()
    edge.relay.time_of_day = 1_000_000
    edge.submit("a")
    edge.turn()
    edge.relay.time_of_day = 62_000_000
    edge.submit("b")
    edge.turn()
    assert isinstance(edge.told["b"], UnavailableError)
    edge.drain()
    assert payloads(root.log) == [b"a"]
    # An outbox that is empty is never too old, though its disk refused something long ago.
    edge.away()
    real, edge.kept_log.append = edge.kept_log.append, full  # type: ignore[method-assign]
    edge.submit("c")
    edge.turn()
    edge.kept_log.append = real  # type: ignore[method-assign]
    edge.relay.time_of_day = 999_000_000
    edge.submit("d")
    edge.turn()
    assert is_told_kept(edge, "d")


def test_state_is_refused_and_a_service_goes_with_its_message(edge: Edge, root: Root) -> None:
    edge.away()
    told: list[object] = []
    edge.hub.submit(entry("hold", "h", hold(1)), told.append)
    edge.hub.submit(entry("service", "alone", b"{}"), told.append)
    edge.hub.submit(entry("service", "door", b"{}"))
    edge.submit("a")
    edge.turn()
    assert [type(each) for each in told] == [UnavailableError, UnavailableError]
    edge.drain()
    kept = [row.topic for batch in root.log.scan_ops(1) for row in batch if row.origin == "log"]
    assert "service/door" in kept
    assert not {"hold/h", "service/alone"} & set(kept)
    assert payloads(root.log) == [b"a"]


def test_refused_for_now_stays_and_is_sent_again(edge: Edge, root: Root) -> None:
    edge.away()
    for number in range(5):
        edge.submit(f"d{number}")
        edge.turn()
        edge.publish("p", number, f"p{number}")
        edge.turn()
    root.failing = True
    edge.relay.connected()
    edge.send()
    edge.receive()
    assert edge.relay.refused_for_now is not None
    assert payloads(root.log) == []
    root.failing = False
    edge.drain()
    assert payloads(root.log) == [f"{kind}{n}".encode() for n in range(5) for kind in "dp"]
    assert edge.relay.refused_for_now is None


def test_what_a_door_brought_after_one_refused_for_now_waits_for_it(edge: Edge, root: Root) -> None:
    edge.away()
    for number in range(4):
        edge.submit(f"d{number}")
        edge.turn()
    edge.relay.connected()
    root.failing = True
    edge.send(1)
    root.failing = False
    edge.send()
    edge.receive()
    edge.drain()
    assert payloads(root.log) == [b"d0", b"d1", b"d2", b"d3"]


@pytest.mark.parametrize("step", [1, 10])
def test_what_follows_one_refused_for_now_waits_for_it(edge: Edge, root: Root, step: int) -> None:
    """The upstream hub has no room for one request of a publisher, and room again for the next."""
    edge.away()
    for number in range(4):
        edge.publish("p", step * number, f"p{number}")
        edge.turn()
    edge.relay.connected()
    root.failing = True
    edge.send(1)
    root.failing = False
    edge.send()
    edge.receive()
    edge.drain()
    assert payloads(root.log) == [b"p0", b"p1", b"p2", b"p3"]
    assert edge.set_aside_payloads == []


def test_refused_for_good_is_set_aside_and_the_rest_goes_on(edge: Edge, root: Root) -> None:
    """Somebody else opens the name at another hub: what its former holder left here is fenced."""
    opened: list[object] = []
    edge.relay.ask_to_open = lambda name, opening, reply: root.publishing.open(name, opening, reply)
    edge.relay.connected()
    edge.publishing.open("p", Opening("one"), opened.append)
    root.turn(0)
    edge.follow()
    (first,) = opened
    assert isinstance(first, Opened)
    edge.away()
    edge.submit("a")
    edge.publish("p", 0, "p0", claim=Claim(epoch=first.epoch))
    edge.turn()
    assert is_told_kept(edge, "p0")
    edge.submit("b")
    edge.turn()
    # While something of it waits here, nobody opens the name by this hub.
    edge.relay.connected()
    edge.publishing.open("p", Opening("two"), opened.append)
    assert isinstance(opened[-1], UnavailableError)
    root.publishing.open("p", Opening("elsewhere"), lambda _: None)
    root.turn(0)
    edge.drain()
    assert payloads(root.log) == [b"a", b"b"]
    assert edge.set_aside_payloads == [b"p0"]
    assert edge.hub.counters.as_dict()["outbox_aside"] == 1
    # Known now: refused at once.
    edge.away()
    edge.publish("p", 1, "p1", claim=Claim(epoch=first.epoch))
    edge.turn()
    told = edge.told["p1"]
    assert isinstance(told, RefusedError)
    assert told.code == "fenced"


def test_marks_after_a_refused_one_get_a_new_name(edge: Edge, root: Root) -> None:
    """A relayed request that the upstream hub will never take, in the middle of others."""
    edge.away()
    for number in range(6):
        edge.submit(f"d{number}")
        edge.turn()
    real = root.take

    def picky(request: object) -> list[object]:
        if any(b"d2" in batch.run for batch in request.rows):  # type: ignore[attr-defined]
            return [RefusedError("limit", "too long for the upstream hub")]
        return real(request)  # type: ignore[arg-type, return-value]

    root.take = picky  # type: ignore[method-assign, assignment]
    edge.relay.connected()
    edge.send(4)
    edge.receive()
    edge.crash()
    edge.drain()
    assert payloads(root.log) == [b"d0", b"d1", b"d3", b"d4", b"d5"]
    assert edge.set_aside_payloads == [b"d2"]


def test_a_failed_append_acknowledges_nothing(edge: Edge, root: Root) -> None:
    edge.away()
    edge.submit("a")
    edge.turn()
    real, edge.kept_log.append = edge.kept_log.append, full  # type: ignore[method-assign]
    edge.submit("b")
    edge.publish("p", 0, "p0")
    edge.turn()
    edge.kept_log.append = real  # type: ignore[method-assign]
    assert isinstance(edge.told["b"], FullError)
    assert isinstance(edge.told["p0"], FullError)
    edge.submit("c")
    edge.publish("p", 0, "again")
    edge.turn()
    edge.drain()
    assert payloads(root.log) == [b"a", b"again", b"c"]


def test_an_outbox_for_another_history_is_refused(edge: Edge, tmp_path: Path) -> None:
    edge.away()
    edge.submit("a")
    edge.turn()
    other = Root(tmp_path / "other")
    with pytest.raises(UsageError) as refused:
        Outbox(edge.kept_log, other.log.uuid, PublisherNumbers(), most=1)
    assert str(other.log.uuid) in str(refused.value)
    assert str(edge.log.uuid) in str(refused.value)


def test_a_failure_above_refuses_the_new_and_leaves_the_kept(edge: Edge, root: Root) -> None:
    edge.away()
    edge.submit("a")
    edge.turn()
    edge.relay.connected()
    edge.load()
    edge.relay.fail("another history")
    edge.submit("b")
    edge.turn()
    edge.relay.tick(edge.now)
    assert isinstance(edge.told["b"], UnavailableError)
    assert edge.outbox.state.waiting.messages == 1


def test_what_was_answered_before_it_came_back_is_kept(edge: Edge, root: Root) -> None:
    """The upstream hub has answered and is lost before the frontend has a copy: nobody waits for its return."""
    edge.relay.connected()
    edge.submit("a")
    edge.publish("p", 0, "p0")
    edge.send()
    edge.answer()
    assert edge.told == {}
    edge.away()
    assert is_told_kept(edge, "a")
    assert is_told_kept(edge, "p0")
    edge.drain()
    assert sorted(payloads(root.log)) == [b"a", b"p0"]
    assert edge.relay.size == 0


def test_who_opened_a_name_may_publish_under_it_at_once(edge: Edge, root: Root) -> None:
    """An opening is answered once the frontend's own state has it: names are judged by that while it stores."""
    opened: list[object] = []
    edge.relay.ask_to_open = lambda name, opening, reply: root.publishing.open(name, opening, reply)
    edge.away()
    edge.submit("a")
    edge.turn()
    edge.relay.connected()
    edge.publishing.open("p", Opening("one"), opened.append)
    root.turn(0)
    assert opened == []
    edge.follow()
    (first,) = opened
    assert isinstance(first, Opened)
    edge.publish("p", 0, "p0", claim=Claim(epoch=first.epoch))
    edge.turn()
    assert is_told_kept(edge, "p0")
    # The next one is lost before it comes back.
    edge.publishing.open("q", Opening("one"), opened.append)
    root.turn(0)
    edge.away()
    assert isinstance(opened[-1], UnavailableError)
    edge.drain()
    assert payloads(root.log) == [b"a", b"p0"]


def test_an_outbox_that_failed_does_not_stand_in_the_way_of_the_upstream_hub(edge: Edge, root: Root) -> None:
    """The disk refuses what is under way to it when the upstream hub is back: there is nothing to store for."""
    edge.away()
    edge.submit("a")
    edge.hub.turn(0)
    edge.relay.connected()
    real, edge.kept_log.append = edge.kept_log.append, full  # type: ignore[method-assign]
    edge.outbox.hub.turn(0)
    assert isinstance(edge.told["a"], FullError)
    edge.submit("b")
    edge.send()
    edge.receive()
    edge.kept_log.append = real  # type: ignore[method-assign]
    assert payloads(root.log) == [b"b"]


def test_a_conflict_with_what_is_kept_holds_up_nobody_else(edge: Edge, root: Root) -> None:
    """Two programs of one name: what one of them sends wrongly leaves no gap in what the other has sent."""
    edge.away()
    edge.publish("p", 0, "p0", "p1")
    edge.turn()
    edge.publish("p", 0, "other")
    edge.turn()
    assert isinstance(edge.told["other"], RefusedError)
    edge.publish("p", 2, "p2", follows=True)
    edge.turn()
    assert is_told_kept(edge, "p2")
    edge.drain()
    assert payloads(root.log) == [b"p0", b"p1", b"p2"]


def test_an_outbox_that_cannot_note_a_refusal_tries_again_later(edge: Edge, root: Root) -> None:
    edge.away()
    edge.submit("a")
    edge.turn()
    edge.submit("b")
    edge.turn()
    real = root.take

    def picky(request: object) -> list[object]:
        if any(b"a" in batch.run for batch in request.rows):  # type: ignore[attr-defined]
            return [RefusedError("limit", "too long for the upstream hub")]
        return real(request)  # type: ignore[arg-type, return-value]

    root.take = picky  # type: ignore[method-assign, assignment]
    edge.relay.connected()
    edge.send()
    append, edge.kept_log.append = edge.kept_log.append, full  # type: ignore[method-assign]
    edge.receive()
    assert edge.relay.due_from is None
    edge.kept_log.append = append  # type: ignore[method-assign]
    edge.drain()
    assert payloads(root.log) == [b"b"]
    assert edge.set_aside_payloads == [b"a"]


def fill(edge: Edge) -> None:
    """Let the disk be full for notes."""
    edge.kept_log.append = full  # type: ignore[method-assign]


def fail(edge: Edge) -> None:
    """Let a sync fail: the outbox writes nothing more."""
    edge.outbox.hub.fail(StorageError("the disk failed to sync"))


@pytest.mark.parametrize("broken", [fill, fail], ids=["full", "failed"])
def test_no_more_is_sent_than_the_disk_can_note(
    edge: Edge, root: Root, broken: Callable[[Edge], None]
) -> None:
    """Otherwise a crash would have more sent again than the upstream hub still recognises."""
    edge.away()
    for number in range(300):
        for publisher in "pq":
            edge.publish(publisher, number, f"{publisher}{number}")
            edge.turn()
    edge.relay.connected()
    broken(edge)
    for _ in range(30):
        edge.send()
        edge.receive()
        edge.relay.tick(edge.now)
    assert 0 < len(payloads(root.log)) < 100
    edge.crash()
    edge.drain()
    assert payloads(root.log) == [f"{kind}{number}".encode() for number in range(300) for kind in "pq"]
    assert edge.set_aside_payloads == []


def test_what_went_up_is_noted_before_anything_goes_past_the_outbox(edge: Edge, root: Root) -> None:
    """A crash would have it sent again, and by then its publisher may have sent more than is remembered of it."""
    edge.away()
    edge.publish("p", 0, "kept")
    edge.turn()
    edge.relay.connected()
    edge.send()
    fail(edge)
    edge.receive()
    assert payloads(root.log) == [b"kept"]
    for number in range(1, 300):
        edge.publish("p", number, f"p{number}")
        edge.publish("q", number, f"q{number}")
        edge.send()
        edge.receive()
    assert isinstance(edge.told["p1"], StorageError)
    edge.crash()
    edge.drain()
    assert payloads(root.log) == [b"kept"]
    assert edge.set_aside_payloads == []
    edge.publish("p", 1, "p1")
    edge.send()
    edge.receive()
    assert isinstance(edge.told["p1"], Published)


def noted_requests(root: Root, refused: bytes | None = None) -> list[list[bytes]]:
    """Note what the upstream hub is sent; it refuses requests with one payload for good."""
    seen: list[list[bytes]] = []
    real = root.take

    def take(request: RelayRequest) -> list[Published | HeadraceError]:
        seen.append([payload for batch in request.rows for payload in batch.run])
        if refused in seen[-1]:
            return [RefusedError("limit", "too long for the upstream hub")]
        return real(request)

    root.take = take  # type: ignore[method-assign]
    return seen


def test_small_requests_go_up_together_in_their_order(edge: Edge, root: Root) -> None:
    edge.away()
    for number in range(60):
        for _ in range(3):
            edge.submit(f"d{number}.{_}")
            edge.turn()
        for _ in range(2):
            edge.publish("p", 2 * number + _, f"p{number}.{_}")
            edge.turn()
    expected = [
        f"{kind}{n}.{_}".encode()
        for n in range(60)
        for kind, many in (("d", 3), ("p", 2))
        for _ in range(many)
    ]
    edge.piece = 1 << 20
    seen = noted_requests(root)
    edge.drain()
    assert payloads(root.log) == expected
    assert [payload for request in seen for payload in request] == expected
    assert len(seen) < 150
    assert edge.outbox.state.waiting == (0, 0, 0)


def test_a_group_is_the_same_when_it_is_sent_again(edge: Edge, root: Root) -> None:
    """It was taken without an answer. What is kept after that is no part of it, before and after a crash."""
    edge.away()
    for round_ in range(3):
        for number in range(4):
            edge.submit(f"d{round_}.{number}")
            edge.turn()
        edge.relay.connected()
        edge.send(1)
        edge.submit(f"d{round_}.4")
        edge.turn()
        if round_ == 1:
            edge.crash()
        edge.away()
    edge.drain()
    assert payloads(root.log) == [f"d{round_}.{n}".encode() for round_ in range(3) for n in range(5)]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("kind", ["d", "p"])
def test_of_those_that_go_up_together_only_the_refused_one_is_set_aside(
    edge: Edge, root: Root, kind: str, crash: bool
) -> None:
    edge.away()
    for number in range(10):
        if kind == "d":
            edge.submit(f"d{number}")
        else:
            edge.publish("p", number, f"p{number}")
        edge.turn()
    edge.piece = 1 << 20
    seen = noted_requests(root, refused=f"{kind}4".encode())
    edge.relay.connected()
    edge.send()
    edge.receive()
    assert len(seen[0]) == 10
    if crash:
        edge.crash()
    # Later ones are in other groups.
    edge.submit("later")
    edge.turn()
    edge.drain()
    left = [f"{kind}{number}".encode() for number in range(10) if number != 4]
    log = payloads(root.log)
    assert [payload for payload in log if payload != b"later"] == left
    # What one process took from its doors keeps its order. Others may overtake what is sent again.
    assert log.index(b"later") == len(left) or kind == "p" or crash
    assert edge.set_aside_payloads == [f"{kind}4".encode()]
    assert edge.hub.counters.as_dict()["outbox_aside"] == 1


def test_a_publishers_request_that_had_to_wait_divides_no_group(edge: Edge, root: Root) -> None:
    """It is compared with what is kept, and overtaken by what came after it."""
    edge.away()
    edge.publish("p", 0, "p0")
    edge.turn()
    waiting: list[Callable[[], None]] = []
    edge.outbox.publishing._comparisons._elsewhere = lambda work, done: waiting.append(lambda: done(work()))
    edge.submit("d0")
    edge.turn()
    # Half of it is a repeat.
    edge.publish("p", 0, "p0", "p1")
    edge.turn()
    edge.submit("d1")
    edge.turn()
    edge.submit("d2")
    waiting.pop()()
    edge.submit("d3")
    edge.turn()
    edge.turn()
    edge.drain()
    assert sorted(payloads(root.log)) == [b"d0", b"d1", b"d2", b"d3", b"p0", b"p1"]
    assert edge.set_aside_payloads == []


def test_whoever_waits_is_kept_if_a_connected_hub_never_answers(edge: Edge, root: Root) -> None:
    edge.relay.connected()
    edge.submit("a")
    edge.send()
    edge.relay.tick(edge.now)
    edge.now += 3 * PATIENCE
    edge.relay.tick(edge.now)
    edge.turn()
    assert is_told_kept(edge, "a")
    edge.under_way.clear()
    edge.drain()
    assert payloads(root.log) == [b"a"]


class StoreAndForward(RuleBasedStateMachine):
    """Against a plain model: what was acknowledged, by whom and in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        directory = Path(self.temporary.name)
        self.root = Root(directory / "root")
        self.edge = Edge(directory / "edge", self.root, most=200_000)
        self.numbers = {"p": 0, "q": 0}
        self.last: dict[str, tuple[int, list[str]]] = {}
        self.tried: list[str] = []
        self.count = 0

    def texts(self, kind: str, size: int) -> list[str]:
        self.count += size
        made = [f"{kind}{number}" for number in range(self.count - size, self.count)]
        self.tried += made
        return made

    @rule(size=st.integers(1, 5))
    def submit(self, size: int) -> None:
        self.edge.submit(*self.texts("d", size))

    @rule(publisher=st.sampled_from("pq"), size=st.integers(1, 5))
    def publish(self, publisher: str, size: int) -> None:
        number, texts = self.numbers[publisher], self.texts(publisher, size)
        self.numbers[publisher] += size
        self.last[publisher] = number, texts
        self.edge.publish(publisher, number, *texts)

    @rule(publisher=st.sampled_from("pq"))
    def retry(self, publisher: str) -> None:
        """A publisher that has lost its connection sends its last request again."""
        if publisher in self.last:
            number, texts = self.last[publisher]
            self.edge.publish(publisher, number, *texts, claim=Claim(retry=0))

    @rule()
    def turn(self) -> None:
        self.edge.turn()

    @rule()
    def away(self) -> None:
        self.edge.away()

    @rule()
    def back(self) -> None:
        self.edge.under_way.clear()
        self.edge.relay.lost(self.edge.now)
        self.edge.relay.connected()

    @rule(most=st.integers(1, 4))
    def send(self, most: int) -> None:
        self.edge.send(most)

    @rule()
    def receive(self) -> None:
        self.edge.receive()

    @rule()
    def answer(self) -> None:
        """Answers come before the log that they speak of."""
        self.edge.answer()

    @precondition(lambda self: not self.root.failing)
    @rule()
    def upstream_restarts(self) -> None:
        self.edge.under_way.clear()
        self.edge.relay.lost(self.edge.now)
        self.root.restart()

    @rule()
    def upstream_is_short_of_room(self) -> None:
        self.root.failing = not self.root.failing

    @rule()
    def crash(self) -> None:
        """What was not acknowledged may be lost: its publisher sends it again."""
        self.edge.crash()
        for publisher, (number, texts) in self.last.items():
            if texts[0] not in self.edge.told:
                self.edge.publish(publisher, number, *texts, claim=Claim(retry=0))

    def teardown(self) -> None:
        self.root.failing = False
        self.edge.turn()
        self.edge.drain()
        log = [payload.decode() for payload in payloads(self.root.log)]
        doubled = [text for text, times in Counter(log).items() if times > 1]
        assert doubled == []
        assert self.edge.set_aside_payloads == []
        for first, told in self.edge.told.items():
            if isinstance(told, (Batch, Published)):
                assert first in log
        for kind in "dpq":
            mine = [int(text[1:]) for text in log if text[0] == kind]
            assert mine == sorted(mine)
        assert self.edge.outbox.state.waiting == (0, 0, 0)
        self.edge.follow()
        self.temporary.cleanup()


TestStoreAndForward = StoreAndForward.TestCase
TestStoreAndForward.settings = settings(stateful_step_count=40, deadline=None)
