"""Draw the docs' pictures of ideas: ``python tools/pictures.py`` writes them, ``--check`` says if one is old.

Each picture is a list of boxes, arrows and words placed by hand on a grid; this program only writes them as SVG, all in
one style. They stand on a light ground of their own, so that they can be read on a dark page too, and need no font, no
script and no network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "headrace"
IMG = Path(__file__).resolve().parent.parent / "docs" / "img"

INK, FAINT, GROUND = "#24292f", "#57606a", "#ffffff"
FILLS = {"door": "#ddf4ff", "core": "#fff8c5", "kept": "#dafbe1", "spark": "#ffebe9", "plain": "#f6f8fa"}


class Picture:
    """Shapes, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, text: str, kind: str = "plain", note: str = ""
    ) -> None:
        """A box with a word in it, and a fainter one below."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{FILLS[kind]}" stroke="{FAINT}"/>'
        )
        middle = y + height / 2 + (5 if not note else -3)
        self.word(x + width // 2, middle, text)
        if note:
            self.word(x + width // 2, middle + 16, note, faint=True)

    def word(self, x: float, y: float, text: str, *, faint: bool = False, anchor: str = "middle") -> None:
        """A line of text."""
        size, colour = (11, FAINT) if faint else (13, INK)
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """A line through points, with a head at its end."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.4"{dash} marker-end="url(#head)"/>'
        )

    def mark(self, x: int, top: int, bottom: int, text: str) -> None:
        """A place on a line, named above."""
        self._parts.append(f'<path d="M{x} {top} V{bottom}" stroke="{INK}" stroke-width="1.4"/>')
        self.word(x, top - 6, text)

    def __str__(self) -> str:
        width, height = self._size
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-label="{escape(self._title)}" font-family="system-ui, sans-serif">'
        )
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            f' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
        )
        ground = f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>'
        return "\n".join(
            [opening, f"<title>{escape(self._title)}</title>", head, ground, *self._parts, "</svg>", ""]
        )


def flow() -> Picture:
    """A message's way."""
    made = Picture(860, 330, "How a message flows: doors, sequencer, log, commit, fan-out, doors")
    ways = ("fyrehose PUSH", "SPP publish", "attribute publish", "tube publish", "Spark sink")
    for row, name in enumerate(ways):
        y = 20 + row * 50
        made.box(20, y, 140, 36, name, "spark" if name.startswith("Spark") else "door")
        made.arrow((160, y + 18), (200, y + 18), (200, 138), (236, 138))
    made.box(238, 112, 96, 52, "sequencer", "core", "next number")
    made.arrow((334, 138), (362, 138))
    made.box(364, 112, 80, 52, "log", "kept", "append")
    made.arrow((444, 138), (472, 138))
    made.box(474, 112, 80, 52, "commit", "core", "head")
    made.arrow((554, 138), (582, 138))
    made.box(584, 112, 80, 52, "fan-out", "core")
    outs = (
        ("fyrehose DELIVER", "everyone, in order"),
        ("SPP update", "who subscribed"),
        ("matcher, SDK push", "what matches"),
        ("tube follow", "from any number"),
    )
    for row, (name, note) in enumerate(outs):
        y = 14 + row * 58
        made.arrow((664, 138), (686, 138), (686, y + 22), (708, y + 22))
        made.box(710, y, 136, 44, name, "door", note)
    made.arrow((404, 164), (404, 278), (578, 278))
    made.box(580, 256, 266, 44, "Spark source", "spark", "archive · verify · match · measure")
    made.arrow((580, 290), (90, 290), (90, 258), dashed=True)
    made.word(330, 310, "results come back as services and messages", faint=True)
    return made


def log() -> Picture:
    """The log's segments and places."""
    made = Picture(860, 230, "The log: sealed segments, the open tail, and the places first, head and tail")
    made.box(40, 80, 190, 54, "1 … 4,096", "kept", "sealed: an Arrow file")
    made.box(232, 80, 190, 54, "4,097 … 8,192", "kept", "sealed: an Arrow file")
    made.box(424, 80, 190, 54, "8,193 … 12,288", "kept", "sealed: an Arrow file")
    made.box(616, 80, 190, 54, "12,289 …", "core", "open: checksummed batches")
    made.mark(40, 50, 80, "first")
    made.mark(740, 50, 80, "head")
    made.mark(790, 50, 80, "tail")
    made.word(765, 160, "not yet committed", faint=True)
    made.word(765, 174, "nobody sees it", faint=True)
    made.arrow((310, 190), (310, 138))
    made.word(310, 206, "a hold: a reader still needs what follows", faint=True)
    made.arrow((560, 190), (560, 138))
    made.word(560, 206, "a snapshot: what follows from all before", faint=True)
    made.arrow((140, 156), (40, 156))
    made.word(146, 160, "retention removes", faint=True, anchor="start")
    return made


def readers() -> Picture:
    """Readers that keep up and readers that lag."""
    made = Picture(
        860,
        210,
        "Readers are cursors: one lives on what was just committed, one that lags is fed from the log",
    )
    made.box(40, 76, 640, 44, "the log", "kept")
    made.mark(680, 46, 76, "head")
    made.box(720, 20, 120, 44, "live reader", "door", "from memory")
    made.arrow((676, 84), (720, 56))
    made.box(420, 150, 120, 44, "reader that lags", "door", "from the log")
    made.arrow((480, 122), (480, 148))
    made.arrow((542, 172), (700, 172), (700, 110), dashed=True)
    made.word(708, 150, "joins again, without", faint=True, anchor="start")
    made.word(708, 164, "a hole or a repeat", faint=True, anchor="start")
    made.box(120, 150, 150, 44, "Spark, any range", "spark", "in parallel")
    for x in (150, 195, 240):
        made.arrow((x, 122), (x, 148))
    return made


def matching() -> Picture:
    """From a message to its subscribers."""
    made = Picture(
        860, 230, "Matching: a message is compared with the few subscriptions filed under what it says"
    )
    made.box(20, 90, 150, 54, "message", "door", "city=Praha  x=5")
    made.arrow((170, 117), (206, 117))
    made.box(208, 30, 300, 172, "")
    made.word(358, 50, "index of subscriptions")
    made.box(224, 62, 268, 34, "city = Praha: 3 filed here", "core")
    made.box(224, 104, 268, 34, "x in 0..10: 2 filed here", "core")
    made.box(224, 146, 268, 34, "city = Brno: 40,000 never looked at")
    made.arrow((508, 117), (544, 117))
    made.box(546, 90, 110, 54, "check the rest", "core", "5 candidates")
    for row, client in enumerate(("client 7", "client 12")):
        y = 76 + row * 48
        made.arrow((656, 117), (690, 117), (690, y + 18), (718, y + 18))
        made.box(720, y, 120, 36, client, "door")
    return made


def rooms() -> Picture:
    """The packages of ``src/headrace``, the ones that know others above the ones that are known."""
    layers = (
        (
            ("cli", "one module per command", 270),
            ("web", "dashboard, API, metrics", 270),
            ("spark", "the sequence in, results out", 270),
        ),
        (("net", "the only sockets of a hub", 540), ("client", "one package per protocol", 270)),
        (("hub", "decides, returns work, owns no socket", 824),),
        (
            ("cluster", "membership, views", 156),
            ("log", "append, seal, read", 156),
            ("matching", "predicates, index", 156),
            ("tube", "a transport of its own", 156),
            ("conform", "tries any server", 156),
        ),
        (("wire", "bytes to frames and back", 824),),
        (("message · config · errors · protocols", "the shared words", 824),),
    )
    depths = [_depth([_packages(name) for name, _, _ in layer], layer) for layer in layers]
    made = Picture(
        860, sum(depths) + 26 * len(layers) + 12, "The rooms: a room knows those below it, none above it"
    )
    y = 14
    for at, (layer, depth) in enumerate(zip(layers, depths, strict=True)):
        gap = (824 - sum(width for _, _, width in layer)) // max(len(layer) - 1, 1)
        x = 18
        for name, note, width in layer:
            _room(made, x, y, width, depth, name, note)
            x += width + gap
        y += depth
        if at < len(layers) - 1:
            made.arrow((430, y), (430, y + 24))
        y += 26
    return made


_ROOM_KINDS = {
    "net": "door",
    "client": "door",
    "web": "door",
    "tube": "door",
    "hub": "core",
    "cluster": "core",
}
_ROOM_KINDS |= {"matching": "core", "log": "kept", "spark": "spark"}
_TILE = 118, 30


def _packages(room: str) -> list[str]:
    """The packages inside a room."""
    return sorted(path.name for path in (SOURCE / room).glob("*") if any(path.glob("*.py")))


def _depth(insides: list[list[str]], layer: tuple[tuple[str, str, int], ...]) -> int:
    """How high a layer has to be."""
    rows = max(
        -(-len(inside) // max(width // (_TILE[0] + 8), 1))
        for inside, (_, _, width) in zip(insides, layer, strict=True)
    )
    return 50 + rows * (_TILE[1] + 8)


def _room(made: Picture, x: int, y: int, width: int, depth: int, name: str, note: str) -> None:
    """A room, and the packages inside it as tiles."""
    made.box(x, y, width, depth, "", _ROOM_KINDS.get(name, "plain"))
    made.word(x + width // 2, y + 21, name)
    if note:
        made.word(x + width // 2, y + 38, note, faint=True)
    inside = _packages(name)
    across = max(width // (_TILE[0] + 8), 1)
    for at, package in enumerate(inside):
        row, column = divmod(at, across)
        here = min(across, len(inside) - row * across)
        left = x + (width - here * (_TILE[0] + 8) + 8) // 2
        made.box(left + column * (_TILE[0] + 8), y + 46 + row * (_TILE[1] + 8), *_TILE, package)


PICTURES: dict[str, Callable[[], Picture]] = {
    "concept-flow.svg": flow,
    "concept-log.svg": log,
    "concept-readers.svg": readers,
    "concept-matching.svg": matching,
    "rooms.svg": rooms,
}


def main(arguments: list[str] | None = None) -> int:
    """Write the pictures, or with ``--check`` name those that are not what would be written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    old = 0
    for name, draw in PICTURES.items():
        path, made = IMG / name, str(draw())
        if path.exists() and path.read_text() == made:
            continue
        if check:
            print(f"{path} is not what tools/pictures.py draws", file=sys.stderr)
            old += 1
        else:
            path.write_text(made)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
