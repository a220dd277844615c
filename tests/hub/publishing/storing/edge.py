"""A frontend that stores and forwards, without sockets or threads: a test turns every wheel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from tests.hub.publishing.relaying.test_publishes import Root, payloads

from headrace.errors import FullError, HeadraceError, StorageError
from headrace.hub.publishing.idempotent import IdempotentPublishing
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.publishing.storing.kept_requests import KeptRequest
from headrace.hub.publishing.storing.outbox import Outbox
from headrace.hub.publishing.storing.set_aside import SetAside
from headrace.hub.publishing.storing.storing_relay import StoringRelay
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import UNCLAIMED, Claim, Published
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.log.replication_frames import pack, unpack
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import begin, is_log
from headrace.message import Batch, Run

Told = Batch | StorageError | Published | HeadraceError

PATIENCE = 10.0


class Edge:
    """The frontend of a :class:`Root`; :meth:`crash` begins it anew with what is on the disk."""

    def __init__(
        self, directory: Path, root: Root, most: int = 1 << 20, seconds: float | None = None
    ) -> None:
        self.directory = directory
        self.root = root
        self.most = most
        self.seconds = seconds
        self.names = count()
        self.told: dict[str, Told] = {}
        self.now = 0.0
        self.piece = 600
        """Bytes that are read from the outbox at a time."""
        self._answers: dict[RelayRequest, list[Published | HeadraceError]] = {}
        begin(directory / "log", Snapshot(root.log.uuid, 0, 0, {}), sync=False)
        self.open()

    def open(self) -> None:
        self.log = Log.open(self.directory / "log", fsync="never")
        self.kept_log = Log.open(self.directory / "outbox", fsync="never", segment_bytes=4096)
        aside = self.directory / "aside"
        self.aside = SetAside(Log.open(aside, fsync="never"), self.kept_log.uuid) if is_log(aside) else None
        publishers = PublisherNumbers()
        self.hub = Hub(self.log, 2, max_uncommitted=1 << 20, state=HubState(publishers))
        self.outbox = Outbox(self.kept_log, self.log.uuid, publishers, most=self.most)
        self.relay = StoringRelay(
            self.hub,
            self.outbox,
            name=lambda: f"edge{next(self.names)}",
            patience=PATIENCE,
            most=1 << 20,
            now=self.now,
            most_seconds=self.seconds,
        )
        self.relay.set_aside = self.set_aside
        self.hub.sequencer = self.relay
        self.publishing = IdempotentPublishing(self.hub, publishers)
        self.under_way: list[RelayRequest] = []

    def crash(self) -> None:
        self.log.close()
        self.kept_log.close()
        if self.aside is not None:
            self.aside.log.close()
        self.open()

    def set_aside(self, request: KeptRequest, error: HeadraceError, done: Callable[[], None]) -> None:
        if self.aside is None:
            self.aside = SetAside(Log.open(self.directory / "aside", fsync="never"), self.kept_log.uuid)
        self.aside.put(request, error, 0)
        done()

    def turn(self) -> None:
        """Take a turn, and one of the outbox."""
        self.hub.turn(0)
        self.outbox.hub.turn(0)

    def away(self) -> None:
        """Let the upstream hub be away for so long that the frontend begins to store."""
        self.relay.lost(self.now)
        self.under_way.clear()
        self.now += PATIENCE + 1
        self.relay.tick(self.now)
        self.turn()

    def submit(self, *texts: str, origin: str = "spp") -> None:
        """Publish by a door; the outcome is told under the first text."""
        batch = Batch(
            Run.of([text.encode() for text in texts]), origin=origin, publisher="door", topic="door"
        )
        self.hub.submit(batch, lambda result: self.told.update({texts[0]: result}))

    def publish(
        self, publisher: str, number: int, *texts: str, follows: bool = False, claim: Claim = UNCLAIMED
    ) -> None:
        """Publish under a publisher's own numbers."""
        batch = Batch(
            Run.of([text.encode() for text in texts]),
            origin="tube",
            publisher=publisher,
            number=number,
            topic=publisher,
        )
        self.publishing.publish(
            batch, lambda result: self.told.update({texts[0]: result}), follows=follows, claim=claim
        )

    def load(self) -> None:
        """Read from the outbox what is to be sent now."""
        while (op := self.relay.due_from) is not None:
            self.relay.loaded(op, self.kept_log.read_ops(op, None, self.piece))
            self.turn()

    def send(self, most: int | None = None) -> None:
        """Send what is due; the upstream hub takes it, and its answers are on their way."""
        self.turn()
        self.load()
        for request in self.relay.due():
            answers = self.root.take(request)
            self.root.turn(0)
            while not answers:
                self.root.turn(0)
            self.under_way.append(request)
            self._answers[request] = answers
            most = None if most is None else most - 1
            if most == 0:
                return

    def answer(self) -> None:
        """Take the answers."""
        waiting, self.under_way = self.under_way, []
        for request in waiting:
            self.relay.answered(request, self._answers.pop(request)[0])
            self.turn()

    def receive(self) -> None:
        """Take the answers, and what has become of the log."""
        self.answer()
        self.follow()
        self.turn()

    def follow(self) -> None:
        first, last = self.log.tail_op + 1, self.root.log.head_op
        if first <= last:
            body = pack(self.root.log.uuid, list(self.root.log.scan_ops(first, last)))
            self.hub.follow(unpack(body, first, last)[1])

    def drain(self) -> None:
        """Let the upstream hub be back until it has everything."""
        self.relay.connected()
        self.under_way.clear()
        for _ in range(1000):
            if not self.relay.storing and not self.relay.size:
                return
            self.now += 2
            self.relay.tick(self.now)
            self.send()
            self.receive()
        raise AssertionError(f"{self.outbox.state.waiting} still wait: {self.relay.refused_for_now}")

    @property
    def set_aside_payloads(self) -> list[bytes]:
        return [] if self.aside is None else payloads(self.aside.log)


def full(_batches: object) -> None:
    """Stand in for an append to a full disk."""
    raise FullError("outbox", "no space")
