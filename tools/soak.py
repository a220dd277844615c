"""Soak: mixed traffic through every door for some time, with faults, and a report of what was kept of the promises.

    python tools/soak.py                          # ten minutes; the report goes to soak/
    python tools/soak.py --seconds 60 --seed 7
    python tools/soak.py --page                   # also rewrites the last report in docs/reliability.md

Two subjects run at once, each with its own clients at every door:

- a **lone hub** that lives from the first second to the last. Its disk fails, fills, is short, slow and hangs; its
  clock steps; it is stopped and starved; its clients are cut off. Its memory, descriptors, tasks and latency are
  sampled while nothing fails: none of them may grow.
- a **cluster** of three nodes that are killed, lose power, are cut off from each other, and all of the above.

In the end the history checker judges what clients were told (:mod:`tests.faults.checker`), and the logs are read. The
exit status is 1 if anything was lost, doubled, changed, out of order or missing, or if a slope rises.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

# The path above is for these.
import argparse  # noqa: E402
import asyncio  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import secrets  # noqa: E402
import shutil  # noqa: E402
import socket  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from typing import Any  # noqa: E402

import psutil  # noqa: E402
from tests.clusterprocess import Wires  # noqa: E402
from tests.faults.checker import violations  # noqa: E402
from tests.faults.every_door import EveryDoor  # noqa: E402
from tests.faults.history import Acknowledged, Failed, Invoked, Saw  # noqa: E402
from tests.faults.machine import library  # noqa: E402
from tests.faults.ordeal import CLUSTER_FAULTS, FAULTS, Ordeal  # noqa: E402
from tests.faults.processes import FaultyHub, FaultyTrio  # noqa: E402
from tests.system.observing import FREED_AT_ONCE  # noqa: E402
from tools.soak_report import Outcome, Sample, facts_of, report, slopes_of, to_page  # noqa: E402

import headrace  # noqa: E402
from headrace.errors import HeadraceError  # noqa: E402

SETTINGS = (
    "log.segment_bytes=1MiB",
    "log.segment_seconds=5",
    "log.snapshot_seconds=2",
    "log.retain_bytes=8MiB",
)
"""Small enough for sealing, snapshots and trimming to happen all the time, and for sizes to settle within a minute."""

MORTAL = ("killed", "power_lost", "sync_fails")
"""Faults that end a process."""

SAMPLE_SECONDS = 1.0
ANSWERS_PER_SAMPLE = 10


class LastingHub(FaultyHub):
    """A hub that says how many tasks it has."""

    @property
    def tally(self) -> Path:
        """The socket where it says so."""
        return self.directory / "tally"

    def _begun(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        environ = {**self._environ, **self.machine.environ(), "LD_PRELOAD": str(library())}
        environ |= {"FAULTS_TALLY": str(self.tally), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        with self.stderr_file.open("ab") as stderr:
            return subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, "-m", "tests.faults.launch", *arguments],
                cwd=self.directory, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip


async def soak(directory: Path, seconds: float, seed: int) -> tuple[list[Outcome], list[Sample]]:
    """Run both subjects for some time."""
    hub_outcome, trio_outcome, samples = Outcome("one hub"), Outcome("a cluster of three"), list[Sample]()
    ends = time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_lone_hub(directory / "hub", ends, seed, hub_outcome, samples))
        tasks.create_task(_cluster(directory / "trio", ends, seed, trio_outcome))
    return [hub_outcome, trio_outcome], samples


async def _lone_hub(directory: Path, ends: float, seed: int, outcome: Outcome, samples: list[Sample]) -> None:
    wires = Wires(0)
    calm = asyncio.Event()
    try:
        hub = await asyncio.to_thread(_started, directory)
        with hub:
            ordeal = Ordeal([hub], wires, seed, fsync="interval", load=EveryDoor)
            sampling = asyncio.create_task(_sample(hub, calm, samples))
            try:
                faults = [name for name in FAULTS if name not in MORTAL]
                await _suffer(ordeal, outcome, faults, ends, pause=4.0, calm=calm)
                calm.clear()
                await _judge(ordeal, outcome)
            finally:
                sampling.cancel()
                await asyncio.gather(sampling, return_exceptions=True)
    finally:
        wires.close()


def _started(directory: Path) -> LastingHub:
    # Freed memory is returned at once, so that the size of the process is what it holds.
    environ = {**FREED_AT_ONCE, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return LastingHub.start(directory, *SETTINGS, environ=environ)


async def _cluster(directory: Path, ends: float, seed: int, outcome: Outcome) -> None:
    sets = (*SETTINGS, "log.fsync=always", "log.retain_bytes=64MiB")
    trio = await asyncio.to_thread(FaultyTrio.start, directory, *sets)
    with trio:
        await asyncio.to_thread(trio.working)
        ordeal = Ordeal(trio.faulty, trio.wires, seed, fsync="always", load=EveryDoor)
        await _suffer(ordeal, outcome, [*FAULTS, *CLUSTER_FAULTS], ends, pause=2.0)
        await _judge(ordeal, outcome)


async def _suffer(
    ordeal: Ordeal,
    outcome: Outcome,
    faults: Sequence[str],
    ends: float,
    *,
    pause: float,
    calm: asyncio.Event | None = None,
) -> None:
    """Let one fault after the other come over the nodes, with pauses, until the time is over."""
    try:
        await ordeal.load.start()
        await ordeal.load.progress()
        due: list[str] = []
        while time.monotonic() < ends:
            if calm is not None:
                calm.set()
            await asyncio.sleep(min(pause, max(0.0, ends - time.monotonic())))
            if calm is not None:
                calm.clear()
            if not due:
                due = list(faults)
                ordeal.random.shuffle(due)
            name = due.pop()
            await ordeal.suffer(name)
            outcome.faults[name] += 1
    except BaseException as error:
        outcome.problems.append(f"after {', '.join(ordeal.suffered[-3:])}: {_told(error)}")
        await ordeal.load.cancel()
        if not isinstance(error, Exception) and "Failed" not in type(error).__name__:
            raise


async def _judge(ordeal: Ordeal, outcome: Outcome) -> None:
    history = ordeal.history
    try:
        if not outcome.problems:
            await ordeal.judge()
            await asyncio.to_thread(ordeal.judge_logs)
    except BaseException as error:
        outcome.problems.append(_told(error))
        if not isinstance(error, Exception) and "Failed" not in type(error).__name__:
            raise
    finally:
        await ordeal.load.cancel()
    counts = Counter(type(event) for event in history)
    outcome.problems += [
        str(each) for each in list(violations(history))[:20] if str(each) not in outcome.problems
    ]
    outcome.facts = {
        "messages published": sum(len(event.payloads) for event in history if isinstance(event, Invoked)),
        "publishes acknowledged": counts[Acknowledged],
        "publishes refused or unanswered": counts[Failed],
        "deliveries compared": counts[Saw],
        "readers": len({event.reader for event in history if isinstance(event, Saw)}),
    }
    if outcome.problems:
        path = Path(tempfile.gettempdir(), f"headrace-soak-{ordeal.seed}-{len(ordeal.nodes)}.jsonl")
        history.save(path)
        outcome.problems.append(f"the history is in {path}")


def _told(error: BaseException) -> str:
    notes = [note for note in getattr(error, "__notes__", []) if "stderr" not in note]
    return " ".join([f"{type(error).__name__}: {error}"[:2000], *notes])


async def _sample(hub: LastingHub, calm: asyncio.Event, samples: list[Sample]) -> None:
    process, begun = psutil.Process(hub.pid), time.monotonic()
    async with headrace.connect(f"tube://{hub.doors['tube_tcp']}") as link:
        while True:
            await calm.wait()
            await asyncio.sleep(SAMPLE_SECONDS)
            if not calm.is_set():
                continue
            with contextlib.suppress(HeadraceError, OSError):
                latency = await _latency(link)
                tally = await asyncio.to_thread(_tally, hub.tally)
                if not calm.is_set():
                    continue
                used = process.memory_info()
                samples.append(
                    Sample(
                        at=round(time.monotonic() - begun, 2),
                        memory=used.rss - used.shared,
                        descriptors=process.num_fds(),
                        tasks=tally["tasks"],
                        threads=tally["threads"],
                        latency=round(latency * 1000, 3),
                    )
                )


async def _latency(link: Any) -> float:
    """How long an answer takes: something that leaves no message behind, and so goes into no history."""
    took = []
    for _ in range(ANSWERS_PER_SAMPLE):
        begun = time.perf_counter()
        await link.hold("soak", 1)
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(0.01)
    return statistics.median(took)


def _tally(path: Path) -> dict[str, int]:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10)
        asking.connect(str(path))
        with asking.makefile() as lines:
            told: dict[str, int] = json.loads(lines.readline())
            return told


def main() -> int:
    """Soak, and write the report."""
    parser = argparse.ArgumentParser(description="Mixed traffic through every door, with faults.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--report", type=Path, default=Path("soak"), help="the directory of the report")
    parser.add_argument("--page", action="store_true", help="also put the report into docs/reliability.md")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"Soaking for {options.seconds:.0f} s with seed {seed} ...", flush=True)
    # Clients report each connection that they lose, which is what a soak does to them.
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    roomy = Path("/dev/shm")  # noqa: S108 -- a directory of its own is made there
    place = str(roomy) if roomy.is_dir() and shutil.disk_usage(roomy).free > 4 << 30 else None
    with tempfile.TemporaryDirectory(prefix="headrace-soak-", dir=place) as directory:
        outcomes, samples = asyncio.run(soak(Path(directory), options.seconds, seed))
    slopes = slopes_of(samples)
    kept = (
        bool(slopes)
        and all(each.holds for each in slopes.values())
        and not any(each.problems for each in outcomes)
    )
    text = report(outcomes, slopes, seconds=options.seconds, seed=seed, kept=kept)
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "report.md").write_text(f"# Soak\n\n{text}")
    facts = {"seed": seed, "seconds": options.seconds, "kept": kept, **facts_of(outcomes, slopes, samples)}
    (options.report / "report.json").write_text(json.dumps(facts, indent=1) + "\n")
    if options.page:
        to_page(text)
    print(text)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
