"""Fences: which event a message of a moving key is to a region.

A fence names a region, the two attributes that are a position, and the attribute that is the **key** of what moves. A
**sighting** is a message that has the key, as a string or a number, and both coordinates as numbers; NaN is neither.
To a fence each sighting is compared with the previous one of the same key on the same topic:

========= ================ ================
event     the previous     this one
========= ================ ================
enter     outside, or none inside
inside    inside           inside
exit      inside           outside
========= ================ ================

Positions up to message ``after`` do not count, so that a fence begins with what its subscriber can have seen; the
connector that takes a subscription in sets it. How far back the matcher looks is its owner's setting
(:mod:`headrace.matching.tracks`).

To the matcher a sighting has three more attributes, :attr:`Track.names`: the coordinates and the number of the previous
one. Nobody can publish them: the matcher's own win. An ``exit`` is indexed by the previous position, the other events
by this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import MalformedError
from headrace.message import MAX_SEQUENCE
from headrace.wire.sdk.program import ATTRIBUTE, FENCE, HEAD, number_operands
from headrace.wire.sdk.region import (
    CIRCLE_NUMBERS,
    Region,
    box_of,
    numbers_of,
    parse_region,
    plain_region,
    region_of,
    within,
)
from headrace.wire.typed_json import Json, decode_json

ENTER, INSIDE, EXIT = "enter", "inside", "exit"
EVENTS: Final = (ENTER, INSIDE, EXIT)

_CODES: Final = {event: float(code) for code, event in enumerate(EVENTS)}
_ENTERED, _STAYED = 0.0, 1.0
"""Copies of the codes for the kernel."""

_NUMBERS: Final = HEAD + 2 + 2 * 5
"""Where the numbers of a program begin: the event, ``after``, the box and the region; before them are attributes."""

_BEFORE_REGION: Final = 6


class Track(NamedTuple):
    """A kind of sighting: the attributes that are the key and the coordinates."""

    key: str
    x: str
    y: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The attributes that the previous sighting's coordinates and number have."""
        track = msgspec.json.encode(self).decode()
        return f"\0x of {track}", f"\0y of {track}", f"\0seq of {track}"


@dataclass(frozen=True, slots=True)
class Fence:
    """The attribute and another, ``y``, are a position; its key enters the region, leaves it or stays in it."""

    y: str
    region: Region
    key: str
    events: tuple[str, ...] = (ENTER, EXIT)
    after: int = 0
    """Positions up to this message do not count."""

    def by_event(self) -> Iterator[Fence]:
        """A fence for each of its events."""
        return (replace(self, events=(event,)) for event in self.events)

    def track(self, x: str) -> Track:
        """What its sightings are; ``x`` is the attribute that it is filed under."""
        return Track(self.key, x, self.y)

    def indexed_by(self, x: str) -> tuple[str, str]:
        """The attributes whose point is in the region whenever the event happens."""
        names = self.track(x).names
        return (names[0], names[1]) if self.events == (EXIT,) else (x, self.y)


def parse_fence(argument: Json) -> Fence:
    """Parse a fence's JSON object."""
    members = decode_json(_MEMBERS, argument, "sdk", "fence", "a JSON object")
    y, key = (
        decode_json(_TEXT, members.pop(name, msgspec.Raw()), "sdk", name, "the name of an attribute")
        for name in ("y", "key")
    )
    listed = members.pop("events", None)
    rule = "a list of enter, inside and exit, each at most once"
    events = [ENTER, EXIT] if listed is None else decode_json(_EVENTS, listed, "sdk", "events", rule)
    if not events or len({*events}) < len(events) or not {*events} <= {*EVENTS}:
        raise MalformedError("sdk", "events", ", ".join(events), rule)
    after = members.pop("after", None)
    since = 0 if after is None else decode_json(_SEQUENCE, after, "sdk", "after", "a sequence number")
    in_order = tuple(event for event in EVENTS if event in events)
    return Fence(y, parse_region(members), key, in_order, since)


def plain_fence(fence: Fence) -> dict[str, object]:
    """A fence as the object that its JSON is."""
    after = {"after": fence.after} if fence.after else {}
    return {"y": fence.y, **plain_region(fence.region), "key": fence.key, "events": fence.events, **after}


def compile_fence(fence: Fence, x: str, attribute_of: Callable[[str], int]) -> list[int]:
    """The program of a fence with one event, on the attribute ``x``; ``attribute_of`` gives the attribute of a name."""
    (event,) = fence.events
    names = (fence.y, fence.key, *fence.track(x).names)
    numbers = (_CODES[event], fence.after, *box_of(fence.region), *numbers_of(fence.region))
    program = [0, attribute_of(x), FENCE, len(names) + len(numbers)]
    for name in names:
        program += (ATTRIBUTE, attribute_of(name))
    program += number_operands(numbers)
    program[0] = len(program)
    return program


def decompile_fence(program: Sequence[int], name: Callable[[int], str]) -> Fence:
    """The fence that a program was compiled from."""
    y, key = (name(program[HEAD + 3 + 2 * place]) for place in range(2))
    numbers = np.array(program[_NUMBERS + 1 :: 2], np.int64).view(np.float64).tolist()
    event, after, *rest = numbers
    region = region_of(tuple(rest[_BEFORE_REGION - 2 :]))
    return Fence(y, region, key, (EVENTS[int(event)],), int(after))


def crosses(
    event: float,
    numbers: npt.NDArray[np.float64],
    at: int,
    step: int,
    count: int,
    x: float,
    y: float,
    previous_x: float,
    previous_y: float,
    previous: float,
) -> bool:
    """Whether a sighting is an event of a fence; its previous one is number ``previous``, or 0 for none.

    ``after``, the box and the ``count`` numbers of the region are every ``step``-th of ``numbers`` from ``at`` on. What
    is no sighting has a ``previous`` of NaN.
    """
    now = within(numbers, at + step, step, count, x, y)
    if count > CIRCLE_NUMBERS and now != (event <= _STAYED):
        # A circle is checked sooner than a branch that goes either way is taken.
        return False
    was = (previous > numbers[at]) & within(numbers, at + step, step, count, previous_x, previous_y)
    seen = previous >= 0
    return bool(seen & (now == (event <= _STAYED)) & (was == (event != _ENTERED)))


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_EVENTS = msgspec.json.Decoder(list[str])
_SEQUENCE = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)])
