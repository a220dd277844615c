"""The base of all clients: opening, closing, and URLs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import ClassVar, Final, Literal, Protocol, Self, TypeAlias, TypedDict

from headrace.config import Address, Settings, load
from headrace.errors import UsageError

Payload: TypeAlias = bytes | bytearray | memoryview

Attributes: TypeAlias = Mapping[str, str | float]
"""A message's attributes by name, texts and numbers."""

Start: TypeAlias = int | Literal["earliest", "now"]
"""Where to begin: a sequence number, the oldest message that is kept, or the next one."""


class Row(TypedDict, total=False):
    """One message to publish, as a dictionary; missing keys come from the arguments of ``publish``, or are empty.

    >>> row: Row = {"payload": b"hello", "attributes": {"city": "Praha", "x": 5}}
    """

    payload: Payload
    topic: str
    attributes: Attributes
    numbers: Mapping[str, float]


def starting_number(from_seq: Start | None, last: int) -> int | None:
    """Return the number to begin with: 0 stands for the oldest message that is kept, ``None`` for the next one.

    >>> starting_number("earliest", 9), starting_number("now", 9), starting_number(5, 9)
    (0, None, 5)
    """
    if isinstance(from_seq, str):
        check_start(from_seq)
        return 0 if from_seq == "earliest" else None
    if from_seq is not None and not 0 <= from_seq <= last:
        raise UsageError(f"from_seq {from_seq}: expected 0 to {last}, 'earliest' or 'now'")
    return from_seq


def check_start(word: str) -> None:
    """Refuse a word that is no place to begin."""
    if word not in ("earliest", "now"):
        raise UsageError(f"from_seq {word!r}: expected a sequence number, 'earliest' or 'now'")


_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class KeptConnection(Protocol):
    """A connection to one of several hosts, kept open by a reconnecting loop."""

    connects: int
    """Connections that were made, the first one included."""

    @property
    def up(self) -> bool:
        """Whether there is a connection now."""

    async def open(self, seconds: float) -> None:
        """Connect to the first host that answers."""

    async def close(self) -> None:
        """Close; it may be called again."""

    def check(self) -> None:
        """Raise unless it is open."""


class AsyncContext:
    """An object that ``async with`` opens and closes."""

    async def open(self) -> Self:
        """Open; ``async with`` does it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close; it may be called again."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Client(AsyncContext):
    """The base of every client; :func:`headrace.connect` makes one, ``async with`` opens and closes it.

    >>> import headrace
    >>> isinstance(headrace.connect("spp://127.0.0.1"), headrace.Client)
    True
    """

    DOORS: ClassVar[Mapping[str, str]] = {}
    """The URL schemes of this client, each with the name of the hub's door."""

    def __init__(self, kept: KeptConnection, timeout: float) -> None:
        self._kept = kept
        self._timeout = timeout

    async def open(self) -> Self:
        """Connect; ``async with`` does it. A client is opened once."""
        await self._kept.open(self._timeout)
        return self

    async def close(self) -> None:
        """Disconnect; it may be called again."""
        await self._kept.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; the client replaces a lost one by itself."""
        return self._kept.up

    @property
    def connects(self) -> int:
        """The number of connections made, including the first."""
        return self._kept.connects


def scheme_of(url: str, known: Collection[str]) -> str:
    """Return a URL's scheme in lower case; refuse an unknown one."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise UsageError(f"{url!r} is not the address of a hub: expected scheme://host:port")
    if scheme.lower() not in known:
        raise UsageError(f"{url!r}: unknown scheme {scheme!r}; known are {', '.join(known)}")
    return scheme.lower()


def parse_url(url: str, hosts: str | None, doors: Mapping[str, str]) -> tuple[str, list[Address]]:
    """Split ``scheme://host:port[,host:port …]`` into its scheme and its hosts.

    ``hosts`` is for a URL that names none. Without either, it is this machine's hub, at the address that the settings
    (from the environment, and from the file that ``HEADRACE_CONFIG`` names) give the door.

    >>> parse_url("tube://10.0.0.7,10.0.0.8:99", None, {"tube": "tube_tcp"})
    ('tube', [Address(host='10.0.0.7', port=8081), Address(host='10.0.0.8', port=99)])
    """
    scheme = scheme_of(url, doors)
    named = url.partition("://")[2].removesuffix("/")
    if named and hosts:
        raise UsageError(f"{url!r} names hosts, and so does {hosts!r}: give them once")
    default: Address = getattr(Settings().listen, doors[scheme])
    if hosts or named:
        return scheme, [Address.parse(each.strip(), default.port) for each in (hosts or named).split(",")]
    local: Address = getattr(load().listen, doors[scheme]) or default
    return scheme, [Address(_LOOPBACK.get(local.host, local.host), local.port or default.port)]


class Courtesy:
    """Yields to the event loop after ``size`` bytes were sent without waiting; each send counts ``cost`` more."""

    def __init__(self, size: int, cost: int) -> None:
        self._size = size
        self._cost = cost
        self._sent = 0

    async def sent(self, size: int) -> None:
        """Count ``size`` bytes as sent, and yield if that makes enough."""
        self._sent += size + self._cost
        if self._sent >= self._size:
            self._sent = 0
            await asyncio.sleep(0)
