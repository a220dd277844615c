"""Draw the state machines of the protocols into their pages.

A page names a transition table between two comments::

    <!-- machine: headrace.wire.tube.frames:TRANSITIONS -->
    <!-- /machine -->

This program replaces what stands between them by a picture of that table and the same moves as text, so a
page cannot tell another story than the code. The picture is an SVG file in ``img/`` beside the page: it needs
no script and no network to be seen. Run without arguments it rewrites the pages; with ``--check`` it writes
nothing and exits 1 if a page or picture is out of date (the tests run that).

The layout is fixed, not searched for. States stand in one column in the order of their Enum, whose author put
them in the order of a connection's life. A move to the next state is an arrow straight down; a move that
stays is a loop on the left; every other move leaves on the right and joins the line of the state it leads to.
Each state has one such line, so lines never share a column and labels never overlap. A dot stands where a
connection can begin: at the first state, and at every state that no other leads to.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"

MARKER = re.compile(
    r"(?P<open>^<!-- machine: (?P<module>[\w.]+):(?P<table>\w+) -->$)"
    r".*?"
    r"(?P<close>^<!-- /machine -->$)",
    re.DOTALL | re.MULTILINE,
)

SIGNATURE = "<!-- drawn by tools/diagrams.py -->"
"""Stands in every picture made here, so that one whose page is gone can be recognised and removed."""

# Everything is measured in SVG user units, i.e. pixels at 100 %.
LETTER = 7.2  # the width to allow a letter of the 12 px sans-serif font
LINE = 16  # from one line of text to the next
BOX_MARGIN = 28  # left and right of a state's name together
BOX_HEIGHT = 36  # at least
ENTRY = 20  # the part of a box's left side where a connection can begin
HEADER = 22  # the part of a box's right side where moves to it come in
GAP = 28  # between two boxes without an arrow
LANE = 18  # from one line on the right to the next
EDGE = 24  # around the whole picture
INK = "#24292f"
LANE_COLOURS = ("#1f6feb", "#b35900", "#1a7f37", "#8250df", "#bf3989", "#57606a", "#0a7ea4", "#9a6700")

Table = Mapping[Any, Enum]
"""``(state, event) -> state``. The keys' type is a mapping's own, so none but ``Any`` fits every table."""


@dataclass(frozen=True, slots=True)
class Move:
    """All events that lead from one state to another."""

    source: str
    target: str
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A transition table in the words of its Enums: states in their order, moves grouped by their ends."""

    states: tuple[str, ...]
    moves: tuple[Move, ...]

    @classmethod
    def of(cls, table: Table) -> Drawing:
        """Read a table; states and events that it never uses are left out."""
        used = {state for state, _ in table} | set(table.values())
        kinds = dict.fromkeys(type(state) for state in used)
        states = [state for kind in kinds for state in kind if state in used]
        grouped: dict[tuple[Enum, Enum], list[str]] = {}
        for source in states:
            for (before, event), after in table.items():
                if before is source:
                    grouped.setdefault((source, after), []).append(_words(event))
        return cls(
            tuple(_words(state) for state in states),
            tuple(Move(_words(a), _words(b), tuple(events)) for (a, b), events in grouped.items()),
        )


def main(argv: list[str] | None = None) -> int:
    """Rewrite, or with ``--check`` only compare, every page under ``docs`` and its pictures."""
    parser = argparse.ArgumentParser(
        prog="tools/diagrams.py", description="Draw state machines into the docs."
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if something would change"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="the directory of Markdown pages")
    options = parser.parse_args(argv)
    wanted = dict(render(options.docs))
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    orphans = [
        p for p in sorted(options.docs.rglob("*.svg")) if SIGNATURE in p.read_text() and p not in wanted
    ]
    for path in stale + orphans:
        print(f"{path.relative_to(options.docs.parent)}: {'out of date' if options.check else 'drawn anew'}")
    if options.check:
        if stale or orphans:
            print("run: python tools/diagrams.py")
        return bool(stale or orphans)
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted[path])
    for path in orphans:
        path.unlink()
    return 0


def render(docs: Path) -> Iterator[tuple[Path, str]]:
    """Every page that has a machine, and every picture, with the text it should have."""
    for page in sorted(docs.rglob("*.md")):
        pictures: dict[Path, str] = {}

        def fill(match: re.Match[str], page: Path = page, pictures: dict[Path, str] = pictures) -> str:
            name, drawing = _load(match["module"], match["table"])
            pictures[page.parent / "img" / f"{name}.svg"] = svg(drawing)
            image = f"![{_caption(drawing)}](img/{name}.svg)"
            return f"{match['open']}\n\n{image}\n\n{text(drawing)}\n{match['close']}"

        before = page.read_text()
        after = MARKER.sub(fill, before)
        if pictures:
            yield page, after
            yield from pictures.items()


def text(drawing: Drawing) -> str:
    """The moves as a Markdown table: what the picture shows, for those who read or search it as text."""
    lines = ["| in state | on | goes to |", "|---|---|---|"]
    for move in drawing.moves:
        target = "stays" if move.source == move.target else move.target
        lines.append(f"| {move.source} | {', '.join(move.events)} | {target} |")
    return "\n".join(lines) + "\n"


def svg(drawing: Drawing) -> str:
    """The picture; the module's docstring tells its layout."""
    layout = _Layout(drawing)
    shapes = _starts(layout)
    for move in drawing.moves:
        if layout.is_loop(move):
            shapes += _loop(layout, move)
        elif layout.is_down(move):
            shapes += _down(layout, move)
    for state in drawing.states:
        shapes += _jumps(layout, state)
    for state in drawing.states:
        shapes += _box(layout, state)
    colours = dict.fromkeys([INK, *(layout.colour(state) for state in layout.lanes)])
    size = f'width="{layout.width:.0f}" height="{layout.height:.0f}"'
    view = f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    font = f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} {font}>',
        SIGNATURE,
        f"<title>{escape(_caption(drawing))}</title>",
        *("<defs>", *(_arrowhead(colour) for colour in colours), "</defs>"),
        '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>',
        *shapes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


class _Layout:
    """Where everything stands: x by what must fit beside the column of states, y from the top down."""

    def __init__(self, drawing: Drawing) -> None:
        states, moves = drawing.states, drawing.moves
        self.drawing = drawing
        self.following = dict(itertools.pairwise(states))
        loops = [move for move in moves if self.is_loop(move)]
        downs = [move for move in moves if self.is_down(move)]
        jumps = [move for move in moves if move not in loops and move not in downs]
        self.jumps = {state: [move for move in jumps if move.source == state] for state in states}
        led_to = {move.target for move in moves if not self.is_loop(move)}
        self.entries = [state for state in states[1:] if state not in led_to]
        reached = [state for state in states if any(move.target == state for move in jumps)]

        self.box = max(_width(state) for state in states) + BOX_MARGIN
        self.left = EDGE + max((_widest(move) + 34 for move in loops), default=ENTRY if self.entries else 0)
        self.right = self.left + self.box
        self.middle = self.left + self.box / 2
        labels = self.right + max((_widest(move) + 22 for move in jumps), default=0)
        self.lanes = {state: labels + LANE * (i + 0.5) for i, state in enumerate(reversed(reached))}
        beside = self.middle + max((_widest(move) + 9 for move in downs), default=0)
        self.width = max(labels + LANE * len(reached), beside) + EDGE

        self.tops: dict[str, float] = {}
        self.heights: dict[str, float] = {}
        y = EDGE + 20.0
        for state in states:
            rows = sum(_depth(move) + 10 for move in self.jumps[state])
            loop = sum(_depth(move) + 12 for move in loops if move.source == state)
            if loop and state in self.entries:
                loop += ENTRY
            down = sum(_depth(move) + 24 for move in downs if move.source == state)
            self.tops[state] = y
            self.heights[state] = max(BOX_HEIGHT, self.header(state) + rows if rows else 0, loop)
            y += self.heights[state] + (down or GAP)
        self.height = y - GAP + EDGE

    def is_loop(self, move: Move) -> bool:
        return move.source == move.target

    def is_down(self, move: Move) -> bool:
        return self.following.get(move.source) == move.target

    def header(self, state: str) -> float:
        return HEADER if state in self.lanes else 8

    def colour(self, state: str) -> str:
        return LANE_COLOURS[list(self.lanes).index(state) % len(LANE_COLOURS)]


def _starts(layout: _Layout) -> list[str]:
    top = layout.tops[layout.drawing.states[0]]
    shapes = [_dot(layout.middle, EDGE), _arrow(f"M{layout.middle:g} {EDGE}V{top - 7:g}", INK)]
    for state in layout.entries:
        x, y = layout.left - 24, layout.tops[state] + ENTRY / 2 + 2
        shapes += [_dot(x, y), _arrow(f"M{x:g} {y:g}H{layout.left - 7:g}", INK)]
    return shapes


def _down(layout: _Layout, move: Move) -> list[str]:
    bottom = layout.tops[move.source] + layout.heights[move.source]
    arrow = _arrow(f"M{layout.middle:g} {bottom:g}V{layout.tops[move.target] - 7:g}", INK)
    return [arrow, *_label(move, layout.middle + 9, bottom + 21, "start")]


def _loop(layout: _Layout, move: Move) -> list[str]:
    above = ENTRY if move.source in layout.entries else 0
    top = layout.tops[move.source] + (layout.heights[move.source] + above - _depth(move)) / 2
    path = f"M{layout.left:g} {top:g}h-14q-8 0 -8 8v{_depth(move) - 16}q0 8 8 8h7"
    return [_arrow(path, INK), *_label(move, layout.left - 28, top + 12, "end")]


def _jumps(layout: _Layout, state: str) -> list[str]:
    shapes = []
    y = layout.tops[state] + layout.header(state)
    for move in layout.jumps[state]:
        shapes += _label(move, layout.right + 10, y + 12, "start")
        y += _depth(move)
        lane, goal = layout.lanes[move.target], layout.tops[move.target] + 12
        turn = 6 if goal > y else -6
        path = (
            f"M{layout.right:g} {y:g}H{lane - 6:g}q6 0 6 {turn}"
            f"V{goal - turn:g}q0 {turn} -6 {turn}H{layout.right + 7:g}"
        )
        shapes.append(_arrow(path, layout.colour(move.target)))
        y += 10
    return shapes


def _box(layout: _Layout, state: str) -> list[str]:
    x, y, width, height = layout.left, layout.tops[state], layout.box, layout.heights[state]
    shapes = [_rectangle(x, y, width, height, 6, "#eef4fb", 1.5)]
    if not any(move.source == state for move in layout.drawing.moves):
        shapes.append(_rectangle(x + 4, y + 4, width - 8, height - 8, 3, "none", 1))
    name = f'<text x="{layout.middle:g}" y="{y + height / 2 + 4:g}" text-anchor="middle" font-weight="600">'
    return [*shapes, f"{name}{escape(state)}</text>"]


def _rectangle(
    x: float, y: float, width: float, height: float, radius: float, fill: str, stroke: float
) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
        f'fill="{fill}" stroke="{INK}" stroke-width="{stroke:g}"/>'
    )


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="5"/>'


def _arrow(path: str, colour: str) -> str:
    head = f'marker-end="url(#head-{colour[1:]})"'
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5" {head}/>'


def _arrowhead(colour: str) -> str:
    size = 'viewBox="0 0 8 8" refX="1" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse"'
    head = f'<path d="M0 0L8 4L0 8Z" fill="{colour}"/>'
    return f'<marker id="head-{colour[1:]}" {size} orient="auto">{head}</marker>'


def _label(move: Move, x: float, y: float, anchor: str) -> list[str]:
    return [
        f'<text x="{x:g}" y="{y + line * LINE:g}" text-anchor="{anchor}">{escape(event)}</text>'
        for line, event in enumerate(move.events)
    ]


def _load(module: str, table: str) -> tuple[str, Drawing]:
    content: Table = getattr(importlib.import_module(module), table)
    short = "_".join(module.split(".")[-2:])
    return f"{short}-{table.lower().replace('_', '-')}", Drawing.of(content)


def _caption(drawing: Drawing) -> str:
    return f"State machine with the states {', '.join(drawing.states)}"


def _width(line: str) -> float:
    return len(line) * LETTER


def _widest(move: Move) -> float:
    return max(_width(event) for event in move.events)


def _depth(move: Move) -> int:
    return len(move.events) * LINE


def _words(member: Enum) -> str:
    return str(member.value)


if __name__ == "__main__":
    sys.exit(main())
