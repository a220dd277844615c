"""The types of settings: how a value is read and shown, and how a valid one is described.

A :class:`ValueType` reads a TOML value, and raises ``ValueError`` for an invalid one. That never leaves the package:
the caller, which knows the key and the source, makes a sentence of it from :attr:`ValueType.expected`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from headrace.errors import UsageError

T = TypeVar("T")
N = TypeVar("N", int, float)

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ADDRESS = re.compile(
    rf"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>{_LABEL}(?:\.{_LABEL})*))"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)

_MAX_PARAMETER = 4096
_MAX_RULE = 256
_MAX_RULE_WILDCARDS = 16
_MAX_HOST = 253
"""The longest name that DNS carries."""

_UNITS = {"b": 1} | {
    f"{letter}{infix}b": base**power
    for infix, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("kmgt", 1)
}
_SIZE = re.compile(rf"([0-9]{{1,20}}(?:\.[0-9]{{1,20}})?)\s*({'|'.join(_UNITS)})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0 asks the system for a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Self:
        """Parse ``host:port``, IPv6 in brackets; the port may be left out where it has a default.

        >>> Address.parse("[::1]:2323")
        Address(host='::1', port=2323)
        """
        try:
            return cls(*_host_and_port(text, default_port))
        except ValueError:
            form = "host:port" if default_port is None else "host or host:port"
            raise UsageError(f"{text!r} is not an address: expected {form}, IPv6 in brackets") from None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PeerAddress(Address):
    """An address, and the id of the peer there, if the settings name it."""

    id: str = ""

    def __str__(self) -> str:
        place = Address.__str__(self)
        return f"{self.id}@{place}" if self.id else place


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Text that is shown only on request; the empty one is false."""

    _text: str

    def reveal(self) -> str:
        """Return the text itself: to compute with, never to print."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "…"


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """A type of values; ``read`` raises ``ValueError`` for any other value."""

    expected: str
    read: Callable[[Any], T]
    show: Callable[[Any], str] = lambda value: show(value)
    literals: type | tuple[type, ...] = object
    """The types of TOML values it takes. Other text of a variable or ``--set`` stays text: a key may be ``0042``."""
    secret: bool = False
    entry: Callable[[str], str] | None = None
    """For a table: reads the name of an entry. ``read`` is then for one entry's value."""
    deep: bool = False
    """For a table: whether names may have dots, which are nested tables in TOML."""

    def literal(self, text: str) -> object:
        """Parse the text of a variable or ``--set``: a TOML value, or the text as it is."""
        try:
            parsed = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            return text
        value = parsed.pop("value")
        # After a line end, the text may contain other keys.
        return value if not parsed and isinstance(value, self.literals) else text


class MemberError(ValueError):
    """A member of a list is invalid."""

    def __init__(self, index: int, value: object) -> None:
        super().__init__(index, value)
        self.index = index
        self.value = value


def count(least: int) -> ValueType[int]:
    """Make a type of whole numbers."""
    return ValueType(f"a whole number, at least {least}", lambda value: _within(_of(int, value), least))


def seconds(least: float) -> ValueType[float]:
    """Make a type of durations."""
    expected = f"a number of seconds, at least {least:g}"
    return ValueType(expected, lambda value: float(_within(_of((int, float), value), least)))


def size(least: int, most: int = sys.maxsize) -> ValueType[int]:
    """Make a type of byte counts, as a number or with a unit."""

    def read(value: object) -> int:
        return _within(_parse_size(value) if isinstance(value, str) else _of(int, value), least, most)

    limits = f"at least {least}" if most == sys.maxsize else f"from {least} to {most}"
    return ValueType(f"bytes, such as 67108864 or 64MiB, {limits}", read, show_size)


def text(least: int, most: int) -> ValueType[str]:
    """Make a type of printable text, measured in UTF-8 bytes."""

    def read(value: object) -> str:
        words = _of(str, value)
        _within(len(words.encode()) if words.isprintable() else -1, least, most)
        return words

    return ValueType(f"printable text of {least} to {most} bytes", read, literals=str)


def secret(expected: str, least: int) -> ValueType[Secret]:
    """Make a type of text that is never shown."""

    def read(value: object) -> Secret:
        words = _of(str, value)
        _within(len(words.encode()), least)
        return Secret(words)

    return ValueType(expected, read, literals=str, secret=True)


def choice(*words: str) -> ValueType[Any]:
    """Make a type that is one of a few words."""
    return ValueType(f"{', '.join(words[:-1])} or {words[-1]}", lambda value: words[words.index(value)])


def flag() -> ValueType[bool]:
    """Make the type of truth values."""
    return ValueType("true or false", lambda value: _of(bool, value))


def path() -> ValueType[Path]:
    """Make the type of paths."""

    def read(value: object) -> Path:
        words = _of(str, value)
        _within(0 if "\0" in words else len(words), 1)
        return Path(words)

    return ValueType("a path", read, literals=str)


def address(expected: str, default_port: int | None = None, least_port: int = 0) -> ValueType[Address]:
    """Make a type of addresses to listen on or to connect to."""

    def read(value: object) -> Address:
        host, port = _host_and_port(_of(str, value), default_port)
        return Address(host, _within(port, least_port, 0xFFFF))

    return ValueType(expected, read, literals=str)


def peer_address(expected: str, default_port: int, id_bytes: int) -> ValueType[PeerAddress]:
    """Make a type of addresses to connect to, each perhaps after the peer's id and ``@``."""

    def read(value: object) -> PeerAddress:
        peer, at, place = _of(str, value).rpartition("@")
        if at and not (peer.isascii() and peer.isprintable() and len(peer) == id_bytes):
            raise ValueError(value)
        host, port = _host_and_port(place, default_port)
        return PeerAddress(host, _within(port, 1, 0xFFFF), peer)

    return ValueType(expected, read, literals=str)


def network() -> ValueType[IPv4Network]:
    """Make the type of IPv4 addresses and networks."""
    return ValueType(
        "an IPv4 address, or a network without host bits such as 10.0.0.0/8",
        lambda value: IPv4Network(_of(str, value)),
        literals=str,
    )


def any_network() -> ValueType[IPv4Network | IPv6Network]:
    """Make the type of addresses and networks of either version."""
    return ValueType(
        "an address, or a network without host bits such as 10.0.0.0/8",
        lambda value: ip_network(_of(str, value)),
        literals=str,
    )


def access_rule(actions: Sequence[str], unnamed: Collection[str]) -> ValueType[str]:
    """Make the type of rules: an action and the pattern of its objects, which ``unnamed`` actions may lack."""

    def read(value: object) -> str:
        action, _, pattern = " ".join(_of(str, value).split()).partition(" ")
        if action not in actions or not (pattern or action in unnamed) or not pattern.isprintable():
            raise ValueError(value)
        pattern = pattern or "**"
        # The cost of matching a pattern grows with its length and its wildcards.
        _within(len(pattern), 1, _MAX_RULE)
        _within(pattern.count("*") - pattern.count("**"), 0, _MAX_RULE_WILDCARDS)
        return f"{action} {pattern}"

    return ValueType(
        f"an action and a topic pattern, such as `publish fleet/**`; the actions are {', '.join(actions)}",
        read,
        literals=str,
    )


def budget(names: Sequence[str]) -> ValueType[tuple[str, int]]:
    """Make the type of one limit of a principal: its name and a number, which may have a unit of bytes."""

    def read(value: object) -> tuple[str, int]:
        if isinstance(value, (list, tuple)):
            value = " ".join(map(str, value))
        name, _, number = " ".join(_of(str, value).split()).partition(" ")
        if name not in names:
            raise ValueError(value)
        return name, _within(_parse_size(number), 1)

    return ValueType(
        f"a name and a number, such as `state_bytes 64MiB`; the names are {', '.join(names)}", read
    )


def hex_digits(digits: int) -> ValueType[str]:
    """Make the type of words of ``digits`` hex digits; an empty word stands for none."""

    def read(value: object) -> str:
        words = _of(str, value).lower()
        if words and not re.fullmatch(f"[0-9a-f]{{{digits}}}", words):
            raise ValueError(value)
        return words

    return ValueType(f"{digits} hex digits; empty for none", read, literals=str)


def origin() -> ValueType[str]:
    """Make the type of web origins as browsers send them: scheme, host and perhaps a port."""

    def read(value: object) -> str:
        words = _of(str, value).lower()
        scheme, _, place = words.partition("://")
        if scheme not in ("http", "https"):
            raise ValueError(words)
        _host_and_port(place, 0)
        return words

    return ValueType("an origin such as https://example.org:8443", read, literals=str)


def or_off(base: ValueType[T]) -> ValueType[T | None]:
    """Make the same type with ``off``, which is ``None``."""
    return ValueType(
        f"{base.expected}, or off",
        lambda value: None if value == "off" else base.read(value),
        lambda value: "off" if value is None else base.show(value),
        base.literals,
    )


def list_of(each: ValueType[T]) -> ValueType[tuple[T, ...]]:
    """Make a type of lists: a TOML array, or members separated by commas; repeated members count once."""

    def read(value: object) -> tuple[T, ...]:
        members: dict[T, None] = {}
        for index, member in enumerate(_members(value)):
            try:
                members[each.read(member)] = None
            except ValueError as error:
                raise MemberError(index, member) from error
        return tuple(members)

    return ValueType(f"a list; each {each.expected}", read, literals=(list, str))


def hub_urls(default_ports: Mapping[str, int]) -> ValueType[tuple[str, ...]]:
    """Make a type of lists of hub URLs with one scheme, which only the first need name."""

    def read(value: object) -> tuple[str, ...]:
        scheme, urls = "", []
        for member in _members(value):
            named, separator, rest = _of(str, member).rpartition("://")
            if (separator or not scheme) and named.lower() not in default_ports:
                raise ValueError(member)
            if scheme and separator and named.lower() != scheme:
                raise ValueError(member)
            scheme = scheme or named.lower()
            host, port = _host_and_port(rest.removesuffix("/"), default_ports[scheme])
            urls.append(f"{scheme}://{Address(host, _within(port, 1, 0xFFFF))}")
        return tuple(dict.fromkeys(urls))

    schemes = " or ".join(f"{scheme}://host:port" for scheme in default_ports)
    return ValueType(f"{schemes}, further hosts after commas", read, literals=(list, str))


def table_of(each: ValueType[Any], entry: Callable[[str], str], *, deep: bool = False) -> ValueType[Any]:
    """Make a type of TOML tables whose names ``entry`` reads; in ``deep`` ones, names have dots."""
    return ValueType(
        each.expected, each.read, literals=(dict, str), secret=each.secret, entry=entry, deep=deep
    )


def parameter_value(expected: str = "a parameter's name, or job.name, and its value") -> ValueType[str]:
    """Make the type of job parameters: text, or a number or truth value of TOML as text."""

    def read(value: object) -> str:
        words = str(value).lower() if isinstance(value, bool) else str(value)
        if not isinstance(value, str | int | float) or not words.isprintable() or len(words) > _MAX_PARAMETER:
            raise ValueError(value)
        return words

    return ValueType(expected, read)


def parameter_name(name: str) -> str:
    """Read the name of a job parameter: ``name``, or ``job.name`` for one job."""
    if not re.fullmatch(r"([a-z]+\.)?[a-z_]+", name):
        raise ValueError(name)
    return name


def spark_name(name: str) -> str:
    """Read the name of a setting of Spark's."""
    if not re.fullmatch(r"spark\.[A-Za-z0-9_.-]{1,200}", name):
        raise ValueError(name)
    return name


def principal_name(name: str) -> str:
    """Read the name of a principal, which must not look like a client id: client ids are names, too."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or re.fullmatch("[0-9A-Fa-f]{24}", name):
        raise ValueError(name)
    return name


def client_id(name: str) -> str:
    """Read a client id, which is 12 bytes in the attribute protocol and 24 hex digits of either case in text."""
    if not re.fullmatch("[0-9A-Fa-f]{24}", name):
        raise ValueError(name)
    return name.lower()


def show(value: object) -> str:
    """Show a value in words, secrets masked."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return str(value).removesuffix(".0")
        case tuple() | Mapping() | Secret() if not value:
            return "none"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def show_size(size: int) -> str:
    """Show a number of bytes in the largest binary unit that divides it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _UNITS[unit.lower()] == 0:
            return f"{size // _UNITS[unit.lower()]} {unit}"
    return str(size)


def plain(value: object, *, reveal: bool) -> Any:
    """Return a value as JSON and TOML have it, so that its type can read it back."""
    match value:
        case None:
            return "off"
        case Secret():
            return value.reveal() if reveal else str(value) if value else ""
        case Mapping():
            return {name: plain(member, reveal=reveal) for name, member in value.items()}
        case tuple() | list():
            return [plain(member, reveal=reveal) for member in value]
        case bool() | int() | float():
            return value
        case _:
            return str(value)


def _of(types: type[T] | tuple[type[T], ...], value: object) -> T:
    # To Python a bool is an int; here it is not a number.
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        raise ValueError(value)
    return value


def _within(number: N, least: float, most: float = sys.maxsize) -> N:
    # NaN and infinity are never within.
    if not least <= number <= most:
        raise ValueError(number)
    return number


def _members(value: object) -> list[object]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return _of(list, value)


def _host_and_port(words: str, default_port: int | None) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(words)
    if found is None:
        raise ValueError(words)
    port = default_port if found["port"] is None else int(found["port"])
    if port is None:
        raise ValueError(words)
    _within(port, 0, 0xFFFF)
    if found["ipv6"] is not None:
        return str(IPv6Address(found["ipv6"])), port
    name = found["name"].lower()
    _within(len(name), 1, _MAX_HOST)
    if name.replace(".", "").isdigit():
        name = str(IPv4Address(name))
    return name, port


def _parse_size(words: str) -> int:
    found = _SIZE.fullmatch(words.lower())
    if found is None:
        raise ValueError(words)
    number = Fraction(found[1]) * _UNITS[found[2] or "b"]
    if number.denominator != 1:
        raise ValueError(words)
    return int(number)
