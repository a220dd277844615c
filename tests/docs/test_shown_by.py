"""The protocol pages end with what each sentence of the original asks for, and name tests: those exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGES = {path.stem: path for path in sorted((TESTS.parent / "docs" / "protocols").glob("*.md"))}
HEADING = "## Sentence by sentence"
ENDED = ("attribute", "fyrehose", "parcel", "sdk", "spp", "tube")

NAMED = re.compile(r"`(?:tests/)?(?P<path>[\w/]+\.py)::(?P<name>[\w:]+)`")
ALONE = re.compile(r"`(?P<name>test_\w+)`")


@cache
def functions(path: Path) -> frozenset[str]:
    """The functions and methods of a module."""
    found = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def all_functions() -> frozenset[str]:
    return frozenset().union(*map(functions, TESTS.rglob("test_*.py")))


def missing(page: str) -> list[str]:
    """The tests that a page names and that do not exist."""
    gone = [
        f"{found['path']}::{found['name']}"
        for found in NAMED.finditer(page)
        if not (TESTS / found["path"]).is_file()
        or found["name"].rpartition("::")[2] not in functions(TESTS / found["path"])
    ]
    return gone + [found["name"] for found in ALONE.finditer(page) if found["name"] not in all_functions()]


def rows(page: str) -> list[list[str]]:
    """The rows of the table that ends a page, cell by cell, its head first."""
    table = [line for line in page.partition(HEADING)[2].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in table]


@pytest.mark.parametrize("name", PAGES)
def test_every_test_that_a_page_names_exists(name: str) -> None:
    assert missing(PAGES[name].read_text()) == []


@pytest.mark.parametrize("name", ENDED)
def test_the_table_is_the_end_of_the_page_and_every_row_is_whole(name: str) -> None:
    page = PAGES[name].read_text()
    assert "\n## " not in page.partition(HEADING)[2]
    head, *sentences = rows(page)
    assert head[-1] == "shown by"
    assert sentences
    for row in sentences:
        assert len(row) == len(head), row
        assert row[0], row
        assert row[1], row
        assert row[-1], row


def test_a_test_that_is_gone_is_noticed() -> None:
    assert missing("`docs/test_shown_by.py::test_a_test_that_is_gone_is_noticed`") == []
    assert missing("`docs/test_shown_by.py::test_gone`, `docs/gone.py::test_x`, `test_gone_too`") == [
        "docs/test_shown_by.py::test_gone",
        "docs/gone.py::test_x",
        "test_gone_too",
    ]
