"""The fleet's connections to the dispatcher: pushes, and marks of progress.

To a dispatcher the fleet is one matcher. Its tasks push, each over a connection of its own; the driver sends marks over
one that lasts as long as the job, the :class:`Lifeline`. A mark means: everything up to here was pushed, and everything
after the first mark of this connection will be. While the lifeline is up, clients rely on pushes; when it is lost,
connectors feed them from the log until there is another.

The protocol acknowledges no push, but a dispatcher processes a connection's input in order and answers heartbeats. So
the answer to a heartbeat shows that all pushes before it were taken: a task ends with one.

The original protocol does not ask for that answer, so there are dispatchers that never give it. The lifeline finds out
when it is opened. Of such a dispatcher only TCP tells how far it is: its machine acknowledges the bytes, and when a
task has no more to say and it closes the connection in turn, it has read them all. One that does not even do that is
trusted with what its machine has.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Final

from headrace.config import Address
from headrace.errors import UnreachableError, WireError
from headrace.hub.routing.local_matcher import mark
from headrace.hub.routing.matcher_ring import FLEET
from headrace.message import node_id
from headrace.wire.attribute.messages import ConnectorDecoder, Heartbeat, serialize

NODE: Final = node_id(FLEET)

HEARTBEAT_SECONDS: Final = 2.0
"""Interval of heartbeats on an idle connection."""

LOOK_SECONDS: Final = 0.25
"""Interval at which the lifeline checks that its job runs."""

ANSWER_SECONDS: Final = 5.0
"""A dispatcher that has not answered its first heartbeat by then is taken for one that answers none."""

CLOSE_SECONDS: Final = 1.0
"""How long a task waits for such a dispatcher to close the connection."""

_PAUSE: Final = 0.01
"""Pause between two looks at how much is acknowledged; the kernel does not call."""

logger = logging.getLogger("headrace.spark")


class DispatcherConnection:
    """One connection to a dispatcher; every failure is an :class:`~headrace.errors.UnreachableError`."""

    def __init__(self, address: Address, patience: float, *, answers: bool = True) -> None:
        self.address = address
        self.answers = answers
        """Whether it answers heartbeats."""
        self._timeout = max(patience, 1.0)
        self._decoder = ConnectorDecoder()
        self._unanswered = 0
        try:
            self._socket = socket.create_connection((address.host, address.port), self._timeout)
        except OSError as error:
            raise UnreachableError(str(address), f"no dispatcher answers there ({error})") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent_at = monotonic()

    def send(self, data: bytes) -> None:
        """Send pushes, as fast as the dispatcher takes them."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from None
        self._sent_at = monotonic()

    def keep(self) -> None:
        """Send a heartbeat if nothing was sent for some time."""
        if monotonic() - self._sent_at >= HEARTBEAT_SECONDS:
            self._heartbeat()

    def probe(self) -> None:
        """Find out whether the dispatcher answers heartbeats, and wait until it has taken everything sent."""
        self._heartbeat()
        deadline = monotonic() + min(ANSWER_SECONDS, self._timeout)
        while self._unanswered and self.answers:
            self.answers = self._take(deadline - monotonic())
        if not self.answers:
            self._await_acknowledgements()

    def settle(self) -> None:
        """Wait until the dispatcher has taken everything sent, as far as it shows that."""
        self._heartbeat()
        if not self.answers:
            self._await_acknowledgements()
            return
        while self._unanswered:
            if not self._take(self._timeout):
                raise self._lost(TimeoutError())

    def finish(self) -> None:
        """Say no more, and wait until the dispatcher has taken everything sent."""
        self.settle()
        if self.answers:
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
            deadline = monotonic() + CLOSE_SECONDS
            # If it closes without having read everything, its machine resets the connection, which is an error here.
            while (left := deadline - monotonic()) > 0 and self._receive(left):
                pass
        except OSError as error:
            raise self._lost(error) from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _heartbeat(self) -> None:
        self._unanswered += self.answers
        self.send(serialize(Heartbeat(int(time()))))

    def _take(self, seconds: float) -> bool:
        """Take what the dispatcher says within a time; return whether it said anything."""
        try:
            data = self._receive(seconds)
            frames = list(self._decoder.feed(data or b""))
        except (OSError, WireError) as error:
            raise self._lost(error) from None
        if data == b"":
            raise self._lost("it closed the connection")
        if self.answers:
            self._unanswered -= sum(isinstance(frame, Heartbeat) and frame.ends for frame in frames)
        return data is not None

    def _receive(self, seconds: float) -> bytes | None:
        """Receive within a time: nothing yet is ``None``, the end is empty."""
        try:
            self._socket.settimeout(max(seconds, 0.0))
            return self._socket.recv(4096)
        except (TimeoutError, BlockingIOError):
            return None
        finally:
            self._socket.settimeout(self._timeout)

    def _await_acknowledgements(self) -> None:
        """Wait until the dispatcher's machine has everything sent."""
        before, deadline = -1, 0.0
        while left := _unacknowledged(self._socket):
            if left != before:
                before, deadline = left, monotonic() + self._timeout
            elif monotonic() >= deadline:
                raise self._lost(TimeoutError())
            self._take(_PAUSE)
        # Who is gone has taken nothing for certain.
        while self._take(0.0):
            pass

    def _lost(self, why: object) -> UnreachableError:
        if isinstance(why, TimeoutError):
            why = f"it took nothing for {self._timeout:g} s"
        return UnreachableError(str(self.address), f"the dispatcher is lost ({why})")


class Lifeline:
    """The connection for the fleet's marks, kept up by a thread while the job is alive.

    It is replaced only between micro-batches: pushes that were lost during one would not be repeated.
    """

    def __init__(self, place: int, patience: float) -> None:
        self.address = Address("", 0)
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

    def open(self, dispatchers: Sequence[Address]) -> Address:
        """Connect to the first dispatcher that answers; if none does, to the first that takes connections."""
        failures = []
        silent: list[Address] = []
        for address in dispatchers:
            self.address = address
            self.answers = None
            try:
                answers = self._dial()
            except UnreachableError as error:
                failures.append(error)
                continue
            if answers:
                return address
            self._drop()
            silent.append(address)
        if silent:
            self.address = silent[0]
            self._dial()
            logger.warning(
                "the dispatcher at %s answers no heartbeats: what its machine has taken counts as pushed",
                self.address,
            )
            return self.address
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
        if self._connection is None and not self._busy and not self._ended.is_set():
            self._dial()

    def _dial(self) -> bool:
        """Connect; return whether the dispatcher answers heartbeats."""
        connection = DispatcherConnection(self.address, self._patience, answers=self.answers is not False)
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


def _unacknowledged(connection: socket.socket) -> int:
    """Count the bytes that were sent and that the peer's machine has not acknowledged, where the system tells."""
    try:
        import termios
        from fcntl import ioctl

        count: int
        # Linux calls it SIOCOUTQ, which is the same number.
        [count] = struct.unpack("i", ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    except (ImportError, OSError):
        return 0
    return count
