"""Every dotted name of ours in the documentation exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bheadrace(?:\.[A-Za-z_]\w*)+")
NOT_PYTHON = {
    "headrace.archive",
    "headrace.columns",
    "headrace.head",
    "headrace.through",
    "headrace.service",
    "headrace.toml",
    "headrace.log",
}
"""Tables, properties and files that only look like names."""

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/*.md")])


def exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, part, None)) is not None for part in parts[end:])
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_exist(page: Path) -> None:
    for name in sorted(set(NAME.findall(page.read_text())) - NOT_PYTHON):
        assert exists(name), f"there is no {name}"


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert exists("headrace.message.Batch.numbered")
    assert not exists("headrace.message.Bunch")
    assert not exists("headrace.massage")
