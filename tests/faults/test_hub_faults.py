"""One hub that fails in every way at seeded moments under load: nothing acknowledged is lost, doubled or changed.

A failing test prints its seed, and ``HEADRACE_SEED=7 pytest tests/faults/test_hub_faults.py`` repeats its faults. The
speed of processes is never the same again, so it may take several runs to fail again. ``HEADRACE_SEEDS=100`` runs so
many seeds.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.clusterprocess import Wires
from tests.conftest import SOAK
from tests.faults.ordeal import FAULTS, Ordeal, faults_of
from tests.faults.processes import FaultyHub
from tests.seeds import chosen_seeds

SEEDS = chosen_seeds(1, 100 if SOAK else 4)

ROUNDS = 5
SETTINGS = ("log.segment_bytes=64KiB", "log.segment_seconds=0.3", "log.snapshot_seconds=0.3")
"""Small segments and many snapshots, so that faults meet sealing, too."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_hub_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    fsync = Random(seed).choice(("always", "interval"))
    wires = Wires(0)
    try:
        with FaultyHub.start(tmp_path, *SETTINGS, f"log.fsync={fsync}") as hub:
            ordeal = Ordeal([hub], wires, seed, fsync=fsync)
            await ordeal.run(faults_of(seed, ROUNDS, FAULTS))
            ordeal.judge_logs()
    finally:
        wires.close()
