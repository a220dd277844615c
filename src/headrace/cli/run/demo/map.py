"""The town as a map of characters: fences as boxes with their names, vehicles as letters in their protocol's colour."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from headrace.demo.play import Play
from headrace.demo.town import FENCES, HEIGHT, KINDS, WIDTH, Fence, VehicleProtocol

COLOURS: Final = {
    VehicleProtocol.FYREHOSE.value: "yellow",
    VehicleProtocol.SPP.value: "green",
    VehicleProtocol.ATTRIBUTE.value: "magenta",
    VehicleProtocol.TUBE.value: "cyan",
    "parcel": "blue",
    "spark": "red",
}
"""The colour of each protocol, wherever it is drawn."""

MARKS: Final = {
    VehicleProtocol.FYREHOSE: "●",
    VehicleProtocol.SPP: "■",
    VehicleProtocol.ATTRIBUTE: "▲",
    VehicleProtocol.TUBE: "◆",
}

_Cell = tuple[str, str]


def draw_map(play: Play, columns: int, rows: int) -> Text:
    """Draw the town in ``columns`` columns and ``rows`` rows, north above."""
    cells: list[list[_Cell]] = [[(" ", "")] * columns for _ in range(rows)]
    for fence in FENCES:
        _box(cells, fence)
    for vehicle in play.fleet.vehicles:
        x, y, _ = vehicle.at(max(0.0, min(play.elapsed, play.seconds)))
        column, row = _cell(x, y, columns, rows)
        cells[row][column] = (MARKS[vehicle.protocol], f"bold {COLOURS[vehicle.protocol]}")
    text = Text(no_wrap=True)
    for line in cells:
        for character, style in line:
            text.append(character, style or None)
        text.append("\n")
    for protocol, mark in MARKS.items():
        text.append(f"{mark} ", COLOURS[protocol])
        text.append(f"{KINDS[protocol]}  ", "dim")
    return text


def _cell(x: float, y: float, columns: int, rows: int) -> tuple[int, int]:
    column = min(columns - 1, int(x / WIDTH * columns))
    return column, rows - 1 - min(rows - 1, int(y / HEIGHT * rows))


def _box(cells: list[list[_Cell]], fence: Fence) -> None:
    rows, columns = len(cells), len(cells[0])
    left, bottom = _cell(fence.west, fence.south, columns, rows)
    right, top = _cell(fence.east, fence.north, columns, rows)
    for column in range(left, right + 1):
        cells[top][column] = cells[bottom][column] = ("─", "dim")
    for row in range(top, bottom + 1):
        cells[row][left] = cells[row][right] = ("│", "dim")
    for row, column, corner in (
        (top, left, "┌"),
        (top, right, "┐"),
        (bottom, left, "└"),
        (bottom, right, "┘"),
    ):
        cells[row][column] = (corner, "dim")
    for number, letter in enumerate(fence.name[: max(0, right - left - 2)]):
        cells[top][left + 1 + number] = (letter, "italic")
