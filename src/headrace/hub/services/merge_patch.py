"""JSON Merge Patch (RFC 7396): apply a change to a ``json`` service's object, and make the change between two.

A patch is a JSON value. Members of an object patch are set, merged or, where they are ``null``, removed; any other
patch is itself the new value, arrays included, which are never merged.

Values are never changed in place: :func:`apply` copies the objects on the path to a change and shares the rest. So an
older value stays as it was, at the price of what has changed since, and :func:`diff` skips what two values share.

``null`` cannot be set by a patch. An object that patches have made has no ``null`` member, however deep, except within
arrays, which a patch carries whole. For such objects ``apply(old, diff(old, new)) == new`` holds exactly; a ``null``
member of any other ``new`` would mean its absence.

Nesting is bounded where text becomes a value. Patches merge level by level, so no object gets deeper than the deepest
of its patches, and the recursion below never goes deeper than that.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from headrace.errors import LimitError
from headrace.wire.typed_json import decode_json

MAX_DEPTH: Final = 64
"""Deepest nesting of objects and arrays: beyond any real data, far from Python's own limit."""

Json: TypeAlias = Any
"""A JSON value as Python has it: ``dict``, ``list``, ``str``, ``int``, ``float``, ``bool`` or ``None``."""

JsonObject: TypeAlias = dict[str, Json]

encode = msgspec.json.encode
"""A JSON value as compact text."""


def parse_object(text: bytes) -> JsonObject:
    """Parse a JSON object; raise :class:`MalformedError` for anything else, :class:`LimitError` if it is too deep.

    >>> parse_object(b'{"speed": 61}')
    {'speed': 61}
    """
    value = decode_json(_OBJECT, text, "spp", "change", "must be a JSON object")
    # Text without so many opening brackets cannot be too deep, and counting them costs next to nothing.
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise LimitError("spp", "depth of the change", f"over {MAX_DEPTH}", MAX_DEPTH)
    return value


def apply(target: Json, patch: Json) -> Json:
    """Return ``target`` changed by ``patch``.

    >>> apply({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}})
    {'b': {'c': 4, 'd': 3}}
    """
    if type(patch) is not dict:
        return patch
    # "If Target is not an Object: Target = {}"
    merged: JsonObject = target.copy() if type(target) is dict else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif type(value) is dict:
            merged[name] = apply(merged.get(name), value)
        else:
            merged[name] = value
    return merged


def apply_counted(target: JsonObject, patch: JsonObject) -> tuple[JsonObject, int]:
    """Return ``target`` changed by ``patch``, and by how many bytes its text grows; only what changes is written.

    >>> apply_counted({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"c": 345}})
    ({'b': {'c': 345}}, -4)
    """
    merged, growth = target.copy(), 0
    for name, value in patch.items():
        old = merged.get(name)
        known = name in merged
        if value is None:
            if known:
                growth -= len(encode(name)) + 1 + len(encode(merged.pop(name)))
            continue
        if not known:
            growth += len(encode(name)) + 1
        elif type(value) is not dict or type(old) is not dict:
            growth -= len(encode(old))
        if type(value) is not dict:
            merged[name] = value
            growth += len(encode(value))
        elif type(old) is dict:
            merged[name], more = apply_counted(old, value)
            growth += more
        else:
            merged[name], more = apply_counted({}, value)
            growth += 2 + more
    # The commas.
    return merged, growth + max(len(merged) - 1, 0) - max(len(target) - 1, 0)


def diff(old: JsonObject, new: JsonObject) -> JsonObject:
    """Return the smallest patch from ``old`` to ``new``, both without ``null`` members outside of arrays.

    >>> diff({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4, "d": 3}})
    {'a': None, 'b': {'c': 4}}
    """
    patch: JsonObject = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if before is value:
            continue
        if type(before) is dict and type(value) is dict:
            if inner := diff(before, value):
                patch[name] = inner
        # As text: to Python 1, 1.0 and true are equal, also within arrays; in JSON they are three values.
        elif before is None or encode(before) != encode(value):
            patch[name] = value
    return patch


def _deeper(value: Json, limit: int) -> bool:
    if type(value) is dict:
        value = value.values()
    elif type(value) is not list:
        return False
    return limit == 0 or any(_deeper(member, limit - 1) for member in value)


_OBJECT = msgspec.json.Decoder(dict[str, Any])
