"""The report of a soak: what was promised to clients and kept, and whether the hub's figures grow."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults.slopes import Slope, slope

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
MARKER = re.compile(r"(?P<open>^<!-- soak -->$).*?(?P<close>^<!-- /soak -->$)", re.DOTALL | re.MULTILINE)

WARM_UP = 0.25
"""The share of the time at the beginning that no slope is judged by: caches fill."""

UNITS = {"memory": "MiB", "descriptors": "", "tasks": "", "threads": "", "latency": "ms"}

MIB = 1 << 20


@dataclass
class Sample:
    """The hub's figures at one moment without a fault."""

    at: float
    memory: int
    descriptors: int
    tasks: int
    threads: int
    latency: float
    """Milliseconds from a publish to its acknowledgement, the median of some."""


@dataclass
class Outcome:
    """What became of one subject."""

    name: str
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def slopes_of(samples: Sequence[Sample]) -> dict[str, Slope]:
    """How each figure has grown since it was warm."""
    if not samples:
        return {}
    warm = samples[0].at + WARM_UP * (samples[-1].at - samples[0].at)
    judged = [sample for sample in samples if sample.at >= warm]
    rules: dict[str, tuple[float, float, float]] = {
        # How the figure is shown, and what it may grow by: a share of its median, or so much.
        "memory": (1 / MIB, 0.15, 16.0),
        "descriptors": (1, 0.1, 8.0),
        "tasks": (1, 0.1, 8.0),
        "threads": (1, 0.1, 4.0),
        "latency": (1, 1.0, 5.0),
    }
    return {
        name: slope([(each.at, getattr(each, name) * unit) for each in judged], share=share, least=least)
        for name, (unit, share, least) in rules.items()
    }


def report(
    outcomes: Sequence[Outcome], slopes: Mapping[str, Slope], *, seconds: float, seed: int, kept: bool
) -> str:
    """The report, in Markdown."""
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    machine = f"{os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()})"
    verdict = "everything held" if kept else "something did not hold"
    lines = [
        f"Run on {day} for {seconds:.0f} s with seed {seed}, on {machine}: **{verdict}**.",
        "",
        "| | " + " | ".join(outcome.name for outcome in outcomes) + " |",
        "|---|" + "---|" * len(outcomes),
    ]
    for fact in outcomes[0].facts:
        figures = " | ".join(f"{each.facts.get(fact, 0):,}" for each in outcomes)
        lines += [f"| {fact} | {figures} |"]
    lines.append("| faults | " + " | ".join(str(sum(each.faults.values())) for each in outcomes) + " |")
    broken = " | ".join(str(len(each.problems)) for each in outcomes)
    lines += [f"| losses, repeats, holes, changes, errors | {broken} |", ""]
    for outcome in outcomes:
        named = ", ".join(
            f"{name.replace('_', ' ')} {count}" for name, count in sorted(outcome.faults.items())
        )
        lines += [f"Faults of {outcome.name}: {named}.", ""]
    lines += ["| figure of the one hub | median | grown | allowed | samples |", "|---|---|---|---|---|"]
    for name, found in slopes.items():
        unit = f" {UNITS[name]}".rstrip()
        wrong = "" if found.holds else " **too much, or too few samples**"
        lines.append(
            f"| {name} | {found.median:.4g}{unit} | {found.grown:+.3g}{unit}{wrong} | {found.allowed:.3g}{unit} |"
            f" {found.samples} |"
        )
    for outcome in outcomes:
        lines += (
            ["", *(f"- {outcome.name}: {problem}" for problem in outcome.problems)]
            if outcome.problems
            else []
        )
    return "\n".join(lines) + "\n"


def facts_of(
    outcomes: Sequence[Outcome], slopes: Mapping[str, Slope], samples: Sequence[Sample]
) -> dict[str, object]:
    """The same for programs."""
    return {
        "subjects": [
            {"name": each.name, "faults": dict(each.faults), "problems": each.problems, "facts": each.facts}
            for each in outcomes
        ],
        "slopes": {name: {**asdict(found), "holds": found.holds} for name, found in slopes.items()},
        "samples": [asdict(sample) for sample in samples],
    }


def to_page(text: str) -> None:
    """Put a report into ``docs/reliability.md``, in place of the last one."""
    page = PAGE.read_text()
    PAGE.write_text(MARKER.sub(lambda found: f"{found['open']}\n\n{text}\n{found['close']}", page))
