"""The pictures of ideas are what their program draws, hold what they show, and need nothing else."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tools import pictures

ROOT = Path(__file__).parents[2]


def test_pictures_are_up_to_date() -> None:
    assert pictures.main(["--check"]) == 0, "run python tools/pictures.py"


def test_an_old_picture_is_noticed_and_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "IMG", tmp_path)
    assert pictures.main(["--check"]) == 1
    assert pictures.main([]) == 0
    assert pictures.main(["--check"]) == 0


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_holds_what_it_shows(name: str) -> None:
    root = ET.fromstring(str(pictures.PICTURES[name]()))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["aria-label"]
    for each in root.iter():
        if "x" in each.attrib:
            assert 0 <= float(each.attrib["x"]) <= width - float(each.attrib.get("width", 0))
            assert 0 <= float(each.attrib["y"]) <= height - float(each.attrib.get("height", 0))
        assert not any("http" in value for value in each.attrib.values())


def test_every_picture_is_shown() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert all(f"](img/{name})" in pages for name in pictures.PICTURES)
