"""A connector whose log is a copy that comes after: nobody is sent twice what the copy does not have yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub.routing.test_connector import ALICE, BOB, HERE, THERE, WANTED, Scene, Wire

from headrace.errors import StorageError, UnavailableError
from headrace.hub.routing.client_session import MatcherPaths, PushSource
from headrace.hub.routing.subscription_parts import (
    serialize_fields,
)
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    expire,
    move,
    subscribe,
)
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Submission
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.message import Batch, Run
from headrace.wire.attribute.messages import msg_id
from headrace.wire.sdk.predicate import Equals

MATCHER = 7


class Upstream:
    """The hub that numbers, whose sequence comes to the copy when the test says."""

    def __init__(self, directory: Path) -> None:
        self.log = Log.open(directory, fsync="never")
        self.subscriptions = Subscriptions()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 30, state=HubState(self.subscriptions))

    def write(self, batch: Batch) -> Batch:
        """Have something numbered at once."""
        done: list[Batch | StorageError] = []
        self.hub.submit(batch, done.append)
        self.hub.turn(1)
        (numbered,) = done
        assert isinstance(numbered, Batch)
        return numbered

    def publish(self, count: int = 1) -> list[int]:
        batch = self.write(Batch(Run.of([b"m"] * count), origin="test"))
        return list(range(batch.first, batch.last + 1))


class Passed:
    """The copy's sequencer: what is submitted goes up when the test says, and is told when it has come down."""

    congested = False

    def __init__(self) -> None:
        self.waiting: list[Submission] = []
        self._numbered: list[tuple[Submission, Batch]] = []

    def order(self, submitted: Sequence[Submission]) -> None:
        self.waiting += submitted

    def pass_up(self, upstream: Upstream) -> None:
        waiting, self.waiting = self.waiting, []
        self._numbered += [(each, upstream.write(each.batch)) for each in waiting]

    def refuse(self) -> None:
        waiting, self.waiting = self.waiting, []
        for submission in waiting:
            if submission.done is not None:
                submission.done(UnavailableError("the upstream hub is away"))

    def committed(self, op: int) -> None:
        while self._numbered and self._numbered[0][1].last_op <= op:
            submission, batch = self._numbered.pop(0)
            if submission.done is not None:
                submission.done(batch)

    def lose(self) -> None:
        """The process is killed: nobody waits any more."""
        self.waiting, self._numbered = [], []


class Copy(Scene):
    """A connector beside a copy of the sequence, which relies on one matcher elsewhere."""

    def __init__(self, directory: Path, upstream: Upstream) -> None:
        super().__init__(directory)
        self.upstream = upstream
        self.paths = MatcherPaths()
        self.connector.relying = True
        self.connector.find_path = lambda _client: self.paths.get(MATCHER)
        self.passed = self.hub.sequencer = Passed()  # type: ignore[assignment]

    def copy(self, upto: int | None = None) -> None:
        """Let the copy come nearer: up to a message, or to the end."""
        theirs = self.upstream.log
        self.copy_ops(theirs.head_op if upto is None else theirs.op_of(upto))

    def copy_ops(self, upto: int) -> None:
        if upto > self.log.head_op:
            self.hub.follow(list(self.upstream.log.scan_ops(self.log.head_op + 1, upto)))
            self.connector.advance()

    def exchange(self) -> None:
        """What was submitted goes up, and everything comes down."""
        while True:
            self.hub.turn(1)
            if not self.passed.waiting:
                break
            self.passed.pass_up(self.upstream)
            self.copy()
        self.copy()
        self.read_all()

    def mark(self, source: PushSource, seq: int) -> None:
        if self.paths.mark(source, MATCHER, seq):
            self.connector.reroute()

    def push(self, source: PushSource, seq: int, client: bytes = ALICE) -> None:
        self.connector.pushed(source, msg_id(seq, 1), b"m", [client])

    def restart(self) -> Copy:
        """The process is killed and begins again with what is in its copy."""
        self.log.close()
        self.passed.lose()
        return Copy(self.log.directory, self.upstream)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    upstream = Upstream(tmp_path / "upstream")
    yield upstream
    upstream.log.close()


@pytest.fixture
def copy(tmp_path: Path, upstream: Upstream) -> Iterator[Copy]:
    copy = Copy(tmp_path / "copy", upstream)
    yield copy
    copy.log.close()


def subscribed(copy: Copy) -> Wire:
    """A client that is fed from the copy."""
    wire = Wire()
    copy.connector.subscribe(copy.connector.join(ALICE, wire), (WANTED,))
    copy.exchange()
    return wire


def live(copy: Copy) -> tuple[Wire, PushSource]:
    """A client that the matcher elsewhere pushes to."""
    wire, source = subscribed(copy), PushSource()
    copy.mark(source, copy.log.head)
    assert copy.session().live
    return wire, source


def test_a_client_that_is_ahead_of_the_copy_gets_nothing_again(upstream: Upstream, copy: Copy) -> None:
    wire, source = live(copy)
    seqs = upstream.publish(5)
    for seq in seqs[:3]:
        copy.push(source, seq)
    assert wire.got == seqs[:3]
    # It loses its connection, or the connector is killed, before the copy has any of that.
    again = Wire()
    copy.connector.subscribe(copy.connector.join(ALICE, again, after=seqs[2]), (WANTED,))
    copy.copy(seqs[1])
    copy.read_all()
    copy.exchange()
    assert again.got == seqs[3:]
    assert copy.session().live


def test_an_older_entry_that_only_comes_now_is_not_where_it_begins(upstream: Upstream, copy: Copy) -> None:
    fields = serialize_fields(WANTED)
    upstream.write(subscribe(ALICE, HERE, fields))
    seqs = upstream.publish(4)
    wire = Wire()
    copy.connector.join(ALICE, wire, after=seqs[1])
    copy.copy(seqs[0])
    assert not copy.session().wants
    copy.exchange()
    assert wire.got == seqs[2:]


def test_without_after_it_begins_with_what_comes_now(upstream: Upstream, copy: Copy) -> None:
    _, source = live(copy)
    seqs = upstream.publish(3)
    for seq in seqs:
        copy.push(source, seq)
    again = Wire()
    copy.connector.join(ALICE, again)
    copy.exchange()
    assert again.got == []
    more = upstream.publish(2)
    copy.exchange()
    assert again.got == []
    for seq in more:
        copy.push(source, seq)
    assert again.got == more


def test_who_moved_elsewhere_and_came_back_is_not_sent_away_for_it(upstream: Upstream, copy: Copy) -> None:
    subscribed(copy)
    upstream.write(move(ALICE, THERE))
    wire = Wire()
    copy.connector.join(ALICE, wire, after=copy.log.head)
    copy.exchange()
    assert wire.parted is None
    seqs = upstream.publish(2)
    copy.exchange()
    assert wire.got == seqs


def test_who_is_elsewhere_by_the_time_the_answer_comes_is_let_go(upstream: Upstream, copy: Copy) -> None:
    subscribed(copy)
    wire = Wire()
    copy.connector.join(ALICE, wire)
    copy.hub.turn(1)
    copy.passed.pass_up(upstream)
    upstream.write(move(ALICE, THERE))
    copy.copy()
    assert wire.parted == "moved"
    copy.hub.turn(1)
    assert not copy.passed.waiting


def test_a_subscription_that_was_given_up_meanwhile_is_made_again(upstream: Upstream, copy: Copy) -> None:
    subscribed(copy)
    kept = upstream.subscriptions.get(ALICE)
    assert kept is not None
    upstream.write(expire(ALICE, kept.op))
    wire = Wire()
    # It says what the copy still believes it wants.
    copy.connector.subscribe(copy.connector.join(ALICE, wire), (WANTED,))
    copy.exchange()
    assert ALICE in upstream.subscriptions
    seqs = upstream.publish(2)
    copy.exchange()
    assert wire.got == seqs


def test_the_last_word_counts(upstream: Upstream, copy: Copy) -> None:
    for client in (BOB, ALICE):
        copy.connector.subscribe(copy.connector.join(client, Wire()), (WANTED,))
    copy.exchange()
    copy.connector.join(BOB, Wire())
    # A question is under way, so that the next comes behind whatever this client says first.
    session = copy.connector.join(ALICE, Wire())
    other = {"kind": Equals("other")}
    for predicates in (WANTED, other):
        copy.connector.subscribe(session, (predicates,))
    copy.exchange()
    kept = upstream.subscriptions.get(ALICE)
    assert kept is not None
    assert kept.parts(ALICE)[ALICE].predicates == other


def test_many_who_come_back_cost_one_entry(upstream: Upstream, copy: Copy) -> None:
    clients = [bytes([n]) * 12 for n in range(9)]
    for client in clients:
        copy.connector.subscribe(copy.connector.join(client, Wire()), (WANTED,))
    copy.exchange()
    head, before = upstream.log.head, upstream.log.head_op
    wires = [Wire() for _ in clients]
    for client, wire in zip(clients, wires, strict=True):
        copy.connector.subscribe(copy.connector.join(client, wire, after=head), (WANTED,))
    copy.exchange()
    # The first asks alone, all others together.
    assert (upstream.log.head, upstream.log.head_op) == (head, before + 2)
    seqs = upstream.publish(2)
    copy.exchange()
    assert all(wire.got == seqs for wire in wires)


def test_while_nobody_who_numbers_is_there_it_asks_again(upstream: Upstream, copy: Copy) -> None:
    subscribed(copy)
    wire = Wire()
    copy.connector.join(ALICE, wire, after=copy.log.head)
    copy.hub.turn(1)
    copy.passed.refuse()
    copy.exchange()
    assert not copy.session().wants
    assert wire.parted is None
    copy.connector.tick(1.0)
    copy.exchange()
    seqs = upstream.publish(1)
    copy.exchange()
    assert wire.got == seqs


def test_what_a_source_does_not_vouch_for_is_found_in_the_log(upstream: Upstream, copy: Copy) -> None:
    """A matcher's first pushes may come before it says from where on it pushes all."""
    wire = subscribed(copy)
    seqs = upstream.publish(4)
    source = PushSource()
    copy.push(source, seqs[2])
    assert wire.got == []
    copy.mark(source, seqs[2])
    copy.push(source, seqs[3])
    copy.exchange()
    assert wire.got == seqs


def test_a_path_is_relied_on_as_far_as_it_is_known_to_be_the_clients(upstream: Upstream, copy: Copy) -> None:
    """The client may have another matcher since an entry that the copy does not have."""
    wire, source = live(copy)
    seqs = upstream.publish(3)
    copy.mark(source, seqs[-1])
    assert copy.paths.lose(source)
    copy.connector.reroute()
    copy.exchange()
    assert wire.got == seqs


@given(data=st.data())
def test_whatever_is_lost_whenever_each_message_comes_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The copy lags, the matcher is ahead of it, and clients and connectors come back behind what they got."""
    random = Random(data.draw(st.integers(0, 1 << 32)))
    directory = tmp_path_factory.mktemp("logs")
    upstream = Upstream(directory / "upstream")
    copy = Copy(directory / "copy", upstream)
    wire, source = live(copy)
    matched = upstream.log.head
    flight: list[tuple[PushSource, int, bool]] = []
    expected: list[int] = []
    got: list[int] = []
    said = True  # whether the client has said what it wants since it connected

    def connect() -> Wire:
        nonlocal said
        got.extend(wire.got)
        new = Wire(random.choice([40, 200, 1 << 20]))
        session = copy.connector.join(ALICE, new, after=got[-1] if got else 0)
        said = random.random() < 0.5
        if said:
            copy.connector.subscribe(session, (WANTED,))
        return new

    def arrive(came: PushSource, seq: int, is_mark: bool) -> None:
        if is_mark:
            copy.mark(came, seq)
        else:
            copy.push(came, seq)

    def dial() -> PushSource:
        nonlocal flight, matched
        flight = []
        if copy.paths.lose(source):
            copy.connector.reroute()
        matched = random.randrange(matched, upstream.log.head + 1)
        new = PushSource()
        if matched < upstream.log.head and random.random() < 0.5:
            matched += 1
            flight.append((new, matched, False))
        flight.append((new, matched, True))
        return new

    for _ in range(data.draw(st.integers(1, 200))):
        match random.randrange(16):
            case 0 | 1:
                expected += upstream.publish(random.randrange(1, 5))
            case 2 | 3 | 4 if matched < upstream.log.head:
                matched += 1
                flight.append((source, matched, False))
                if random.random() < 0.5:
                    flight.append((source, matched, True))
            case 5 | 6 | 7 if flight:
                arrive(*flight.pop(0))
            case 8 | 9 if copy.log.head_op < upstream.log.head_op:
                copy.copy_ops(random.randrange(copy.log.head_op + 1, upstream.log.head_op + 1))
            case 10:
                copy.hub.turn(1)
                copy.passed.pass_up(upstream)
            case 11 if copy.reads:
                copy.read(most=random.randrange(1, 4))
            case 12:
                wire.free = random.choice([0, 40, 100, 1 << 20])
                copy.connector.resume(copy.session())
            case 13:
                wire = connect()
            case 14 if random.random() < 0.5:
                copy = copy.restart()
                source = dial()
                wire = connect()
            case 15:
                source = dial()
    wire.free = 1 << 30
    if not said:
        copy.connector.subscribe(copy.session(), (WANTED,))
    copy.connector.resume(copy.session())
    copy.exchange()
    flight += [(source, seq, False) for seq in range(matched + 1, upstream.log.head + 1)]
    for each in flight:
        arrive(*each)
    copy.exchange()
    assert got + wire.got == expected
    copy.log.close()
    upstream.log.close()
