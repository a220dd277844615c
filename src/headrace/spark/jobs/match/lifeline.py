"""The lifeline: the driver's connection for the fleet's marks of progress.

A mark means: everything up to here was pushed, and everything after the first mark of this connection will be. While
the lifeline is up, clients rely on pushes; when it is lost, connectors feed them from the log until there is another.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from headrace.errors import UnreachableError
from headrace.hub.routing.local_matcher import mark
from headrace.hub.routing.matcher_ring import FLEET
from headrace.message import node_id
from headrace.spark.jobs.match.dispatcher_connection import (
    HEARTBEAT_SECONDS,
    DispatcherConnection,
    DispatcherDoor,
)
from headrace.wire.attribute.messages import serialize

NODE: Final = node_id(FLEET)

LOOK_SECONDS: Final = 0.25
"""Interval at which the lifeline checks that its job runs."""

logger = logging.getLogger("headrace.spark")


class Lifeline:
    """The connection for the fleet's marks, kept up by a thread while the job is alive.

    It is replaced only between micro-batches: pushes that were lost during one would not be repeated.
    """

    def __init__(self, place: int, patience: float) -> None:
        self.door: DispatcherDoor | None = None
        """The dispatcher in use."""
        self.answers: bool | None = None
        """Whether it answers heartbeats, once that is known."""
        self._place = place
        self._patience = patience
        self._connection: DispatcherConnection | None = None
        self._busy = False
        self._using = threading.Lock()
        self._ended = threading.Event()

    @property
    def place(self) -> int:
        """The last message up to which everything was pushed."""
        return self._place

    def open(self, dispatchers: Sequence[DispatcherDoor]) -> DispatcherDoor:
        """Connect to the first dispatcher that answers; if none does, to the first that takes connections."""
        failures = []
        silent: list[DispatcherDoor] = []
        for door in dispatchers:
            self.door = door
            self.answers = None
            try:
                answers = self._dial(door)
            except UnreachableError as error:
                failures.append(error)
                continue
            if answers:
                return door
            self._drop()
            silent.append(door)
        if silent:
            self.door = silent[0]
            self._dial(self.door)
            logger.warning(
                "the dispatcher at %s answers no heartbeats: what its machine has taken counts as pushed",
                self.door,
            )
            return self.door
        last = failures[-1]
        raise UnreachableError(last.address, f"{last.reason}; name one with --param dispatchers=HOST:PORT")

    def watch(self, alive: Callable[[], bool], over: Callable[[], None]) -> None:
        """Keep it up until the job is over, then call ``over``."""
        watching = threading.Thread(
            target=self._watch, args=(alive, over), name="headrace-lifeline", daemon=True
        )
        watching.start()

    def begin(self) -> None:
        """Begin a micro-batch, with the lifeline up."""
        deadline = monotonic() + self._patience
        while True:
            with self._using:
                try:
                    self._beat()
                except UnreachableError:
                    if monotonic() >= deadline:
                        raise
                else:
                    self._busy = True
                    return
            self._ended.wait(0.1)

    def done(self, place: int) -> None:
        """End a micro-batch: everything up to ``place`` was pushed."""
        with self._using:
            self._busy = False
            self._place = place
            self._use(lambda connection: connection.send(serialize(mark(place, NODE))))

    def close(self) -> None:
        """Close it: clients are fed from the log from now on."""
        self._ended.set()
        with self._using:
            self._drop()

    def _watch(self, alive: Callable[[], bool], over: Callable[[], None]) -> None:
        beaten = monotonic()
        while not self._ended.wait(LOOK_SECONDS):
            try:
                if not alive():
                    break
            except Exception:  # noqa: BLE001
                break  # Spark is gone.
            if monotonic() - beaten >= HEARTBEAT_SECONDS:
                with self._using, contextlib.suppress(UnreachableError):
                    self._beat()
                beaten = monotonic()
        over()

    def _beat(self) -> None:
        """Check that the dispatcher answers; reconnect if allowed."""
        self._use(DispatcherConnection.settle)
        if self._connection is None and self.door is not None and not self._busy and not self._ended.is_set():
            self._dial(self.door)

    def _dial(self, door: DispatcherDoor) -> bool:
        """Connect; return whether the dispatcher answers heartbeats."""
        connection = DispatcherConnection(door, self._patience, answers=self.answers is not False)
        try:
            connection.send(serialize(mark(self._place, NODE)))
            if self.answers is None:
                connection.probe()
            else:
                connection.settle()
        except UnreachableError:
            connection.close()
            raise
        self.answers = connection.answers
        self._connection = connection
        return connection.answers

    def _use(self, act: Callable[[DispatcherConnection], None]) -> None:
        """Use the connection, and drop it if it fails."""
        if self._connection is not None:
            try:
                act(self._connection)
            except UnreachableError as error:
                logger.warning("%s; clients are fed from the log until it is back", error)
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
