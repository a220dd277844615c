"""What a setting may be: how a value is read and shown, and the words for what would be right.

A :class:`Kind` reads what TOML can say. ``ValueError`` means "not that"; it never leaves the package, because
whoever knows the key and the source makes a sentence of it from :attr:`Kind.expected`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from headrace.errors import UsageError

T = TypeVar("T")

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ADDRESS = re.compile(
    rf"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>{_LABEL}(?:\.{_LABEL})*))"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)

_MOST_TOLD = 4096
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
        """Read ``host:port``, IPv6 in brackets; the port may be left out where it has a default.

        >>> Address.parse("[::1]:2323")
        Address(host='::1', port=2323)
        """
        try:
            return cls(*_host_and_port(text, default_port))
        except ValueError:
            form = "host:port" if default_port is None else "host or host:port"
            raise UsageError(f"{text!r} is no address: expected {form}, IPv6 in brackets") from None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Text that shows itself only when asked; the empty one is false."""

    _text: str

    def reveal(self) -> str:
        """The text itself: to compute with, never to print."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "…"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One sort of value; ``read`` raises ``ValueError`` for any other."""

    expected: str
    read: Callable[[Any], T]
    show: Callable[[Any], str] = lambda value: show(value)
    literals: type | tuple[type, ...] = object
    """The TOML values it takes. Other text of a variable or ``--set`` stays as typed, so that a key may be
    ``0042`` or ``true``."""
    secret: bool = False
    entry: Callable[[str], str] | None = None
    """For a table: how the name of an entry is read. ``read`` is then for one entry's value."""
    deep: bool = False
    """For a table: whether names may have dots, so that TOML has tables in it."""

    def literal(self, text: str) -> object:
        """What the text of a variable or ``--set`` stands for: a TOML value, or the text as it is."""
        try:
            parsed = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            return text
        value = parsed.pop("value")
        # Behind a line's end the text could go on with keys of its own.
        return value if not parsed and isinstance(value, self.literals) else text


class MemberError(ValueError):
    """The member of a list that cannot be."""

    def __init__(self, index: int, value: object) -> None:
        super().__init__(index, value)
        self.index = index
        self.value = value


def count(least: int) -> Kind[int]:
    """Whole numbers."""

    def read(value: object) -> int:
        number = _of(int, value)
        _within(number, least, sys.maxsize)
        return number

    return Kind(f"a whole number, at least {least}", read)


def seconds(least: float) -> Kind[float]:
    """Durations."""

    def read(value: object) -> float:
        number = _of((int, float), value)
        _within(number, least, sys.maxsize)
        return float(number)

    return Kind(f"a number of seconds, at least {least:g}", read)


def size(least: int, most: int = sys.maxsize) -> Kind[int]:
    """Bytes, as a number or with a unit."""

    def read(value: object) -> int:
        number = _parse_size(value) if isinstance(value, str) else _of(int, value)
        _within(number, least, most)
        return number

    limits = f"at least {least}" if most == sys.maxsize else f"from {least} to {most}"
    return Kind(f"bytes, such as 67108864 or 64MiB, {limits}", read, show_size)


def text(least: int, most: int) -> Kind[str]:
    """Printable text, measured in UTF-8 bytes."""

    def read(value: object) -> str:
        words = _of(str, value)
        _within(len(words.encode()) if words.isprintable() else -1, least, most)
        return words

    return Kind(f"printable text of {least} to {most} bytes", read, literals=str)


def secret(expected: str, least: int) -> Kind[Secret]:
    """Text that is never shown."""

    def read(value: object) -> Secret:
        words = _of(str, value)
        _within(len(words.encode()), least, sys.maxsize)
        return Secret(words)

    return Kind(expected, read, literals=str, secret=True)


def choice(*words: str) -> Kind[Any]:
    """One of a few words."""
    return Kind(f"{', '.join(words[:-1])} or {words[-1]}", lambda value: words[words.index(value)])


def flag() -> Kind[bool]:
    """Yes or no."""
    return Kind("true or false", lambda value: _of(bool, value))


def path() -> Kind[Path]:
    """A file or directory."""

    def read(value: object) -> Path:
        words = _of(str, value)
        _within(0 if "\0" in words else len(words), 1, sys.maxsize)
        return Path(words)

    return Kind("a path", read, literals=str)


def address(expected: str, default_port: int | None = None, least_port: int = 0) -> Kind[Address]:
    """Somewhere to listen or to connect."""

    def read(value: object) -> Address:
        host, port = _host_and_port(_of(str, value), default_port)
        _within(port, least_port, 0xFFFF)
        return Address(host, port)

    return Kind(expected, read, literals=str)


def network() -> Kind[IPv4Network]:
    """An IPv4 address, or many that share their first bits."""
    return Kind(
        "an IPv4 address, or a network without host bits such as 10.0.0.0/8",
        lambda value: IPv4Network(_of(str, value)),
        literals=str,
    )


def origin() -> Kind[str]:
    """Whose a web page is, as browsers say it: scheme, host and perhaps a port, and nothing behind."""

    def read(value: object) -> str:
        words = _of(str, value).lower()
        scheme, _, place = words.partition("://")
        if scheme not in ("http", "https"):
            raise ValueError(words)
        _host_and_port(place, 0)
        return words

    return Kind("an origin such as https://example.org:8443", read, literals=str)


def or_off(kind: Kind[T]) -> Kind[T | None]:
    """The same, or ``off``."""
    return Kind(
        f"{kind.expected}, or off",
        lambda value: None if value == "off" else kind.read(value),
        lambda value: "off" if value is None else kind.show(value),
        kind.literals,
    )


def list_of(each: Kind[T]) -> Kind[tuple[T, ...]]:
    """A TOML array, or its members with commas between; what is named twice counts once."""

    def read(value: object) -> tuple[T, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        members: dict[T, None] = {}
        for index, member in enumerate(_of(list, value)):
            try:
                members[each.read(member)] = None
            except ValueError as error:
                raise MemberError(index, member) from error
        return tuple(members)

    return Kind(f"a list; each {each.expected}", read, literals=(list, str))


def hubs(default_ports: Mapping[str, int]) -> Kind[tuple[str, ...]]:
    """Where other hubs are: URLs of one scheme, which the first may say for all."""

    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        scheme, urls = "", []
        for member in _of(list, value):
            said, separator, rest = _of(str, member).rpartition("://")
            if (separator or not scheme) and said.lower() not in default_ports:
                raise ValueError(member)
            if scheme and separator and said.lower() != scheme:
                raise ValueError(member)
            scheme = scheme or said.lower()
            host, port = _host_and_port(rest.removesuffix("/"), default_ports[scheme])
            _within(port, 1, 0xFFFF)
            urls.append(f"{scheme}://{Address(host, port)}")
        return tuple(dict.fromkeys(urls))

    schemes = " or ".join(f"{scheme}://host:port" for scheme in default_ports)
    return Kind(f"{schemes}, further hosts behind commas", read, literals=(list, str))


def table_of(each: Kind[Any], entry: Callable[[str], str], *, deep: bool = False) -> Kind[Any]:
    """A TOML table whose keys are names that ``entry`` reads; ``deep``: names with dots, of tables in it."""
    return Kind(each.expected, each.read, literals=(dict, str), secret=each.secret, entry=entry, deep=deep)


def told() -> Kind[str]:
    """What a job is told: text, or what TOML has for a number or a truth."""

    def read(value: object) -> str:
        words = str(value).lower() if isinstance(value, bool) else str(value)
        if not isinstance(value, str | int | float) or not words.isprintable() or len(words) > _MOST_TOLD:
            raise ValueError(value)
        return words

    return Kind("a parameter's name, or job.name, and its value", read)


def parameter(name: str) -> str:
    """The name of what jobs are told, or of what one of them is: ``job.name``."""
    if not re.fullmatch(r"([a-z]+\.)?[a-z_]+", name):
        raise ValueError(name)
    return name


def client_id(name: str) -> str:
    """The attribute protocol's client ids are 12 bytes: in text, 24 hex digits of either case."""
    if not re.fullmatch("[0-9A-Fa-f]{24}", name):
        raise ValueError(name)
    return name.lower()


def show(value: object) -> str:
    """A value in words, secrets masked."""
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
    """A number of bytes in the largest unit of 1,024s that divides it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _UNITS[unit.lower()] == 0:
            return f"{size // _UNITS[unit.lower()]} {unit}"
    return str(size)


def plain(value: object, *, reveal: bool) -> Any:
    """A value as JSON and TOML have it, so that its kind reads it back."""
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


def _of(kinds: type[T] | tuple[type[T], ...], value: object) -> T:
    # A bool is an int to Python, and no number to a person.
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise ValueError(value)
    return value


def _within(number: float, least: float, most: float) -> None:
    # Neither NaN nor infinity is within anything.
    if not least <= number <= most:
        raise ValueError(number)


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
