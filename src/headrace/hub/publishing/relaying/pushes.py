"""The push relay: a sequencer over the backbone's protocol, which carries plain payloads without acknowledgements.

Messages are passed on without their envelope, as a best effort. Everything else is refused: entries of the hub's state,
publishes to be acknowledged, and batches that must stay together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.errors import UnavailableError
from headrace.hub.publishing.relaying.backlog import RelayBacklog
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import (
    Claim,
    Commit,
    Opening,
    Submission,
    WhenNewest,
    WhenOpened,
    WhenPublished,
    tied_groups,
)
from headrace.message import Batch
from headrace.protocols import PUSHED_ORIGINS


class PushRelay(RelayBacklog):
    """The :class:`~headrace.hub.sequencer.Sequencer` of a frontend over fyrehose."""

    def __init__(self, hub: Hub, *, longest: int, patience: float, most: int, now: float) -> None:
        super().__init__(hub, patience=patience, most=most, now=now)
        self._longest = longest
        self._waiting: deque[Submission] = deque()

    def order(self, submitted: Sequence[Submission]) -> None:
        """Queue messages to be pushed; refuse everything that a PUSH cannot carry."""
        for group in tied_groups(submitted):
            submission = group[-1]
            batch = submission.batch
            if len(group) > 1:
                what = "a fyrehose upstream takes single messages, and no batches that must stay together"
                self._hub.refuse(group, UnavailableError(what), "upstream")
            elif batch.origin not in PUSHED_ORIGINS:
                what = (
                    f"a fyrehose upstream takes plain messages, not those of origin {batch.origin or 'log'!r}"
                )
                self._hub.refuse(group, UnavailableError(what), "upstream")
            elif int(batch.run.lengths.max(initial=0)) > self._longest:
                what = f"a fyrehose upstream takes messages of {self._longest} bytes at most"
                self._hub.refuse(group, UnavailableError(what), "limit")
            else:
                self._waiting.append(submission)
                self.size += batch.size
        self.wake()

    def publish(
        self,
        batch: Batch,  # noqa: ARG002
        reply: WhenPublished,
        *,
        follows: bool,  # noqa: ARG002
        preceding: Sequence[Batch],  # noqa: ARG002
        claim: Claim,  # noqa: ARG002
    ) -> None:
        """Refuse a publish, since its place in the sequence would never be known."""
        reply(UnavailableError("a fyrehose upstream acknowledges nothing: publish by the fyrehose door"))

    def commit(
        self,
        query: str,  # noqa: ARG002
        batch: int,  # noqa: ARG002
        rows: Sequence[Batch],  # noqa: ARG002
        reply: WhenPublished,
        terms: Commit,  # noqa: ARG002
    ) -> None:
        """Refuse a commit, since pushes are not all or nothing."""
        reply(UnavailableError("a fyrehose upstream takes no commits"))

    def newest(self, publisher: str, reply: WhenNewest) -> None:  # noqa: ARG002
        """Refuse the question, since a PUSH carries no publisher's number."""
        reply(UnavailableError("a fyrehose upstream knows no publishers"))

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:  # noqa: ARG002
        """Refuse to open a name, for the same reason as :meth:`newest`."""
        reply(UnavailableError("a fyrehose upstream knows no publishers"))

    def committed(self, op: int) -> None:
        """Do nothing, since no request waits for a commit."""

    # Called by the driver

    def first(self) -> Batch | None:
        """Return the batch to push now."""
        return self._waiting[0].batch if self._waiting and self._lost_at is None else None

    def pushed(self, batch: Batch) -> None:
        """Note that the first batch is sent, and so done: there is no acknowledgement."""
        if not self._waiting or self._waiting[0].batch is not batch:
            return  # The batch was refused while it was being pushed.
        batch, done, _ = self._take()
        self._hub.received(batch)
        if done is not None:
            done(batch)

    def connected(self) -> None:
        """Note that there is a connection."""
        if self._lost_at is not None:
            self._lost_at = None
            self.wake()

    def tick(self, now: float) -> None:
        """Refuse messages that have waited too long for a connection."""
        if self._lost_at is None or now - self._lost_at < self._patience:
            return
        while self._waiting:
            error = UnavailableError(f"the upstream hub has not answered for {self._patience:g} s")
            self._hub.refuse([self._take()], error, "upstream")

    def _take(self) -> Submission:
        submission = self._waiting.popleft()
        self._release(submission.batch.size)
        return submission
