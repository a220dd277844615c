"""serde's shapes: dataclasses as CBOR maps, each field annotated with how it travels.

A struct is a dataclass whose annotations carry a :class:`Shape`, e.g. ``id: U16``; on the wire it is a map with
its field names as text keys, in declaration order. A unit enum value is its name as text.

On receipt keys may come in any order, and unknown ones are ignored, as serde does by default, so that a
later version may add fields; a missing key without a default is refused. Types are exact: Python's ``bool`` is
never taken for an integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Annotated, Any, TypeVar, get_type_hints

from headrace.errors import LimitError, MalformedError

T = TypeVar("T")
N = TypeVar("N", bound=Enum)


@dataclass(frozen=True, slots=True)
class Shape:
    """How one field travels: ``pack`` to CBOR and ``unpack`` from it, both refusing what does not fit.

    Both take the field's name, for the error, and the value.
    """

    pack: Callable[[str, Any], Any]
    unpack: Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct: its key, its shape, and its default or ``MISSING``."""

    name: str
    shape: Shape
    default: object


def unsigned(bits: int) -> Shape:
    """An integer from 0 to 2^bits - 1."""
    limit = (1 << bits) - 1

    def check(name: str, value: object) -> int:
        if type(value) is not int or not 0 <= value <= limit:
            raise MalformedError("parcel", name, value, f"must be an unsigned {bits}-bit integer")
        return value

    return Shape(check, check)


def text(limit: int) -> Shape:
    """Text of at most ``limit`` bytes of UTF-8."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise MalformedError("parcel", name, value, "must be text")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise MalformedError("parcel", name, ascii(value), "must be UTF-8") from None
        if size > limit:
            raise LimitError("parcel", name, size, limit)
        return value

    return Shape(check, check)


def boolean() -> Shape:
    """True or false."""

    def check(name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise MalformedError("parcel", name, value, "must be true or false")
        return value

    return Shape(check, check)


def one_of(names: type[N]) -> Shape:
    """A member of an enum, by its value."""
    words = {member.value: member for member in names}
    rule = f"must be one of {', '.join(words)}"

    def pack(name: str, value: object) -> object:
        if not isinstance(value, names):
            raise MalformedError("parcel", name, value, rule)
        return value.value

    def unpack(name: str, value: object) -> N:
        if not isinstance(value, str) or value not in words:
            raise MalformedError("parcel", name, value, rule)
        return words[value]

    return Shape(pack, unpack)


def struct(cls: type[T]) -> Shape:
    """A struct within a struct."""

    def pack(name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, cls):
            raise MalformedError("parcel", name, value, f"must be a {cls.__name__}")
        return pack_struct(name, value)

    def unpack(name: str, value: object) -> T:
        return unpack_struct(cls, name, value)

    return Shape(pack, unpack)


def list_of(item: Shape) -> Shape:
    """An array on the wire, a tuple in Python."""

    def pack(name: str, value: object) -> list[Any]:
        if not isinstance(value, tuple):
            raise MalformedError("parcel", name, value, "must be a tuple")
        return [item.pack(name, each) for each in value]

    def unpack(name: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise MalformedError("parcel", name, value, "must be an array")
        return tuple(item.unpack(name, each) for each in value)

    return Shape(pack, unpack)


def anything() -> Shape:
    """Any CBOR value, checked elsewhere."""

    def keep(_: str, value: Any) -> Any:
        return value

    return Shape(keep, keep)


Bool = Annotated[bool, boolean()]
U16 = Annotated[int, unsigned(16)]
U64 = Annotated[int, unsigned(64)]
Text = Annotated[str, text(255)]


def pack_struct(name: str, value: object) -> dict[str, Any]:
    """A struct as the map of its fields, in declaration order."""
    return {
        field.name: field.shape.pack(f"{name}.{field.name}", getattr(value, field.name))
        for field in fields_of(type(value))
    }


def unpack_struct(cls: type[T], name: str, value: object) -> T:
    """A struct from the map of its fields, in any order."""
    if not isinstance(value, dict):
        raise MalformedError("parcel", name, value, "must be a map")
    arguments = {}
    for field in fields_of(cls):
        if field.name in value:
            arguments[field.name] = field.shape.unpack(f"{name}.{field.name}", value[field.name])
        elif field.default is MISSING:
            raise MalformedError("parcel", f"{name}.{field.name}", "missing", "must be there")
    return cls(**arguments)


def fields_of(cls: type[Any]) -> tuple[Field, ...]:
    """The fields of a struct, in declaration order; annotations are resolved once for each class."""
    known = _FIELDS.get(cls)
    if known is None:
        hints = get_type_hints(cls, include_extras=True)
        known = tuple(Field(f.name, hints[f.name].__metadata__[0], f.default) for f in fields(cls))
        _FIELDS[cls] = known
    return known


_FIELDS: dict[type[Any], tuple[Field, ...]] = {}
