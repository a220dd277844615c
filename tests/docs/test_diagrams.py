"""The pictures of state machines in the pages are those of the tables in the code."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest
from tools import diagrams


class State(Enum):
    IDLE = "idle"
    BUSY = "busy"
    CLOSED = "closed"


class Event(Enum):
    WORK = "work"
    MORE = "more <&> work"
    DONE = "done"
    QUIT = "quit"


TABLE = {
    (State.IDLE, Event.WORK): State.BUSY,
    (State.BUSY, Event.MORE): State.BUSY,
    (State.BUSY, Event.DONE): State.IDLE,
    (State.IDLE, Event.QUIT): State.CLOSED,
    (State.BUSY, Event.QUIT): State.CLOSED,
}

PAGE = "# Page\n\n<!-- machine: toy:TABLE -->\nold\n<!-- /machine -->\n\nAfter.\n"


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    toy = ModuleType("toy")
    toy.TABLE = TABLE  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy", toy)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    return tmp_path / "docs"


def test_the_committed_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagrams.main(["--check"]) == 0, capsys.readouterr().out


def test_check_changes_nothing(docs: Path) -> None:
    assert diagrams.main(["--check", "--docs", str(docs)]) == 1
    assert (docs / "page.md").read_text() == PAGE
    assert not (docs / "img").exists()


def test_drawing_twice_changes_nothing(docs: Path) -> None:
    assert diagrams.main(["--docs", str(docs)]) == 0
    page, picture = (docs / "page.md").read_text(), (docs / "img" / "toy-table.svg").read_text()
    assert diagrams.main(["--check", "--docs", str(docs)]) == 0
    assert diagrams.main(["--docs", str(docs)]) == 0
    assert (docs / "page.md").read_text() == page
    assert (docs / "img" / "toy-table.svg").read_text() == picture
    assert page.startswith("# Page\n\n<!-- machine: toy:TABLE -->\n")
    assert page.endswith("<!-- /machine -->\n\nAfter.\n")
    assert "old" not in page
    assert "| busy | quit | closed |" in page


def test_a_picture_without_a_page_is_removed(docs: Path) -> None:
    diagrams.main(["--docs", str(docs)])
    (docs / "page.md").write_text("# Page\n")
    (docs / "img" / "photo.svg").write_text("<svg/>")
    assert diagrams.main(["--check", "--docs", str(docs)]) == 1
    assert diagrams.main(["--docs", str(docs)]) == 0
    assert [path.name for path in (docs / "img").iterdir()] == ["photo.svg"]


def test_a_picture_has_every_state_and_event() -> None:
    root = ET.fromstring(diagrams.svg(diagrams.Drawing.of(TABLE)))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(texts) == sorted(
        ["idle", "busy", "closed", "work", "more <&> work", "done", "quit", "quit"]
    )


def test_a_picture_holds_what_it_shows() -> None:
    root = ET.fromstring(diagrams.svg(diagrams.Drawing.of(TABLE)))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        if "x" in box.attrib:
            assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])
            assert 0 <= float(box.attrib["y"]) <= height - float(box.attrib["height"])


def test_a_dot_stands_where_a_connection_can_begin() -> None:
    def dots(table: diagrams.Table) -> int:
        root = ET.fromstring(diagrams.svg(diagrams.Drawing.of(table)))
        return len(list(root.iter("{http://www.w3.org/2000/svg}circle")))

    assert dots(TABLE) == 1
    assert dots({(State.IDLE, Event.QUIT): State.CLOSED, (State.BUSY, Event.DONE): State.CLOSED}) == 2
