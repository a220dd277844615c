"""The fleet's connections to the dispatcher.

To a dispatcher the fleet is one matcher. Its tasks push, each over a connection of its own (:class:`RepeatablePush`);
the driver sends marks over one that lasts as long as the job (:mod:`~headrace.spark.jobs.match.lifeline`).

The protocol acknowledges no push, but a dispatcher processes a connection's input in order and answers heartbeats. So
the answer to a heartbeat shows that all pushes before it were taken: a task ends with one.

The original protocol does not ask for that answer, so there are dispatchers that never give it. The lifeline finds out
when it is opened. Of such a dispatcher only TCP tells how far it is: its machine acknowledges the bytes, and when a
task has no more to say and it closes the connection in turn, it has read them all. One that does not even do that is
trusted with what its machine has.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile, gettempdir
from time import monotonic, time
from typing import Final

from headrace.archive.folder import storage_errors
from headrace.client.tls import ClientTls, TlsFiles, explain
from headrace.config import Address
from headrace.errors import UnreachableError, UsageError, WireError
from headrace.protocols import PORTS
from headrace.wire.attribute.messages import ConnectorDecoder, Heartbeat, serialize

PLAIN: Final = "dispatcher://"
TLS: Final = "dispatcher+tls://"

HEARTBEAT_SECONDS: Final = 2.0
"""Interval of heartbeats on an idle connection."""

ANSWER_SECONDS: Final = 5.0
"""A dispatcher that has not answered its first heartbeat by then is taken for one that answers none."""

CLOSE_SECONDS: Final = 1.0
"""How long a task waits for such a dispatcher to close the connection."""

AGAIN_SECONDS: Final = 0.2
"""Pause before a task dials again."""

KEPT_BYTES: Final = 8 << 20
"""Bytes of a task's pushes that are kept in memory; more go to a temporary file."""

_PAUSE: Final = 0.01
"""Pause between two looks at how much is acknowledged; the kernel does not call."""


@dataclass(frozen=True, slots=True)
class DispatcherDoor:
    """A dispatcher's address, and how it is dialled; tasks get copies of it."""

    address: Address
    tls: bool = False
    tls_files: tuple[tuple[str, str], ...] = ()
    """Files for TLS by their names, on each machine that connects."""

    @classmethod
    def parse(cls, text: str, tls_files: tuple[tuple[str, str], ...] = ()) -> DispatcherDoor:
        """Parse ``host:port``, or with TLS ``dispatcher+tls://host:port``.

        >>> DispatcherDoor.parse("dispatcher+tls://hub.example")
        DispatcherDoor(address=Address(host='hub.example', port=6000), tls=True, tls_files=())
        """
        tls = text.startswith(TLS)
        place = text.removeprefix(TLS).removeprefix(PLAIN)
        if "://" in place:
            raise UsageError(f"{text!r} is no dispatcher: expected host:port or {TLS}host:port")
        return cls(Address.parse(place, PORTS["dispatcher"]), tls, tls_files if tls else ())

    def __str__(self) -> str:
        return f"{TLS if self.tls else ''}{self.address}"

    def dial(self, seconds: float) -> socket.socket:
        """Connect, with TLS where it is asked for; the name in the dispatcher's certificate is checked."""
        place = self.address.host, self.address.port
        try:
            plain = socket.create_connection(place, seconds)
        except OSError as error:
            raise UnreachableError(str(self), f"no dispatcher answers there ({error})") from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.tls:
            return plain
        try:
            context = ClientTls(TlsFiles.of(dict(self.tls_files))).current()
            return context.wrap_socket(plain, server_hostname=self.address.host)
        except (ssl.SSLError, ConnectionError) as error:
            plain.close()
            raise UnreachableError(str(self), explain(error, self.address.host)) from None
        except OSError as error:
            plain.close()
            raise UnreachableError(str(self), f"no dispatcher answers there ({error})") from None
        except BaseException:
            plain.close()
            raise


class DispatcherConnection:
    """One connection to a dispatcher; every failure is an :class:`~headrace.errors.UnreachableError`."""

    def __init__(self, door: DispatcherDoor, patience: float, *, answers: bool = True) -> None:
        self.door = door
        self.answers = answers
        """Whether it answers heartbeats."""
        self._timeout = max(patience, 1.0)
        self._decoder = ConnectorDecoder()
        self._unanswered = 0
        self._heard = False
        self._socket = door.dial(self._timeout)
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
            self._say_goodbye()
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
            # Under auth.required a door turns a stranger away without a word.
            stranger = (
                "" if self._heard else " at once: it must know us, by certificate or address, as an admin"
            )
            raise self._lost(f"it closed the connection{stranger}")
        self._heard = self._heard or data is not None
        if self.answers:
            self._unanswered -= sum(isinstance(frame, Heartbeat) and frame.ends for frame in frames)
        return data is not None

    def _receive(self, seconds: float) -> bytes | None:
        """Receive within a time: nothing yet is ``None``, the end is empty."""
        try:
            self._socket.settimeout(max(seconds, 0.0))
            return self._socket.recv(4096)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
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

    def _say_goodbye(self) -> None:
        if isinstance(self._socket, ssl.SSLSocket):
            # TLS has an end of its own, which nobody has to answer; then the bytes that come are TCP's.
            self._socket.settimeout(0.0)
            with contextlib.suppress(OSError, ValueError):
                self._socket.unwrap()
        self._socket.shutdown(socket.SHUT_WR)

    def _lost(self, why: object) -> UnreachableError:
        if isinstance(why, TimeoutError):
            why = f"it took nothing for {self._timeout:g} s"
        elif isinstance(why, ssl.SSLEOFError | ConnectionError):
            # Under auth.required a door turns a stranger away without a word.
            stranger = (
                "" if self._heard else " at once: it must know us, by certificate or address, as an admin"
            )
            why = f"it closed the connection{stranger}"
        elif isinstance(why, ssl.SSLError):
            why = explain(why, self.door.address.host)
        return UnreachableError(str(self.door), f"the dispatcher is lost ({why})")


class RepeatablePush:
    """Pushes of one task, which begin anew on another connection when the dispatcher is lost, for some time.

    What was pushed is kept: of a connection that is lost nobody knows how much the dispatcher has taken. It drops what
    comes again, as connectors know what each client has received.
    """

    def __init__(self, door: DispatcherDoor, patience: float, answers: bool) -> None:
        self._door = door
        self._patience = patience
        self._answers = answers
        self._pushed = SpooledTemporaryFile(KEPT_BYTES)  # noqa: SIM115 - closed by close()
        self._connection: DispatcherConnection | None = None

    def send(self, data: bytes) -> None:
        """Send pushes."""
        self._try(lambda connection: connection.send(data))
        with _naming_spool():
            self._pushed.write(data)

    def keep(self) -> None:
        """Keep the connection alive, if there is one."""
        if self._connection is not None:
            self._try(DispatcherConnection.keep)

    def finish(self) -> None:
        """Wait until the dispatcher has taken everything."""
        if self._connection is not None:
            self._try(DispatcherConnection.finish)

    def close(self) -> None:
        """Close the connection, and forget what was pushed."""
        self._drop()
        # A full disk refuses what is still to be written: that was raised before, and nobody needs it any more.
        with contextlib.suppress(OSError):
            self._pushed.close()

    def _try(self, act: Callable[[DispatcherConnection], None]) -> None:
        deadline: float | None = None
        while True:
            try:
                if self._connection is None:
                    self._connection = self._begin_anew()
                act(self._connection)
            except UnreachableError:
                self._drop()
                now = monotonic()
                deadline = now + self._patience if deadline is None else deadline
                if now >= deadline:
                    raise
                threading.Event().wait(AGAIN_SECONDS)
            else:
                return

    def _begin_anew(self) -> DispatcherConnection:
        connection = DispatcherConnection(self._door, self._patience, answers=self._answers)
        try:
            with _naming_spool():
                self._pushed.seek(0)
                while data := self._pushed.read(1 << 20):
                    connection.send(data)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _naming_spool() -> contextlib.AbstractContextManager[None]:
    """Say in errors of the temporary file where it is, and what it is for."""
    return storage_errors(
        f"a task keeps what it pushed in {gettempdir()}, which TMPDIR names on the executor's machine, until the "
        "dispatcher has taken all of it"
    )


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
