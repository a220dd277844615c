"""The report of a soak says what held and what did not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tools import soak_report
from tools.soak_report import Outcome, Sample, facts_of, report, slopes_of, to_page


def samples(leak: int = 0) -> list[Sample]:
    return [
        Sample(at=float(at), memory=(100 << 20) + at * leak, descriptors=40, tasks=16, threads=9, latency=2.0)
        for at in range(100)
    ]


def outcomes(*problems: str) -> list[Outcome]:
    facts = {"messages published": 1234}
    return [
        Outcome("one hub", Counter(disk_full=2), [], facts),
        Outcome("a cluster of three", Counter(killed=1), list(problems), facts),
    ]


def test_nothing_grows() -> None:
    slopes = slopes_of(samples())
    assert all(found.holds for found in slopes.values())
    text = report(outcomes(), slopes, seconds=600, seed=7, kept=True)
    assert "for 600 s with seed 7" in text
    assert "**everything held**" in text
    assert "| messages published | 1,234 | 1,234 |" in text
    assert "Faults of one hub: disk full 2." in text
    assert "| losses, repeats, holes, changes, errors | 0 | 0 |" in text


def test_a_leak_is_told() -> None:
    slopes = slopes_of(samples(leak=1 << 19))
    assert [name for name, found in slopes.items() if not found.holds] == ["memory"]
    assert "**too much" in report(outcomes(), slopes, seconds=600, seed=7, kept=False)


def test_what_was_lost_is_told() -> None:
    text = report(outcomes("lost: number 7"), slopes_of(samples()), seconds=600, seed=7, kept=False)
    assert "something did not hold" in text
    assert "- a cluster of three: lost: number 7" in text


def test_a_soak_without_samples_proves_nothing() -> None:
    assert slopes_of([]) == {}


def test_programs_can_read_it() -> None:
    told = json.loads(json.dumps(facts_of(outcomes("lost"), slopes_of(samples()), samples()[:1])))
    assert told["subjects"][1] == {
        "name": "a cluster of three",
        "faults": {"killed": 1},
        "problems": ["lost"],
        "facts": {"messages published": 1234},
    }
    assert told["slopes"]["memory"]["holds"] is True


def test_it_takes_the_place_of_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- soak -->\n\nthe last one\n\n<!-- /soak -->\n\nafter\n")
    monkeypatch.setattr(soak_report, "PAGE", page)
    to_page("a new one\n")
    assert page.read_text() == "before\n\n<!-- soak -->\n\na new one\n\n<!-- /soak -->\n\nafter\n"
