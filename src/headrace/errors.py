"""Every error that Headrace raises, by whose fault it is.

::

    HeadraceError
    ├── UsageError                our caller's mistake
    │   ├── ConfigError           a setting: its key, value, where it came from, what would be right
    │   └── ClosedError           a client or connection used after it was closed
    ├── PeerError                 the other side's bytes or behaviour
    │   ├── WireError             bytes that break a protocol: protocol, field, value, limit
    │   │   ├── MalformedError    cannot be what the protocol says
    │   │   ├── LimitError        longer, deeper or more than we take
    │   │   └── UnexpectedError   well formed, but not now
    │   ├── RefusedError          the peer said no: a code to branch on and its reason
    │   ├── UnreachableError      nobody answered there
    │   ├── LostRangeError        sequence numbers nobody could deliver: first and last
    │   └── ForgedError           a checkpoint whose signature, key or digests are wrong
    └── StorageError              the disk
        ├── DamagedError          a file that is not what was written: file, offset, sequence range
        ├── LockedError           another process writes this log
        ├── FullError             no room to append
        ├── TrimmedError          sequence numbers that retention has removed
        ├── ArchiveError          messages that only the archive has, and that cannot be read there
        ├── NoArchiveError        no archive where one is expected, or nothing in it yet
        ├── OvertakenError        another writer has added to the archive first
        └── UnavailableError      the hub that numbers messages cannot be reached, or does not take them

Foreign exceptions (``struct.error``, ``UnicodeDecodeError``, ``OSError`` …) are translated where they arise, so
catching one branch catches all of it. Each error carries its facts as fields and reads as a sentence a person can act
on. All survive pickling with their fields, since Spark carries them from an executor to its driver.
"""

from __future__ import annotations

import reprlib
from typing import Any, Literal

Protocol = Literal["fyrehose", "spp", "parcel", "attribute", "sdk", "tube", "link", "log", "capture", "proxy"]

_SHOWN = 64
"""Length of a peer's value in an error: enough to recognise it, too little to flood a log."""


class HeadraceError(Exception):
    """The root of every error Headrace raises on purpose.

    >>> import headrace
    >>> try:
    ...     headrace.connect("127.0.0.1")
    ... except headrace.HeadraceError as error:
    ...     print(error)
    '127.0.0.1' is not the address of a hub: expected scheme://host:port
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is revived from its message, which is not what our constructors take.
        return _revive, (type(self), self.args, self.__dict__)


class UsageError(HeadraceError):
    """A caller's mistake.

    >>> from headrace import between
    >>> between(2, 1)
    Traceback (most recent call last):
    headrace.errors.UsageError: between(2, 1): the first is above the second
    """


class ConfigError(UsageError):
    """A setting that cannot be used.

    >>> raise ConfigError("log.fsync", "sometimes", source="--set", expected="always, interval or never")
    Traceback (most recent call last):
    headrace.errors.ConfigError: log.fsync = 'sometimes' (from --set): expected always, interval or never
    """

    def __init__(self, key: str, value: object, *, source: str, expected: str) -> None:
        self.key = key
        self.value = value
        self.source = source
        self.expected = expected
        shown = "" if value is None else f" = {shorten(value)}"
        super().__init__(f"{key}{shown} (from {source}): expected {expected}")


class ClosedError(UsageError):
    """A client, connection or log was used after it was closed.

    >>> raise ClosedError("the log is closed")
    Traceback (most recent call last):
    headrace.errors.ClosedError: the log is closed
    """


class PeerError(HeadraceError):
    """The other side sent or did something the protocol does not allow.

    >>> isinstance(UnreachableError("127.0.0.1:8081", "refused"), PeerError)
    True
    """


class WireError(PeerError):
    """Bytes that break a protocol.

    ``protocol`` and ``field`` say where, ``value`` is what was found, ``limit`` what would have been allowed (a number
    for a length, a phrase for a rule), ``offset`` the number of bytes before it on the connection, if known.

    >>> from headrace.wire.fyrehose.stream import ServerDecoder
    >>> _, _, error = ServerDecoder().scan(memoryview(bytes([255])), 0, 1)
    >>> error.protocol, error.field, error.reason
    ('fyrehose', 'TYPE', 'malformed')
    """

    problem = "breaks the protocol"

    def __init__(
        self, protocol: Protocol, field: str, value: object, limit: object, *, offset: int | None = None
    ) -> None:
        self.protocol: Protocol = protocol
        self.field = field
        # A view would hold a decoder's buffer for as long as the error lives, and change under it.
        self.value = bytes(value) if isinstance(value, bytearray | memoryview) else value
        self.limit = limit
        self.offset = offset
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{protocol}: {field} {shorten(value)}{where} {self.problem}: {limit}")

    @property
    def reason(self) -> str:
        """The label under which a refusal is counted, e.g. ``malformed``."""
        return type(self).__name__.removesuffix("Error").lower()


class MalformedError(WireError):
    """The bytes cannot be what the protocol says they are.

    >>> raise MalformedError("spp", "id", b"", "one byte or more")
    Traceback (most recent call last):
    headrace.errors.MalformedError: spp: id 0x is malformed: one byte or more
    """

    problem = "is malformed"


class LimitError(WireError):
    """A length, count or depth past what we take.

    >>> raise LimitError("sdk", "subscriptions", 1001, 1000)
    Traceback (most recent call last):
    headrace.errors.LimitError: sdk: subscriptions 1001 is over the limit: 1000
    """

    problem = "is over the limit"


class UnexpectedError(WireError):
    """A well-formed frame that may not come now, or not from this side.

    >>> raise UnexpectedError("fyrehose", "TYPE", 1, "a DELIVER comes from the hub")
    Traceback (most recent call last):
    headrace.errors.UnexpectedError: fyrehose: TYPE 1 is not allowed here: a DELIVER comes from the hub
    """

    problem = "is not allowed here"


class RefusedError(PeerError):
    """The peer understood and said no; ``code`` is stable, for a program to branch on.

    >>> RefusedError("missing", "there is no consumer billing").code
    'missing'
    """

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{reason} ({code})")


class UnreachableError(PeerError):
    """Nobody answers at an address, or no longer.

    >>> raise UnreachableError("127.0.0.1:8081", "nobody listens there")
    Traceback (most recent call last):
    headrace.errors.UnreachableError: 127.0.0.1:8081: nobody listens there
    """

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"{address}: {reason}")


class LostRangeError(PeerError):
    """Nobody could deliver messages ``first`` to ``last`` in the time allowed.

    >>> lost = LostRangeError(7, 9, "nobody has them")
    >>> range(lost.first, lost.last + 1), str(lost)
    (range(7, 10), 'messages 7 to 9 are lost: nobody has them')
    """

    def __init__(self, first: int, last: int, reason: str) -> None:
        self.first = first
        self.last = last
        self.reason = reason
        super().__init__(f"messages {first} to {last} are lost: {reason}")


class ForgedError(PeerError):
    """A checkpoint that is not what its signer signed.

    >>> raise ForgedError("monday.checkpoint", "its signature does not match its content")
    Traceback (most recent call last):
    headrace.errors.ForgedError: monday.checkpoint: its signature does not match its content
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name}: {reason}")


class StorageError(HeadraceError):
    """A problem of the disk, or of the files on it.

    >>> isinstance(FullError("data/log", "no space left on device"), StorageError)
    True
    """


class DamagedError(StorageError):
    """A file does not hold what was written; nothing is read past the damage.

    ``first`` and ``last`` bound the sequence numbers that the damage puts in doubt. If only entries of the log are in
    doubt, and no message, they stand after ``last``, and ``first`` is ``last + 1``.

    >>> raise DamagedError("data/log/7.tail", 128, 7, 9, "a checksum does not match")
    Traceback (most recent call last):
    headrace.errors.DamagedError: data/log/7.tail: a checksum does not match at byte 128; messages 7 to 9 are in doubt
    """

    def __init__(self, path: str, offset: int, first: int, last: int | None, reason: str) -> None:
        self.path = path
        self.offset = offset
        self.first = first
        self.last = last
        self.reason = reason
        if last is None:
            doubtful = f"messages from {first} on"
        elif last >= first:
            doubtful = f"messages {first} to {last}"
        else:
            doubtful = f"entries of the log {f'after message {last}' if last else 'before message 1'}"
        super().__init__(f"{path}: {reason} at byte {offset}; {doubtful} are in doubt")


class LockedError(StorageError):
    """Another process has the log open for writing.

    >>> LockedError("data/log", "process 4711").holder
    'process 4711'
    """

    def __init__(self, path: str, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(f"{path} is in use by {holder}; stop it first, or choose another data directory")


class FullError(StorageError):
    """No room to append; nothing was written, and appends work again once there is space.

    >>> raise FullError("data/log", "no space left on device")
    Traceback (most recent call last):
    headrace.errors.FullError: data/log: no space left on device; free space or lower log.retain_bytes
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}; free space or lower log.retain_bytes")


class TrimmedError(StorageError):
    """Sequence numbers that retention has removed: ``first`` to ``last`` were asked for, ``oldest`` is kept.

    >>> raise TrimmedError(1, 5, 6)
    Traceback (most recent call last):
    headrace.errors.TrimmedError: messages 1 to 5 are no longer kept; the oldest is 6
    """

    def __init__(self, first: int, last: int, oldest: int) -> None:
        self.first = first
        self.last = last
        self.oldest = oldest
        super().__init__(f"messages {first} to {last} are no longer kept; the oldest is {oldest}")


class ArchiveError(StorageError):
    """Messages ``first`` to ``last``, which only the archive at ``place`` has, and which cannot be read there now.

    >>> raise ArchiveError("s3://mill/archive", 1, 9, "connection refused")
    Traceback (most recent call last):
    headrace.errors.ArchiveError: messages 1 to 9 cannot be read from the archive s3://mill/archive: connection refused
    """

    def __init__(self, place: str, first: int, last: int, reason: str) -> None:
        self.place = place
        self.first = first
        self.last = last
        self.reason = reason
        super().__init__(f"messages {first} to {last} cannot be read from the archive {place}: {reason}")


class NoArchiveError(StorageError):
    """There is no archive at a place, or nothing in it yet.

    >>> NoArchiveError("/srv/archive").place
    '/srv/archive'
    """

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"{place}: there is no archive, or nothing in it yet")


class OvertakenError(StorageError):
    """Another writer, named by ``writer``, has added to the archive first: nothing was added.

    >>> raise OvertakenError("/srv/archive", "query 7f3c, batch 12", 500)
    Traceback (most recent call last):
    headrace.errors.OvertakenError: /srv/archive: query 7f3c, batch 12 has added messages up to 500 meanwhile
    """

    def __init__(self, place: str, writer: str, through: int) -> None:
        self.place = place
        self.writer = writer
        self.through = through
        super().__init__(f"{place}: {writer} has added messages up to {through} meanwhile")


class UnavailableError(StorageError):
    """The hub that numbers messages cannot be reached, or did not take them: nothing is acknowledged; try again later.

    >>> isinstance(UnavailableError("the upstream hub is lost: try again later"), HeadraceError)
    True
    """


def system_reason(error: OSError) -> str:
    """Say in a few words why the system refused, for the end of a sentence.

    >>> system_reason(FileNotFoundError(2, "No such file or directory"))
    'no such file or directory'
    """
    return (error.strerror or str(error)).lower()


def shorten(value: object) -> str:
    """Shorten a value for an error message; never fails."""
    if isinstance(value, bytes | bytearray | memoryview):
        head = bytes(value[:_SHOWN]).hex()
        return f"0x{head}…" if len(value) > _SHOWN else f"0x{head}"
    if isinstance(value, str):
        return repr(value[:_SHOWN]) + "…" if len(value) > _SHOWN else repr(value)
    if type(value) is int or isinstance(value, list | tuple | dict | set | frozenset):
        text = _Bounded().repr(value)
    else:
        text = str(value)
    return text[:_SHOWN] + "…" if len(text) > _SHOWN else text


class _Bounded(reprlib.Repr):
    """Shows any container or integer: Python's ``repr`` raises for a deep list or a huge integer."""

    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return f"an integer of {bits} bits" if bits > _SHOWN * 3 else super().repr_int(x, level)


def _revive(kind: type[HeadraceError], args: tuple[Any, ...], fields: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error
