"""Three nodes that fail in every way at seeded moments under load: one sequence, and nothing acknowledged is lost.

As with one hub, ``HEADRACE_SEED=7 pytest tests/faults/test_cluster_faults.py`` repeats a seed's faults, and
``HEADRACE_SEEDS=100`` runs so many seeds. The nodes live on from seed to seed, until one of them fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.conftest import SOAK
from tests.faults.ordeal import ALL_FAULTS, Ordeal, faults_of
from tests.faults.processes import FaultyTrio
from tests.system.observing import status

# Read on import: tests run without the shell's settings.
_COUNT = int(os.environ.get("HEADRACE_SEEDS") or (100 if SOAK else 2))
SEEDS = [int(os.environ["HEADRACE_SEED"])] if os.environ.get("HEADRACE_SEED") else range(1, _COUNT + 1)

ROUNDS = 3
SETTINGS = ("log.segment_bytes=64KiB", "log.segment_seconds=0.5", "log.snapshot_seconds=0.5")


@pytest.fixture(scope="module", params=["always", "interval"])
def trio(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyTrio]:
    """Three nodes that sync everything, or every now and then."""
    sets = (*SETTINGS, f"log.fsync={request.param}")
    with FaultyTrio.start(tmp_path_factory.mktemp(request.param), *sets) as nodes:
        yield nodes


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cluster_keeps_its_promises(
    trio: FaultyTrio, request: pytest.FixtureRequest, seed: int
) -> None:
    fsync = request.node.callspec.params["trio"]
    trio.working()
    ordeal = Ordeal(trio.nodes, trio.wires, seed, fsync=fsync, before=status(trio.nodes[0])["head"])
    await ordeal.run(faults_of(seed, ROUNDS, ALL_FAULTS))
