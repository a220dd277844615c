"""Charts of benchmark tables: bars for the rows that are compared with one another, as SVG.

Rows with one base make a group, which has a scale of its own: what counts is how the bars of a group compare. Like the
docs' other pictures, a chart stands on a light ground and needs no font, script or network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

INK, GROUND, OURS, OTHERS = "#24292f", "#ffffff", "#2f81f7", "#c9d1d9"
WIDTH, NAMES, BARS, LINE = 760, 230, 360, 22


def write_charts(benchmark: str, tables: Iterable[dict[str, Any]], directory: Path) -> None:
    """Write a chart of each table that has key ratios."""
    for table in tables:
        if any(row.get("key") for row in table["rows"]):
            words = re.findall(r"[a-z]+", table["title"].lower())
            path = directory / f"bench-{benchmark}-{'-'.join(words[:3])}.svg"
            path.write_text(chart(table))


def chart(table: dict[str, Any]) -> str:
    """Draw a table's first column."""
    parts = []
    y = 40
    for group in _groups(table["rows"]):
        longest = max(_value(row) for row in group)
        for row in group:
            value = _value(row)
            length = max(2, BARS * value / longest)
            shown = f"{value:,.0f}" + (f" ({row['ratio']:.1f}x)" if row["ratio"] is not None else "")
            box = f'x="{NAMES}" y="{y + 3}" width="{length:.0f}" height="{LINE - 6}" rx="2"'
            parts += [
                _text(NAMES - 8, y + 14, row["name"], anchor="end"),
                f'<rect {box} fill="{OURS if row.get("key") else OTHERS}"/>',
                _text(NAMES + length + 6, y + 14, shown),
            ]
            y += LINE
        y += LINE // 2
    better = "shorter is better" if table.get("less_is_better") else "longer is better"
    title = _text(12, 22, f"{table['title']} ({better})", size=13)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" role="img">\n'
        f"<title>{escape(table['title'])}</title>\n"
        f'<rect width="{WIDTH}" height="{y}" fill="{GROUND}"/>\n' + "\n".join([title, *parts]) + "\n</svg>\n"
    )


def _groups(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows with their base, in the order of the table; what is compared with nothing is left out."""
    bases = dict.fromkeys(row["base"] for row in rows if row["base"])
    return [[row for row in rows if base in (row["base"], row["name"])] for base in bases]


def _value(row: dict[str, Any]) -> float:
    """The first figure of a row: those of its columns stand after its name."""
    return float(next(value for name, value in row.items() if name != "name"))


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{escape(text)}</text>'
