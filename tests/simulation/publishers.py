"""Publishers at a cluster of simulated nodes: they believe what they are told, and remember it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.cluster import BrokenPromiseError

from headrace.errors import HeadraceError, RefusedError
from headrace.hub.sequencer import Published
from headrace.hub.state import entry
from headrace.message import Batch, Run

if TYPE_CHECKING:
    from tests.simulation.node_process import Process
    from tests.simulation.nodes import World


class Publisher:
    """Publishes messages of its own, each until it is acknowledged, at whichever node answers."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"publisher {number}"
        self._number = 0
        self._attempt = 0
        self._payloads: list[bytes] = []
        self._left: int | None = None
        """How many publishes are left before it stops, once it is told to."""

    @property
    def finished(self) -> bool:
        return self._left == 0 and not self._payloads

    def finish(self) -> None:
        """Publish once more, and stop."""
        self._left = 1
        if not self._payloads:
            self.next()

    def next(self) -> None:
        world = self.world
        if self._payloads or self._left == 0:
            return
        if self._left is not None:
            self._left -= 1
        count = world.random.randint(1, 3)
        self._payloads = [f"{self.name}/{self._number + place}".encode() for place in range(count)]
        self._send()

    def _send(self) -> None:
        world = self.world
        self._attempt += 1
        attempt = self._attempt
        alive = [node.process for node in world.nodes if node.process is not None]
        if alive:
            process = world.random.choice(alive)
            batch = Batch(
                Run.of(self._payloads), origin="tube", publisher=self.name, number=self._number, topic="t"
            )

            def reply(result: Published | HeadraceError) -> None:
                world.network.at(world.network.now, lambda: self._told(attempt, process, result))

            with process.machine.acting(process.loop):
                process.intake.idempotent.publish(batch, reply)
                if world.random.random() < 0.3:
                    # The hub's own bookkeeping, between the messages.
                    process.hub.submit(entry("hold", self.name, str(process.log.head).encode()))
        world.network.at(world.network.now + world.random.uniform(2, 8), lambda: self._again(attempt))

    def _again(self, attempt: int) -> None:
        """Send it again: the answer may be lost, or still come."""
        if attempt == self._attempt and self._payloads:
            self.world.happened["sent again"] += 1
            self._send()

    def _told(self, attempt: int, process: Process, result: Published | HeadraceError) -> None:
        world = self.world
        if attempt == self._attempt and isinstance(result, RefusedError) and result.code == "unknown":
            # It was taken, and is trimmed by now: nobody can tell any more whether it is the same.
            if any(payload not in world.numbers for payload in self._payloads):
                raise BrokenPromiseError(f"{self.name} is refused: {result}")
            world.happened["unknown"] += 1
            result = Published(None, None)
        if isinstance(result, RefusedError) and result.code not in {"storage", "unknown"}:
            raise BrokenPromiseError(f"{self.name} is refused: {result}")
        if not self._payloads or isinstance(result, HeadraceError):
            if attempt == self._attempt and self._payloads:
                self._attempt += 1
                again = self._attempt
                world.network.at(world.network.now + 0.2, lambda: self._again(again))
            return
        if attempt != self._attempt:
            return
        if result.first is not None:
            world.acknowledged_at(result.first, self._payloads)
        self._number += len(self._payloads)
        self._payloads = []
        pause = world.random.expovariate(1 / world.ordeal.pause) if self._left is None else 0.01
        world.network.at(world.network.now + pause, self.next)
