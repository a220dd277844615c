"""The page about reliability names tests that exist, for every promise, and every fault that is made on purpose."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_shown_by import missing
from tests.faults.ordeal import ALL_FAULTS

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
PROMISES = 8


def rows() -> list[tuple[str, str]]:
    """The table of promises: each, and the tests that can fail it."""
    section = PAGE.partition("## The promises")[2].partition("\n## ")[0]
    found = [line.strip("| \n").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(promise, tests) for promise, tests in found[1:]]


def test_every_test_that_the_page_names_exists() -> None:
    assert missing(PAGE) == []


def test_every_promise_has_a_test_that_can_fail_it() -> None:
    numbered = [int(promise.partition(".")[0]) for promise, _ in rows() if promise[0].isdigit()]
    assert numbered == list(range(1, PROMISES + 1))
    for promise, tests in rows():
        assert re.search(r"`[\w/]+\.py::test_\w+`", tests), promise


def test_every_fault_is_described() -> None:
    described = PAGE.partition("## Faults on purpose")[2].partition("\n## ")[0]
    lacking = [name for name in ALL_FAULTS if name.replace("_", " ") not in described]
    assert lacking == []


def test_the_last_soak_is_there_and_everything_held() -> None:
    last = PAGE.partition("<!-- soak -->")[2].partition("<!-- /soak -->")[0]
    assert "**everything held**" in last
