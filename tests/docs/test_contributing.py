"""The map in CONTRIBUTING.md is true: what it names exists, and each typical change touches few files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PATH = re.compile(r"`([\w./]+(?:\.py|\.md|/))`")


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def changes() -> list[tuple[str, str, str]]:
    rows = [line.strip("|").split("|") for line in section("Ten typical changes").splitlines() if "|" in line]
    return [(change.strip(), files, page.strip(" `")) for change, files, page in rows[2:]]


def test_there_are_ten() -> None:
    assert len(changes()) == 10


@pytest.mark.parametrize(("change", "files", "page"), changes())
def test_a_typical_change_touches_one_to_three_files_that_exist(change: str, files: str, page: str) -> None:
    named = PATH.findall(files)
    assert 1 <= len(named) <= 3, change
    for path in named:
        assert (SOURCE / path).exists(), f"{change}: there is no {path}"
    assert (ROOT / page).is_file(), f"{change}: there is no {page}"


def test_every_path_on_the_page_exists() -> None:
    for path in PATH.findall(TEXT):
        assert (ROOT / path).exists() or (SOURCE / path).exists(), f"there is no {path}"


def test_the_map_names_every_room() -> None:
    block = section("Where things are").split("```")[1]
    rooms = {path.parent.relative_to(SOURCE).parts for path in SOURCE.rglob("*.py")} - {()}
    for room in sorted(rooms):
        # Packages deeper down are inside a room that is named.
        if len(room) == 1 or room[0] in ("net", "hub", "client"):
            assert re.search(rf"\b{room[-1]}\b", block), f"the map does not name {'/'.join(room)}"
