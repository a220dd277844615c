"""The batches that are appended to the log and not committed, in order, with those who wait for their commit."""

from __future__ import annotations

from collections import deque

from headrace.hub.sequencer import Done, Submission
from headrace.message import Batch


class Uncommitted:
    """Appended batches that are not committed yet, oldest first; ``size`` is what they take in bytes."""

    __slots__ = ("_queue", "size")

    def __init__(self) -> None:
        self._queue: deque[Submission] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first_op(self) -> int | None:
        """The first operation, if there is any."""
        return self._queue[0].batch.op if self._queue else None

    @property
    def last_op(self) -> int | None:
        """The last operation, if there is any."""
        return self._queue[-1].batch.last_op if self._queue else None

    def add(self, batch: Batch, done: Done | None) -> None:
        """Add a batch that was just appended."""
        self._queue.append(Submission(batch, done))
        self.size += batch.size

    def batches_from(self, op: int) -> list[Batch]:
        """Return the batches from an operation on."""
        found: list[Batch] = []
        for submission in reversed(self._queue):
            if submission.batch.op < op:
                break
            found.append(submission.batch)
        return found[::-1]

    def take(self, upto: int) -> tuple[list[Batch], list[Done | None]]:
        """Remove and return the batches up to an operation, and who waits for each."""
        batches: list[Batch] = []
        dones: list[Done | None] = []
        queue = self._queue
        while queue and queue[0].batch.last_op <= upto:
            batch, done, _ = queue.popleft()
            self.size -= batch.size
            batches.append(batch)
            dones.append(done)
        return batches, dones

    def take_all(self) -> list[Submission]:
        """Remove and return everything."""
        taken, self._queue, self.size = list(self._queue), deque(), 0
        return taken

    def take_waiting(self) -> list[Submission]:
        """Return the submissions that somebody waits for, and keep their batches without."""
        waiting = [each for each in self._queue if each.done is not None]
        self._queue = deque(Submission(each.batch) for each in self._queue)
        return waiting

    def cut(self, last: int) -> list[Submission]:
        """Remove operations after ``last``; return the submissions that lose some, oldest first."""
        lost: list[Submission] = []
        while self._queue and self._queue[-1].batch.last_op > last:
            submission = self._queue.pop()
            batch = submission.batch
            self.size -= batch.size
            lost.append(submission)
            if last >= batch.op:
                self.add(batch.slice(0, last - batch.op + 1), None)
        return lost[::-1]

    def let_go(self, most: int) -> None:
        """Forget the beginning of a large group while there are more than ``most`` bytes: its commit reads it back."""
        while self.size > most and len(self._queue) > 1:
            batch, done, _ = self._queue[0]
            if not batch.tied or done is not None:
                break
            self._queue.popleft()
            self.size -= batch.size
