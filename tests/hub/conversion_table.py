"""The conversion table: what each door makes of the envelope, as ``docs/bridging.md`` shows it (:func:`tables`).

:data:`WAYS_IN` lists for each way in who fills each field of the envelope, :data:`WAYS_OUT` for each way out which
fields a client sees and in what form. ``tests/system/test_bridging.py`` sends messages through every door of a running
hub and compares the result with :func:`enters` and :func:`sees`, field by field. Everywhere:

- The payload's bytes are never rewritten. Where a protocol has no room for them they are left out, and where it has
  only text they are encoded; the log has them as they came.
- ``seq``, ``time`` and ``node`` are the hub's, whatever a publisher says.
- Log entries, which have no numbers, are shown by no door.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from headrace.message import SCHEMA, Message
from headrace.wire.attribute.items import MAX_BODY
from headrace.wire.fyrehose.packet import MAX_DATA, MAX_DELIVER_DATAGRAM, MAX_PUSH_DATAGRAM
from headrace.wire.link.message import MAX_HEAD, MAX_MESSAGE
from headrace.wire.spp import MAX_PACKET

FIELDS: Final = tuple(SCHEMA.names)
"""The envelope's fields."""


class By(Enum):
    """Who fills a field."""

    HUB = "the hub"
    DOOR = "the door"
    PEER = "the peer's address"
    PUBLISHER = "the publisher"
    NOBODY = "—"


@dataclass(frozen=True, slots=True)
class Filled:
    """A field on a way in. ``what`` is the door's own value, or the publisher's name for the field."""

    by: By
    what: str = ""
    otherwise: By = By.NOBODY
    """Who fills it if the publisher does not."""


@dataclass(frozen=True, slots=True)
class WayIn:
    """One way into the sequence."""

    name: str
    door: str
    """Its name in the settings and in the ready file."""
    most: int
    """The largest payload in bytes, if nothing else in the message needs room."""
    fields: Mapping[str, Filled]
    origin: str
    """The envelope's origin if the publisher gives none."""


class Form(Enum):
    """How a field is shown."""

    AS_IT_IS = "as it is"
    TEXT = "text, or base64 where it is not UTF-8"
    HIDDEN = "—"


@dataclass(frozen=True, slots=True)
class Shown:
    """A field on a way out. ``where`` names it in the protocol's own words."""

    where: str = ""
    form: Form = Form.AS_IT_IS
    most: int | None = None
    """Bytes past which a payload is shown empty."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """One way out of the sequence."""

    name: str
    door: str
    which: str
    """Which messages are seen."""
    fields: Mapping[str, Shown]


_HUB: Final = Filled(By.HUB)
_NOBODY: Final = Filled(By.NOBODY)
_PEER: Final = Filled(By.PEER)


def _in(name: str, door: str, most: int, origin: str, /, **fields: Filled) -> WayIn:
    filled = dict.fromkeys(FIELDS, _NOBODY)
    filled |= dict.fromkeys(("seq", "time", "node"), _HUB)
    filled |= {"origin": Filled(By.DOOR, origin), "publisher": _PEER}
    return WayIn(name, door, most, filled | fields, origin)


def _out(name: str, door: str, which: str, /, **fields: Shown) -> WayOut:
    shown = dict.fromkeys(FIELDS, Shown(form=Form.HIDDEN))
    return WayOut(name, door, which, shown | fields)


def _says(what: str, otherwise: By = By.NOBODY) -> Filled:
    return Filled(By.PUBLISHER, what, otherwise)


_COLUMNS: Final = {name: _says(f"`{name}`") for name in ("topic", "attributes", "numbers", "payload")}
_WHOLE: Final = {name: Shown(f"`{name}`") for name in FIELDS}

WAYS_IN: Final = (
    _in("fyrehose PUSH, UDP", "fyrehose", MAX_PUSH_DATAGRAM, "fyrehose", payload=_says("DATA")),
    _in("fyrehose PUSH, TCP", "fyrehose", MAX_DATA, "fyrehose", payload=_says("DATA")),
    _in("SPP PUBLISH", "spp", MAX_PACKET, "spp", topic=_says("service id"), payload=_says("change")),
    _in(
        "attribute publish",
        "publisher",
        MAX_BODY,
        "attribute",
        attributes=_says("item 1: strings"),
        numbers=_says("item 1: numbers"),
        payload=_says("item 2"),
    ),
    _in(
        "link `publish`",
        "tube_tcp",
        MAX_MESSAGE - MAX_HEAD,
        "tube",
        origin=_says("`origin`", By.DOOR),
        publisher=_says("`publisher`", By.PEER),
        number=_says("`number`"),
        **_COLUMNS,
    ),
    _in(
        "Spark sink (`stage`, `commit`)",
        "tube_tcp",
        MAX_MESSAGE - MAX_HEAD,
        "spark",
        origin=_says("`origin`", By.DOOR),
        publisher=_says("the query's id"),
        **_COLUMNS,
    ),
)
"""Every way into the sequence."""

WAYS_OUT: Final = (
    _out(
        "fyrehose DELIVER, UDP",
        "fyrehose",
        "all",
        seq=Shown("SEQ"),
        payload=Shown("DATA", most=MAX_DELIVER_DATAGRAM),
    ),
    _out(
        "fyrehose DELIVER, TCP",
        "fyrehose",
        "all",
        seq=Shown("SEQ"),
        payload=Shown("DATA", most=MAX_DATA),
    ),
    _out(
        "SPP update",
        "spp",
        "changes of the services that are subscribed",
        topic=Shown("service id"),
        payload=Shown("message"),
    ),
    _out("link `read`, `follow`", "tube_tcp", "all, or what a filter passes", **_WHOLE),
    _out(
        "SDK push",
        "sdk",
        "what matches the subscription",
        seq=Shown("`seq`"),
        payload=Shown("`payload`", Form.TEXT),
    ),
    _out("sealed segment, Spark source", "", "all", **_WHOLE),
)
"""Every way out of the sequence."""


def enters(way: WayIn, given: Mapping[str, Any], peer: str) -> dict[str, Any]:
    """Return the envelope of a message that ``peer`` publishes, without the fields that the hub fills in."""
    filler = {By.DOOR: way.origin, By.PEER: peer}
    envelope = {}
    for name, filled in way.fields.items():
        if filled.by is By.HUB:
            continue
        if filled.by is By.PUBLISHER and name in given:
            envelope[name] = given[name]
            continue
        by = filled.otherwise if filled.by is By.PUBLISHER else filled.by
        envelope[name] = filler.get(by, _EMPTY[name])
    return envelope


def sees(way: WayOut, message: Message) -> dict[str, Any]:
    """Return the fields that a client sees of a message."""
    seen = {}
    for name, shown in way.fields.items():
        value = getattr(message, name)
        match shown.form:
            case Form.HIDDEN:
                continue
            case Form.TEXT:
                value = text_of(value)[0]
            case Form.AS_IT_IS if name == "payload" and len(value) > (shown.most or len(value)):
                value = b""
        seen[name] = value
    return seen


def text_of(payload: bytes) -> tuple[str, int]:
    """Return a payload as text, and the SDK's type of it: 1 as it is, 2 in base64."""
    try:
        return payload.decode(), 1
    except UnicodeDecodeError:
        return b64encode(payload).decode(), 2


def tables() -> str:
    """Return both tables as Markdown, a row for each way and a column for each field that differs."""
    names = [name for name in FIELDS if name not in ("seq", "time", "node")]
    rows = [["in by", "door", *(f"`{name}`" for name in names), "payload at most"]]
    for each in WAYS_IN:
        cells = [_filled_cell(each, name) for name in names]
        rows.append([each.name, f"`{each.door}`", *cells, f"{each.most:,}"])
    names = list(FIELDS)
    shown = [["out by", "door", "which messages", *(f"`{name}`" for name in names)]]
    for out in WAYS_OUT:
        cells = [_shown_cell(out.fields[name]) for name in names]
        shown.append([out.name, f"`{out.door}`" if out.door else "", out.which, *cells])
    return _markdown(rows) + "\n" + _markdown(shown)


def _filled_cell(way: WayIn, name: str) -> str:
    filled = way.fields[name]
    match filled.by:
        case By.DOOR:
            return f'"{filled.what}"'
        case By.PUBLISHER if filled.otherwise is By.PEER:
            return f"{filled.what}, or {By.PEER.value}"
        case By.PUBLISHER if filled.otherwise is By.DOOR:
            return f'{filled.what}, or "{way.origin}"'
        case By.PUBLISHER:
            return filled.what
        case _:
            return str(filled.by.value)


def _shown_cell(shown: Shown) -> str:
    cell = shown.where or shown.form.value
    if shown.form is Form.TEXT:
        cell += f": {shown.form.value}"
    return cell if shown.most is None else f"{cell}, empty past {shown.most:,} bytes"


def _markdown(rows: list[list[str]]) -> str:
    rows.insert(1, ["---"] * len(rows[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


_EMPTY: Final[Mapping[str, Any]] = {
    "origin": "", "publisher": "", "number": None, "topic": "", "attributes": {}, "numbers": {}, "payload": b"",
}  # fmt: skip
