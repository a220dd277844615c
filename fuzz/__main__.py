"""Fuzz every codec: ``python -m fuzz [--seconds N] [NAME…]``.

A target is a module ``fuzz/fuzz_<name>.py`` with ``target(data: bytes) -> None``, which returns for every
input that the codec takes or refuses properly, and raises for everything else. Its seeds are the files of
``fuzz/corpus/<name>/``; they are read, never written.

Each target runs in a child process of its own, so that one that hangs, dies or eats memory is told apart from
the others. The child is atheris (coverage-guided) where that is installed. Where it is not, a small mutation
fuzzer of our own stands in, and says so. Both report in the words of libFuzzer, which the parent reads.

Numba is told not to compile here. The kernels then run as the plain Python they are written in: coverage
reaches into them, and an index past a buffer is an exception instead of a read of somebody else's memory.

An input that breaks a target is kept under ``fuzz/found/<name>/``, with the command that runs it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
FOUND = HERE / "found"

MAX_INPUT = 4096
"""Long enough for several frames of every kind; longer inputs mostly slow the search down."""

INPUT_SECONDS = 10
"""An input that takes longer counts as a hang."""

MEMORY_MB = 1024
"""The interpreter, numpy and pyarrow take about 200; what a codec needs for 4 KiB of input is far less."""

START_SECONDS = 60
"""What a child may take, beside its fuzzing time, to start, instrument the code and write its report."""

BROKEN = 77
"""The exit status for an input that broke the target, as libFuzzer has it."""

Target = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one target's run came to; ``broken`` is the input that failed, if a single one can be named."""

    name: str
    ok: bool
    runs: int
    seconds: float
    grown: int
    broken: Path | None
    report: str

    @property
    def line(self) -> str:
        rate = self.runs / self.seconds if self.seconds else 0.0
        verdict = "ok" if self.ok else "FAILED"
        return (
            f"{self.name:<12} {self.runs:>10,} runs {self.seconds:>7.1f} s {rate:>9,.0f}/s "
            f"{self.grown:>6,} new inputs  {verdict}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 when a target fails."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the codecs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of: {', '.join(targets())}")
    parser.add_argument("--seconds", type=int, default=5, help="for each target (5)")
    parser.add_argument("--jobs", type=int, default=2, help="how many targets at a time (2)")
    parser.add_argument("--input", type=Path, nargs="+", help="run just these files, once")
    parser.add_argument("--no-atheris", action="store_true", help="use the plain mutation fuzzer")
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)

    if unknown := [name for name in options.names if name not in targets()]:
        parser.error(f"no target named {', '.join(unknown)}; there are: {', '.join(targets())}")
    names = options.names or targets()
    if options.child is not None:
        return _child(names[0], options.child, guided=not options.no_atheris)
    if options.input:
        if len(options.names) != 1:
            parser.error("--input needs the NAME of one target")
        return _reproduce(names[0], options.input)

    guided = not options.no_atheris
    if guided and importlib.util.find_spec("atheris") is None:
        guided = False
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"WARNING: atheris is not installed for Python {version}.", file=sys.stderr)
        print("WARNING: fuzzing by blind mutation instead, which finds far less.", file=sys.stderr)
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(fuzz, name, options.seconds, guided=guided) for name in names]
        for outcome in (future.result() for future in as_completed(running)):
            print(outcome.line, flush=True)
            if not outcome.ok:
                failed += 1
                _explain(outcome)
    return 1 if failed else 0


def targets() -> list[str]:
    """The names of all targets there are."""
    return sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))


def load(name: str) -> Target:
    """The function of a target."""
    target: Target = importlib.import_module(f"fuzz.fuzz_{name}").target
    return target


def seeds(name: str) -> list[Path]:
    """The seed files of a target."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def fuzz(name: str, seconds: int, *, guided: bool) -> Outcome:
    """Run one target in a child process for some seconds."""
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as grown:
        command = [sys.executable, "-m", "fuzz", name]
        if not guided:
            command.append("--no-atheris")
        command += [
            "--child",
            f"-max_total_time={seconds}",
            f"-max_len={MAX_INPUT}",
            f"-timeout={INPUT_SECONDS}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-artifact_prefix={found}/",
            "-print_final_stats=1",
            # libFuzzer adds what it finds to the first directory and only reads the others.
            grown,
            str(CORPUS / name),
        ]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=HERE.parent,
                env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds + START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            output = (expired.stdout or b"").decode(errors="replace")
            report = f"{output}\nno end after {seconds + START_SECONDS} s"
            return Outcome(name, False, 0, time.monotonic() - started, 0, None, report)
    report = done.stdout.decode(errors="replace")
    runs = int(_last(r"stat::number_of_executed_units:\s*(\d+)", report) or 0)
    broken = _last(r"Test unit written to (\S+)", report)
    return Outcome(
        name,
        # A child that ends well without having run anything has not fuzzed.
        ok=done.returncode == 0 and runs > 0,
        runs=runs,
        seconds=float(_last(r"in ([\d.]+) second\(s\)", report) or time.monotonic() - started),
        grown=int(_last(r"stat::new_units_added:\s*(\d+)", report) or 0),
        broken=Path(broken) if broken else None,
        report=report,
    )


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """A changed copy of an input: a few small damages of the kinds that break parsers."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.choice((0x00, 0x01, 0x7F, 0x80, 0xFF))
            case 2:
                changed[at : at + rng.choice((1, 2, 4))] = rng.choice(
                    (0, 1, 0x7FFFFFFF, 0xFFFFFFFF)
                ).to_bytes(4)
            case 3:
                del changed[at : at + rng.randint(1, 8)]
            case 4:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 5:
                del changed[at:]
            case _ if others:
                other = rng.choice(others)
                changed[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                changed.append(rng.randrange(256))
    return bytes(changed[:MAX_INPUT])


def search(target: Target, known: Sequence[bytes], seconds: float, keep: Path, rng: random.Random) -> int:
    """Mutate seeds for some seconds; return an exit status, after a report in libFuzzer's words."""

    def hang(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"one input took longer than {INPUT_SECONDS} s")

    pool = [b"", *known]
    waiting = list(pool)
    runs, status = 0, 0
    before = signal.signal(signal.SIGALRM, hang)
    started = time.monotonic()
    try:
        while time.monotonic() - started < seconds:
            data = waiting.pop() if waiting else mutate(rng.choice(pool), pool, rng)
            runs += 1
            signal.alarm(INPUT_SECONDS)
            try:
                target(data)
            except Exception:  # noqa: BLE001 - whatever a target raises is the finding
                signal.alarm(0)
                traceback.print_exc()
                broken = keep / f"crash-{hashlib.sha256(data).hexdigest()[:16]}"
                broken.write_bytes(data)
                print(f"Test unit written to {broken}")
                status = BROKEN
                break
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    print(f"Done {runs} runs in {time.monotonic() - started:.1f} second(s)")
    print(f"stat::number_of_executed_units: {runs}", flush=True)
    return status


def _child(name: str, arguments: list[str], *, guided: bool) -> int:
    """Fuzz one target in this process, with libFuzzer's arguments."""
    if not guided:
        flags = dict(argument.lstrip("-").split("=", 1) for argument in arguments if "=" in argument)
        known = [path.read_bytes() for path in seeds(name)]
        keep = Path(flags["artifact_prefix"])
        return search(load(name), known, float(flags["max_total_time"]), keep, random.Random(name))
    import atheris

    # The target's own module is not measured: coverage is to come from the codec.
    with atheris.instrument_imports(include=["headrace"]):
        target = load(name)
    atheris.Setup([name, *arguments], target)
    atheris.Fuzz()
    return 0


def _reproduce(name: str, files: Sequence[Path]) -> int:
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    target = load(name)
    for file in files:
        target(file.read_bytes())
        print(f"{name}: {file}: ok")
    return 0


def _explain(outcome: Outcome) -> None:
    """Show the end of a failed child's report, and how to see it again."""
    dull = ("INFO:", "WARNING: Failed to find function", "stat::")
    shown = [line for line in outcome.report.splitlines() if not line.startswith(dull)]
    print("\n".join(f"    {line}" for line in shown[-30:]))
    if outcome.broken:
        print(
            f"    again: python -m fuzz {outcome.name} --input {os.path.relpath(outcome.broken)}", flush=True
        )


def _last(pattern: str, text: str) -> str | None:
    matches = re.findall(pattern, text)
    return matches[-1] if matches else None


if __name__ == "__main__":
    sys.exit(main())
