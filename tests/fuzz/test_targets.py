"""Every fuzz target runs, over its seeds and some damaged copies of them; the runner tells good from bad."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import __main__ as runner

ROOT = Path(__file__).parents[2]
CHANGED = 300


@pytest.mark.parametrize("name", runner.targets())
def test_a_target_stands_its_seeds(name: str) -> None:
    target = runner.load(name)
    assert len(runner.seeds(name)) >= 5, "a target needs at least five seeds"
    for seed in runner.seeds(name):
        target(seed.read_bytes())


@pytest.mark.parametrize("name", runner.targets())
def test_a_target_stands_damaged_seeds(name: str) -> None:
    target = runner.load(name)
    known = [seed.read_bytes() for seed in runner.seeds(name)]
    rng = random.Random(name)
    for _ in range(CHANGED):
        target(runner.mutate(rng.choice(known), known, rng))


def test_seeds_belong_to_targets() -> None:
    assert {path.name for path in runner.CORPUS.iterdir()} == set(runner.targets())


def test_mutations_can_be_had_again() -> None:
    first, second = random.Random(7), random.Random(7)
    known = [b"hello", b"", b"\x00" * 16]
    assert [runner.mutate(b"seed", known, first) for _ in range(100)] == [
        runner.mutate(b"seed", known, second) for _ in range(100)
    ]


def test_mutations_are_bounded() -> None:
    rng = random.Random(7)
    long = bytes(runner.MAX_INPUT)
    assert max(len(runner.mutate(long, [long], rng)) for _ in range(200)) <= runner.MAX_INPUT


def test_the_plain_search_keeps_what_breaks_a_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def target(data: bytes) -> None:
        assert not data.startswith(b"x")

    status = runner.search(target, [b"xyz"], 5, tmp_path, random.Random(7))
    [kept] = tmp_path.iterdir()
    assert status == runner.BROKEN
    assert kept.read_bytes() == b"xyz"
    assert f"Test unit written to {kept}" in capsys.readouterr().out


def test_the_plain_search_ends_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.search(len, [b"xyz"], 0.05, tmp_path, random.Random(7)) == 0
    assert list(tmp_path.iterdir()) == []
    assert "stat::number_of_executed_units" in capsys.readouterr().out


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of its own with the runner, a target that holds and one that does not."""
    folder = tmp_path / "fuzz"
    folder.mkdir()
    (folder / "__main__.py").write_text((ROOT / "fuzz" / "__main__.py").read_text())
    for name, body in (("good", "len(data)"), ("bad", "assert data != b'seed'")):
        (folder / f"fuzz_{name}.py").write_text(f"def target(data):\n    {body}\n")
        (folder / "corpus" / name).mkdir(parents=True)
        (folder / "corpus" / name / "seed").write_bytes(b"seed")
    return tmp_path


def command(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *arguments], cwd=project, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("engine", [[], ["--no-atheris"]], ids=["default", "plain"])
def test_the_runner_reports_each_target(project: Path, engine: list[str]) -> None:
    done = command(project, "--seconds", "1", *engine)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if " runs " in line}
    assert done.returncode == 1, done.stdout
    assert lines["good"].endswith("ok")
    assert lines["bad"].endswith("FAILED")

    again = next(line for line in done.stdout.splitlines() if "again: python -m fuzz" in line)
    repeated = command(project, *again.split("python -m fuzz ", 1)[1].split())
    assert repeated.returncode == 1
    assert "AssertionError" in repeated.stderr
    assert [seed.name for seed in (project / "fuzz" / "corpus" / "good").iterdir()] == ["seed"]


def test_a_good_input_runs_again_without_complaint(project: Path) -> None:
    done = command(project, "good", "--input", "fuzz/corpus/good/seed")
    assert (done.returncode, done.stdout) == (0, "good: fuzz/corpus/good/seed: ok\n")


def test_an_unknown_target_is_named(project: Path) -> None:
    done = command(project, "nobody")
    assert done.returncode == 2
    assert "no target named nobody; there are: bad, good" in done.stderr
