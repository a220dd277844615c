"""Regions of a plane: circles and polygons, over a pair of number attributes.

A region's JSON is ``{"circle": [x, y, radius]}`` or ``{"polygon": [[x, y], …]}``. What is parsed is usable as it
stands: coordinates are finite and at most ``MAX_COORDINATE`` from 0, so that no product of two overflows, and a polygon
has 3 to ``MAX_VERTICES`` vertices.

A point is in a region if it is in its bounding box and :func:`contains` says so, in 64-bit floating point. A circle has
its rim. A polygon has its edges, and its inside by the even-odd rule: where its edges cross, what they enclose twice is
outside. The plane is flat: degrees are taken as they are, and no edge passes the date line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import LimitError, MalformedError
from headrace.wire.typed_json import decode_json

MAX_VERTICES: Final = 256
"""Vertices of a polygon. Each may be looked at for each message in its bounding box."""

MAX_COORDINATE: Final = 1e150

CIRCLE_NUMBERS: Final = 3
"""A circle is three numbers; a polygon is six or more."""


@dataclass(frozen=True, slots=True)
class Circle:
    """The points that are at most ``radius`` from a centre."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True)
class Polygon:
    """The points within a closed line."""

    vertices: tuple[tuple[float, float], ...]


Region: TypeAlias = Circle | Polygon


class Box(NamedTuple):
    """The smallest and the largest coordinates of a region."""

    west: float
    east: float
    south: float
    north: float


def parse_region(members: dict[str, msgspec.Raw]) -> Region:
    """Parse a region's JSON object."""
    match members:
        case {"circle": text, **others} if not others:
            x, y, radius = decode_json(_CIRCLE, text, "sdk", "circle", "a list of x, y and a radius")
            _check(x, y, radius)
            if radius < 0:
                raise MalformedError("sdk", "radius", radius, "not negative")
            return Circle(x, y, radius)
        case {"polygon": text, **others} if not others:
            vertices = decode_json(_POLYGON, text, "sdk", "polygon", "a list of 3 or more pairs of x and y")
            if len(vertices) > MAX_VERTICES:
                raise LimitError("sdk", "vertices of a polygon", len(vertices), MAX_VERTICES)
            for vertex in vertices:
                _check(*vertex)
            return Polygon(tuple(vertices))
        case _:
            raise MalformedError("sdk", "region", ", ".join(members), "one of circle and polygon")


def plain_region(region: Region) -> dict[str, object]:
    """A region as the object that its JSON is."""
    match region:
        case Circle(x, y, radius):
            return {"circle": [x, y, radius]}
        case Polygon(vertices):
            return {"polygon": vertices}


def numbers_of(region: Region) -> tuple[float, ...]:
    """The numbers that programs have of a region; see :func:`contains`."""
    match region:
        case Circle(x, y, radius):
            return (x, y, radius)
        case Polygon(vertices):
            return tuple(number for vertex in vertices for number in vertex)


def region_of(numbers: tuple[float, ...]) -> Region:
    """The region that :func:`numbers_of` gave these numbers of."""
    if len(numbers) == CIRCLE_NUMBERS:
        return Circle(*numbers)
    return Polygon(tuple(zip(numbers[::2], numbers[1::2], strict=True)))


def box_of(region: Region) -> Box:
    """The bounding box."""
    match region:
        case Circle(x, y, radius):
            return Box(x - radius, x + radius, y - radius, y + radius)
        case Polygon(vertices):
            xs, ys = zip(*vertices, strict=True)
            return Box(min(xs), max(xs), min(ys), max(ys))


def vertex_count(region: Region) -> int:
    """The number of a polygon's vertices; 0 for a circle, which costs no more than a pair of ranges."""
    return len(region.vertices) if isinstance(region, Polygon) else 0


def within(numbers: npt.NDArray[np.float64], at: int, step: int, count: int, x: float, y: float) -> bool:
    """Whether a point is in a region: its box and its ``count`` numbers are every ``step``-th from ``at`` on."""
    # Without a branch between them: which of them fails is as good as random.
    boxed = (
        (numbers[at] <= x)
        & (x <= numbers[at + step])
        & (numbers[at + 2 * step] <= y)
        & (y <= numbers[at + 3 * step])
    )
    if count == CIRCLE_NUMBERS:
        return bool(boxed & contains(numbers, at + 4 * step, step, count, x, y))
    return bool(boxed) and contains(numbers, at + 4 * step, step, count, x, y)


def contains(numbers: npt.NDArray[np.float64], at: int, step: int, count: int, x: float, y: float) -> bool:
    """Whether a region contains a point of its box; its ``count`` numbers are every ``step``-th from ``at`` on."""
    if count == CIRCLE_NUMBERS:
        across, up, radius = x - numbers[at], y - numbers[at + step], numbers[at + 2 * step]
        return bool(across * across + up * up <= radius * radius)
    inside = False
    end = at + count * step
    x1, y1 = numbers[end - 2 * step], numbers[end - step]
    for vertex in range(at, end, 2 * step):
        x2, y2 = numbers[vertex], numbers[vertex + step]
        side = (x2 - x1) * (y - y1) - (x - x1) * (y2 - y1)
        if side == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
            return True
        # Of an edge's two ends the lower counts, so that a ray through a vertex meets it once.
        inside ^= ((y1 <= y) != (y2 <= y)) & ((side > 0) == (y2 > y1))
        x1, y1 = x2, y2
    return bool(inside)


def _check(*numbers: float) -> None:
    for number in numbers:
        if abs(number) > MAX_COORDINATE:
            raise MalformedError("sdk", "coordinate", number, f"at most {MAX_COORDINATE:g} from 0")


_CIRCLE = msgspec.json.Decoder(tuple[float, float, float])
_POLYGON = msgspec.json.Decoder(Annotated[list[tuple[float, float]], msgspec.Meta(min_length=3)])
