"""Passing on without a socket: a hub that numbers, one that follows it, and a wire that breaks whenever it may."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import FullError, HeadraceError, LimitError, RefusedError, StorageError, UnavailableError
from headrace.hub.holds import hold
from headrace.hub.publishing import publisher_numbers
from headrace.hub.publishing.idempotent import IdempotentPublishing, published
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.relaying.passed import pack_passed, unpack_passed
from headrace.hub.publishing.relaying.publishes import MAX_REQUESTS, PublishRelay
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Commit, Published
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.log.replication_frames import pack, unpack
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import begin
from headrace.message import Batch, Message, Run, merge
from headrace.wire.link.message import PUBLISHED


class Root:
    """The hub that numbers, and what its link does with requests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open()

    def open(self) -> None:
        self.log = Log.open(self.directory, fsync="never")
        publishers = PublisherNumbers()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 20, state=HubState(publishers))
        self.publishing = IdempotentPublishing(self.hub, publishers)
        self.failing = False

    def restart(self) -> None:
        self.log.close()
        self.open()

    def take(self, request: RelayRequest) -> list[Published | HeadraceError]:
        """Do what the link does with a request; the answer is in the list after the turn."""
        answers: list[Published | HeadraceError] = []
        if not request.passed:
            rows = published(
                merge(request.rows).select(PUBLISHED.names),
                origin=request.rows[0].origin,
                publisher=request.publisher,
                number=request.number,
            )
            self.publishing.publish(rows, answers.append, follows=request.follows, claim=request.claim)
            return answers
        body = pack_passed(self.log.uuid, request.rows)
        _, batches = unpack_passed(memoryview(body), sum(map(len, request.rows)))
        self.publishing.pass_on(
            request.publisher, request.number, batches, answers.append, retry=request.claim.retry
        )
        return answers

    def turn(self, now: int) -> None:
        if not self.failing:
            self.hub.turn(now)
            return
        real, self.log.append = self.log.append, self._full  # type: ignore[method-assign]
        try:
            self.hub.turn(now)
        finally:
            self.log.append = real  # type: ignore[method-assign]

    def _full(self, _batches: object) -> None:
        raise FullError("log", "no space")


class Front:
    """The hub that follows, with a wire in the test's hands."""

    def __init__(self, directory: Path, root: Root, most: int = 1 << 20, name: str = "front") -> None:
        begin(directory, Snapshot(root.log.uuid, 0, 0, {}), sync=False)
        self.root = root
        self.log = Log.open(directory, fsync="never")
        publishers = PublisherNumbers()
        self.hub = Hub(self.log, 2, max_uncommitted=1 << 20, state=HubState(publishers))
        names = count()
        self.passing = PublishRelay(
            self.hub, name=lambda: f"{name}{next(names)}", patience=10.0, most=most, now=0.0
        )
        self.hub.sequencer = self.passing
        self.publishing = IdempotentPublishing(self.hub, publishers)
        self.told: dict[str, Batch | StorageError | Published | HeadraceError] = {}

    def submit(self, *payloads: str) -> None:
        """Messages of a door, all in one batch; the first is the name it is told under."""
        name = payloads[0]
        batch = Batch(
            Run.of([p.encode() for p in payloads]), origin="spp", publisher="door", topic=f"t/{name}"
        )
        self.hub.submit(batch, lambda result: self.told.update({name: result}))

    def submit_group(self, *names: str) -> None:
        """Messages and, where a name begins with ``e``, entries of a door, to be appended together in this order."""
        for name in names:
            batch = (
                entry("hold", name, hold(1))
                if name.startswith("e")
                else Batch(Run.of([name.encode()]), origin="spp", publisher="door", topic=f"t/{name}")
            )

            def done(result: Batch | StorageError, name: str = name) -> None:
                self.told[name] = result

            self.hub.submit(batch, done, tied=name is not names[-1])

    def follow(self) -> None:
        """Take over what the root has committed."""
        first, last = self.log.tail_op + 1, self.root.log.head_op
        if first <= last:
            body = pack(self.root.log.uuid, list(self.root.log.scan_ops(first, last)))
            self.hub.follow(unpack(body, first, last)[1])

    def round(self, now: int = 0) -> None:
        """Everything that is due goes there, is done and answered, and comes back."""
        self.hub.turn(now)
        sent = [(request, self.root.take(request)) for request in self.passing.due()]
        self.root.turn(now)
        while not all(answers for _, answers in sent):
            # A repeat of what is under way is judged when that is done.
            self.root.turn(now)
        for request, answers in sent:
            self.passing.answered(request, answers[0])
        self.follow()


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


@pytest.fixture
def front(tmp_path: Path, root: Root) -> Front:
    made = Front(tmp_path / "front", root)
    made.passing.connected()
    return made


def payloads(log: Log) -> list[bytes]:
    return [message.payload for batch in log.scan(1) for message in batch]


def operations(log: Log) -> list[tuple[int, Message]]:
    """Everything in a log, by position."""
    return [
        (batch.op + index, row) for batch in log.scan_ops(log.first_op) for index, row in enumerate(batch)
    ]


def test_what_doors_submit_comes_back_numbered_with_its_envelope(root: Root, front: Front) -> None:
    front.submit("a", "b")
    front.submit("c")
    front.round(77)
    kept = [m for _, m in operations(root.log)]
    assert [(m.seq, m.payload, m.origin, m.publisher, m.topic) for m in kept] == [
        (1, b"a", "spp", "door", "t/a"),
        (2, b"b", "spp", "door", "t/a"),
        (3, b"c", "spp", "door", "t/c"),
        (3, b"", "log", "front0", "frontend/front0"),
    ]
    assert operations(front.log) == operations(root.log)
    assert {m.node for m in kept} == {1}
    first, second = front.told["a"], front.told["c"]
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert (first.first, first.last, second.first) == (1, 2, 3)
    assert front.hub.counters.as_dict()["received"] == {"spp": 3}


def test_nobody_is_told_before_it_is_committed_here(root: Root, front: Front) -> None:
    front.submit("a")
    front.hub.turn(0)
    (request,) = front.passing.due()
    answers = root.take(request)
    root.turn(0)
    front.passing.answered(request, answers[0])
    assert front.told == {}
    front.follow()
    assert "a" in front.told
    # And in the other order: the rows are here before the answer is.
    front.submit("b")
    front.hub.turn(0)
    (request,) = front.passing.due()
    answers = root.take(request)
    root.turn(0)
    front.follow()
    assert "b" not in front.told
    front.passing.answered(request, answers[0])
    assert "b" in front.told


def test_entries_of_the_state_go_up_and_come_back(root: Root, front: Front) -> None:
    front.hub.submit(entry("hold", "h", hold(1)))
    front.round()
    assert (root.hub.state.holds, front.hub.state.holds) == ({"h": 1}, {"h": 1})


def test_messages_and_entries_of_a_group_are_told_their_places(root: Root, front: Front) -> None:
    """An entry is told the message that it stands after, and each its position."""
    root.hub.submit(Batch(Run.of([b"before"]), origin="spp"))
    root.turn(0)
    front.submit_group("e1", "m1", "e2", "e3", "m2")
    front.submit_group("e4")
    front.round()
    places = {
        name: (told.first, told.last, told.op) for name, told in front.told.items() if isinstance(told, Batch)
    }
    assert places == {
        "e1": (1, 1, 2), "m1": (2, 2, 3), "e2": (2, 2, 4), "e3": (2, 2, 5), "m2": (3, 3, 6), "e4": (3, 3, 8)
    }  # fmt: skip
    topics = {op: row.topic for op, row in operations(front.log)}
    # Entries alone go in a request of their own, behind the mark of the one before.
    assert [topics[op].rpartition("/")[2] for op in range(2, 9)] == [
        "e1", "m1", "e2", "e3", "m2", "front0", "e4"
    ]  # fmt: skip
    assert operations(front.log) == operations(root.log)


def test_entries_are_taken_where_there_is_no_room_for_the_messages_beside_them(
    root: Root, front: Front
) -> None:
    root.hub.shortage = FullError("log", "nearly full")
    front.submit_group("m1")
    front.submit_group("e1")
    front.submit_group("e2")
    front.submit_group("m2", "e3")
    front.round()
    assert {name for name, told in front.told.items() if isinstance(told, Batch)} == {"e1", "e2"}
    assert front.told.keys() == {"m1", "e1", "e2", "m2", "e3"}
    assert front.hub.state.holds == {"e1": 1, "e2": 1}


def test_entries_right_behind_messages_that_are_refused_are_taken(root: Root, front: Front) -> None:
    front.submit("m1")
    front.submit_group("e1")
    front.submit("m2")
    front.submit_group("e2")
    front.hub.turn(1)
    sent = list(front.passing.due())
    assert len({request.publisher for request in sent}) == 2, "messages and entries are counted apart"
    for request in sent:
        # The disk is full: the hub that numbers takes entries only.
        root.failing = not request.rows[0].is_entries
        answers = root.take(request)
        root.turn(1)
        front.passing.answered(request, answers[0])
    front.follow()
    assert isinstance(front.told["m1"], StorageError)
    assert isinstance(front.told["m2"], StorageError)
    assert isinstance(front.told["e1"], Batch)
    assert isinstance(front.told["e2"], Batch)
    root.failing = False
    front.submit("m3")
    front.submit_group("e3")
    front.round(2)
    assert isinstance(front.told["m3"], Batch)
    assert isinstance(front.told["e3"], Batch)


def test_entries_alone_are_told_the_message_they_stand_after(root: Root, front: Front) -> None:
    front.submit_group("e1")
    front.round()
    told = front.told["e1"]
    assert isinstance(told, Batch)
    assert (told.first, told.last, told.op) == (0, 0, 1)


def test_a_repeat_is_told_the_places_of_the_first_try(root: Root, front: Front) -> None:
    """Once that much is committed here, though the hub that numbers has gone on since."""
    front.submit_group("e1", "m1")
    front.hub.turn(0)
    for request in front.passing.due():
        root.take(request)
    root.turn(0)
    root.hub.submit(Batch(Run.of([b"later"]), origin="spp"))
    root.turn(0)
    root.restart()
    front.passing.lost(0.0)
    front.passing.connected()
    (request,) = front.passing.due()
    (answer,) = root.take(request)
    assert answer == Published(1, 1, 1, op=3)
    front.passing.answered(request, answer)
    assert front.told == {}
    front.follow()
    entered, message = front.told["e1"], front.told["m1"]
    assert isinstance(entered, Batch)
    assert isinstance(message, Batch)
    assert (entered.first, entered.op, message.first, message.op) == (0, 1, 1, 2)


def test_a_publishers_repeat_waits_for_all_that_is_committed_where_it_is_numbered(
    root: Root, front: Front
) -> None:
    batch = Batch(Run.of([b"x"]), origin="tube", publisher="me", number=0)
    root.publishing.publish(batch, lambda _: None)
    root.hub.submit(entry("hold", "later", hold(1)))
    root.turn(0)
    told: list[Published | HeadraceError] = []
    front.publishing.publish(batch, told.append)
    (request,) = front.passing.due()
    (answer,) = root.take(request)
    assert answer == Published(1, 1, 1, op=2)
    front.passing.answered(request, answer)
    assert told == []
    front.follow()
    assert told == [answer]


def test_a_lost_answer_does_not_double(root: Root, front: Front) -> None:
    front.submit("a")
    front.hub.turn(0)
    for request in front.passing.due():
        root.take(request)
    root.turn(0)
    root.restart()
    front.passing.lost(0.0)
    front.passing.connected()
    front.round()
    assert payloads(root.log) == [b"a"]
    told = front.told["a"]
    assert isinstance(told, Batch)
    assert told.first == 1


@pytest.mark.parametrize("numbered", [False, True])
def test_what_was_forgotten_before_its_answer_came_is_not_taken_twice(
    root: Root, front: Front, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    """The answer is lost, and before it is sent again so many others publish that its publisher is forgotten."""
    monkeypatch.setattr(publisher_numbers, "MAX_PUBLISHERS", 3)
    if numbered:
        batch = Batch(Run.of([b"once"]), publisher="p", number=0)
        front.publishing.publish(batch, lambda result: front.told.update(once=result))
    else:
        front.submit("once")
        front.hub.turn(0)
    for request in front.passing.due():
        assert request.claim.retry is None
        root.take(request)
    root.turn(0)
    for other in range(4):
        root.publishing.publish(Batch(Run.of([b"x"]), publisher=f"p{other}", number=0), lambda _: None)
        root.turn(0)
    front.passing.lost(0.0)
    front.passing.connected()
    front.round()
    assert isinstance(front.told["once"], HeadraceError)
    assert payloads(root.log).count(b"once") == 1


def test_a_repeat_at_another_frontend_does_not_double(tmp_path: Path, root: Root, front: Front) -> None:
    """A client's own numbers count at the hub that numbers, however far a frontend has followed."""
    other = Front(tmp_path / "other", root)
    other.passing.connected()
    batch = Batch(Run.of([b"x", b"y"]), origin="tube", publisher="me", number=7)
    told: list[Published | HeadraceError] = []
    front.publishing.publish(batch, told.append)
    other.publishing.publish(batch, told.append)
    front.round()
    assert other.log.tail == 0
    other.round()
    assert payloads(root.log) == [b"x", b"y"]
    assert told == [Published(1, 2, 0, op=2), Published(1, 2, 2, op=2)]


def test_a_frontend_of_a_frontend_keeps_its_mark(tmp_path: Path, root: Root, front: Front) -> None:
    """Sent again through another hub in the middle, it is the same request still."""
    middle = Front(tmp_path / "middle", root)
    middle.passing.connected()
    rows = [entry("hold", "h", hold(1)), Batch(Run.of([b"x"]), origin="spp")]
    told: list[Published | HeadraceError] = []
    for hub in (front, middle):
        hub.publishing.pass_on("below", 0, rows, told.append)
        hub.round()
    assert payloads(root.log) == [b"x"]
    assert told == [Published(1, 1, 0, op=3), Published(1, 1, 1, op=3)]


def test_a_frontends_frontend_that_sends_again_says_so_on_every_hop(
    root: Root, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_numbers, "MAX_PUBLISHERS", 3)
    told: list[Published | HeadraceError] = []
    rows = [Batch(Run.of([b"once"]), origin="spp")]
    front.publishing.pass_on("below", 0, rows, told.append)
    front.round()
    for other in range(4):
        root.publishing.publish(Batch(Run.of([b"x"]), publisher=f"p{other}", number=0), lambda _: None)
        root.turn(0)
    # Its answer was lost, and the hub that numbers has forgotten its mark.
    front.publishing.pass_on("below", 0, rows, told.append, retry=0)
    front.round()
    assert payloads(root.log).count(b"once") == 1
    refused = told[-1]
    assert isinstance(refused, RefusedError)
    assert refused.code == "unknown"


def test_a_refused_request_takes_what_is_under_way_with_it_and_nothing_later(
    root: Root, front: Front
) -> None:
    front.submit("a")
    front.hub.turn(0)
    (first,) = front.passing.due()
    failed = root.take(first)
    root.failing = True
    root.turn(0)
    root.failing = False
    front.submit("b")
    front.hub.turn(0)
    (second,) = front.passing.due()
    behind = root.take(second)
    root.turn(0)
    front.passing.answered(first, failed[0])
    front.submit("c")
    front.passing.answered(second, behind[0])
    front.round()
    assert payloads(root.log) == [b"c"]
    assert isinstance(front.told["a"], FullError)
    assert isinstance(front.told["b"], UnavailableError)
    assert front.hub.counters.as_dict()["refused_messages"] == {"spp/upstream": 2}


def test_publishers_wait_for_a_lost_hub_and_then_are_refused(root: Root, front: Front) -> None:
    front.submit("a")
    front.round()
    front.passing.lost(100.0)
    front.submit("b")
    front.hub.turn(0)
    assert list(front.passing.due()) == []
    front.passing.tick(109.9)
    assert "b" not in front.told
    front.passing.tick(110.0)
    error = front.told["b"]
    assert isinstance(error, UnavailableError)
    assert "not answered for 10 s" in str(error)
    assert str(error).endswith("what is published here is refused")
    front.submit("c")
    front.hub.turn(0)
    front.passing.tick(110.1)
    assert isinstance(front.told["c"], UnavailableError)
    front.submit("d")
    front.passing.connected()
    front.round()
    assert payloads(root.log) == [b"a", b"d"]


def test_one_that_comes_and_goes_and_never_answers_is_not_waited_for_anew(root: Root, front: Front) -> None:
    front.submit("a")
    front.hub.turn(0)
    for now in (1.0, 4.0, 7.0):
        assert len(list(front.passing.due())) == 1
        front.passing.lost(now)
        front.passing.tick(now)
        assert front.told == {}
        front.passing.connected()
    front.passing.lost(11.0)
    front.passing.tick(11.0)
    assert isinstance(front.told["a"], UnavailableError)
    # It was sent: nobody can say that it was not taken.
    assert str(front.told["a"]).endswith("whether this was taken is not known")


@pytest.mark.parametrize("asks", [True, False], ids=["an answer", "nobody waits"])
def test_it_is_waited_for_anew_after(root: Root, front: Front, asks: bool) -> None:
    front.passing.lost(1.0)
    if asks:
        front.submit("a")
    front.passing.connected()
    front.round()
    front.passing.lost(100.0)
    front.submit("b")
    front.hub.turn(0)
    front.passing.tick(109.0)
    assert "b" not in front.told
    front.passing.tick(110.0)
    assert isinstance(front.told["b"], UnavailableError)


def test_a_failed_upstream_refuses_for_good(front: Front) -> None:
    front.submit("a")
    front.hub.turn(0)
    front.passing.fail("another log")
    assert "another log" in str(front.told["a"])
    front.submit("b")
    front.hub.turn(0)
    front.passing.tick(0.0)
    assert "another log" in str(front.told["b"])


@pytest.mark.parametrize("how", ["lost", "failed", "nothing comes back"])
def test_what_was_answered_and_never_came_back_is_told_that_it_was_taken(
    root: Root, front: Front, how: str
) -> None:
    """The hub that numbers has answered, and this one never gets the messages: nobody waits for ever."""
    committed: list[Published | HeadraceError] = []
    front.passing.send_commit = lambda query, batch, rows, reply, terms: reply(Published(9, 9, op=99))
    front.passing.tick(0.0)
    front.submit("a", "b")
    front.publishing.publish(Batch(Run.of([b"p"]), publisher="p", number=0), committed.append)
    front.passing.commit("query", 0, [], committed.append, Commit())
    front.hub.turn(0)
    answers = [(request, root.take(request)) for request in front.passing.due()]
    root.turn(0)
    for request, answer in answers:
        front.passing.answered(request, answer[0])
    assert front.told == {}
    if how == "failed":
        front.passing.fail("another log")
    elif how == "lost":
        front.passing.lost(1.0)
        front.passing.tick(9.9)
        assert front.told == {}
        front.passing.tick(11.0)
    else:
        front.passing.tick(1.0)
        front.passing.tick(9.9)
        assert front.told == {}
        front.passing.tick(11.0)
    for told, place in (
        (front.told["a"], "2 to 3"),
        (committed[0], "message 1"),
        (committed[1], "message 9"),
    ):
        assert isinstance(told, UnavailableError)
        assert place in str(told)
    assert front.passing.size == 0
    assert not front.passing.unfinished
    # What comes back after all is nobody's answer any more.
    front.follow()
    assert len(committed) == 2


def test_what_is_never_answered_is_refused_though_the_connection_stands(root: Root, front: Front) -> None:
    """The hub that numbers answers some requests and not others."""
    front.passing.tick(0.0)
    for name in ("a", "b", "c"):
        front.submit(name)
        front.hub.turn(0)
    first, second, third = ((request, root.take(request)) for request in front.passing.due())
    root.turn(0)
    front.passing.answered(first[0], first[1][0])
    front.follow()
    front.passing.tick(1.0)
    front.passing.tick(30.9)
    front.passing.answered(third[0], third[1][0])
    assert isinstance(front.told["a"], Batch)
    assert isinstance(front.told["c"], Batch)
    assert "b" not in front.told
    front.passing.tick(31.0)
    assert isinstance(front.told["b"], UnavailableError)
    assert str(front.told["b"]).endswith("whether this was taken is not known")
    front.passing.answered(second[0], second[1][0])
    assert front.passing.size == 0
    front.submit("d")
    front.round()
    assert payloads(root.log) == [b"a", b"b", b"c", b"d"]


def test_without_patience_a_hub_that_is_there_still_has_time_to_answer(root: Root, front: Front) -> None:
    hurried = PublishRelay(front.hub, name=lambda: "hurried", patience=0.0, most=1 << 20, now=0.0)
    front.passing = front.hub.sequencer = hurried
    hurried.connected()
    front.submit("a")
    front.hub.turn(0)
    (request,) = hurried.due()
    for now in (0.0, 0.1, 2.9):
        hurried.tick(now)
    assert front.told == {}
    answers = root.take(request)
    root.turn(0)
    hurried.answered(request, answers[0])
    hurried.tick(3.0)
    hurried.tick(3.8)
    assert front.told == {}
    front.follow()
    assert isinstance(front.told["a"], Batch)
    hurried.lost(4.0)
    front.submit("b")
    front.hub.turn(0)
    hurried.tick(4.0)
    assert isinstance(front.told["b"], UnavailableError)


def test_who_catches_up_is_waited_for(root: Root, front: Front) -> None:
    """An answer may be far ahead of what this hub has: as long as more comes, it will come, too."""
    for number in range(4):
        root.hub.submit(Batch(Run.of([b"%d" % number]), origin="spp", publisher="other", topic="t"))
        root.turn(0)
    front.submit("a")
    front.hub.turn(0)
    (request,) = front.passing.due()
    answer = root.take(request)
    root.turn(0)
    front.passing.answered(request, answer[0])
    for now, op in enumerate(range(1, root.log.head_op + 1)):
        front.passing.tick(now * 9.0)
        assert front.told == {}
        front.hub.follow(list(root.log.scan_ops(op, op)))
    assert isinstance(front.told["a"], Batch)


def test_too_much_under_way_makes_publishers_wait(tmp_path: Path, root: Root) -> None:
    front = Front(tmp_path / "front", root, most=2000)
    relieved: list[bool] = []
    front.hub.relieved = lambda: relieved.append(True)
    front.submit("x" * 500)
    front.hub.turn(0)
    assert not front.hub.congested
    front.submit("y" * 500)
    front.hub.turn(0)
    assert front.hub.congested
    assert relieved == []
    front.passing.connected()
    front.round()
    assert not front.hub.congested
    assert relieved == [True]
    assert front.passing.size == 0


def test_the_window_is_bounded(root: Root, front: Front) -> None:
    for number in range(100):
        front.submit(str(number))
        front.hub.turn(0)
    assert len(list(front.passing.due())) == MAX_REQUESTS
    assert list(front.passing.due()) == []


def test_what_is_too_long_for_a_message_goes_in_pieces(root: Root, front: Front) -> None:
    long = [bytes([65 + n]) * (1 << 20) for n in range(10)]
    result: list[Batch | StorageError] = []
    front.hub.submit(Batch(Run.of(long), origin="spp"), result.append)
    told: list[Published | HeadraceError] = []
    front.publishing.publish(Batch(Run.of(long), origin="tube", publisher="me", number=0), told.append)
    front.hub.turn(0)
    while front.passing.size:
        front.round()
    assert payloads(root.log) == [*long, *long]
    (done,) = result
    assert isinstance(done, Batch)
    (published,) = told
    assert isinstance(published, Published)
    assert published.repeated == 0


def test_pieces_behind_a_refused_one_are_not_taken(root: Root, front: Front) -> None:
    long = [b"%d" % n + bytes(1 << 20) for n in range(40)]
    result: list[Batch | StorageError] = []
    front.hub.submit(Batch(Run.of(long), origin="spp"), result.append)
    front.hub.turn(0)
    root.failing = True
    front.round()
    root.failing = False
    while front.passing.size:
        front.round()
    assert payloads(root.log) == []
    (error,) = result
    assert isinstance(error, StorageError)


def test_what_cannot_be_sent_leaves_no_gap(root: Root, front: Front) -> None:
    front.submit("a")
    front.hub.turn(0)
    front.submit("b")
    front.hub.turn(0)
    due = front.passing.due()
    front.passing.unfit(next(due), LimitError("link", "rows passed on", 9, 8))
    (request,) = due
    answers = root.take(request)
    root.turn(0)
    front.passing.answered(request, answers[0])
    front.follow()
    assert payloads(root.log) == [b"b"]
    assert isinstance(front.told["a"], UnavailableError)
    assert isinstance(front.told["b"], Batch)


def test_who_numbered_itself_until_now_has_waited_for_nobody(front: Front) -> None:
    front.passing.lost(0.0)
    front.passing.connected(here=True)
    front.submit("a")
    front.hub.turn(0)
    assert len(list(front.passing.due(here=True))) == 1
    front.passing.lost(100.0)
    front.passing.tick(109.9)
    assert front.told == {}
    front.passing.tick(110.0)
    assert isinstance(front.told["a"], UnavailableError)


def test_what_is_behind_a_piece_that_cannot_be_sent_is_not_sent_either(root: Root, front: Front) -> None:
    """What is in pieces is whole or ends early: it never has a hole."""
    front.submit("long", "x" * (5 << 20), "end")
    front.submit("other")
    front.hub.turn(0)
    due = front.passing.due()
    first, second = next(due), next(due)
    front.passing.unfit(second, LimitError("link", "rows passed on", 9, 8))
    sent = [(request, root.take(request)) for request in (first, *due)]
    root.turn(0)
    for request, answers in sent:
        front.passing.answered(request, answers[0])
    front.follow()
    assert payloads(root.log) == [b"long", b"other"]
    assert isinstance(front.told["long"], UnavailableError)
    assert isinstance(front.told["other"], Batch)
    assert front.passing.size == 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_whatever_breaks_nothing_acknowledged_is_lost_and_nothing_doubled(seed: int) -> None:
    """Two frontends, a client that roams between them, tubes that break and a hub that restarts, by chance.

    Doors submit messages and entries in any order. Each is in the log once, in the place that its door is told.
    """
    random = Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        root = Root(Path(directory) / "root")
        fronts = [Front(Path(directory) / f"front{n}", root, name=f"f{n}/") for n in range(2)]
        under_way: list[list[tuple[RelayRequest, list[Published | HeadraceError]]]] = [[], []]
        acknowledged: dict[str, int] = {}
        positions: dict[str, int] = {}
        own, roaming = count(), 0
        waiting: list[bytes] = []
        told: list[Published | HeadraceError] = []
        for now in range(120):
            which = random.randrange(2)
            front = fronts[which]
            match random.randrange(9):
                case 8:
                    kinds = random.choices("em", k=random.randint(1, 4))
                    front.submit_group(*(f"{kind}{next(own)}" for kind in kinds))
                    front.hub.turn(now)
                case 0 | 1:
                    front.submit(*(f"d{next(own)}" for _ in range(random.randint(1, 3))))
                    front.hub.turn(now)
                case 2:
                    # The client repeats what it was not told of, at whichever hub it comes to.
                    if told and isinstance(told[-1], Published):
                        roaming += len(waiting)
                        waiting, told = [], []
                    waiting = waiting or [f"r{roaming + n}".encode() for n in range(2)]
                    batch = Batch(Run.of(waiting), origin="tube", publisher="roaming", number=roaming)
                    front.publishing.publish(batch, told.append)
                case 3 | 4:
                    under_way[which] += [(request, root.take(request)) for request in front.passing.due()]
                case 5:
                    root.turn(now)
                case 6:
                    left = []
                    for request, answers in under_way[which]:
                        if answers and random.random() < 0.8:
                            front.passing.answered(request, answers[0])
                        else:
                            left.append((request, answers))
                    under_way[which] = left
                    front.follow()
                case 7:
                    broken = random.choice((0, 1, None))
                    if broken is None:
                        root.restart()
                    for number in (0, 1) if broken is None else (broken,):
                        under_way[number] = []
                        fronts[number].passing.lost(0.0)
                        fronts[number].passing.connected()
        for number, front in enumerate(fronts):
            under_way[number] = []
            front.passing.lost(0.0)
            front.passing.connected()
            while front.passing.size:
                front.round(200)
        for front in fronts:
            front.follow()
            assert operations(front.log) == operations(root.log)
            for name, result in front.told.items():
                assert isinstance(result, Batch)
                acknowledged[name] = result.first
                positions[name] = result.op
        taken = [
            (op, row.seq, row.topic.removeprefix("hold/") if row.origin == "log" else row.payload.decode())
            for op, row in operations(root.log)
            if not row.topic.startswith("frontend/")
        ]
        assert [op for op, _ in operations(root.log)] == list(range(1, root.log.head_op + 1))
        assert [name for name, times in Counter(name for _, _, name in taken).items() if times > 1] == []
        kept = {name: seq for _, seq, name in taken}
        assert {name: kept.get(name) for name in acknowledged} == acknowledged
        known = {name: op for op, _, name in taken}
        assert {name: known[name] for name in positions} == positions
        assert {int(name[1:]) for name in kept if name[0] != "r"} == set(range(next(own)))
        root.log.close()
        for front in fronts:
            front.log.close()
