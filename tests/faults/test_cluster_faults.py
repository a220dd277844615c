"""Three nodes that fail in every way at seeded moments under load: one sequence, and nothing acknowledged is lost.

As with one hub, ``HEADRACE_SEED=7 pytest tests/faults/test_cluster_faults.py`` repeats a seed's faults, and
``HEADRACE_SEEDS=100`` runs so many seeds, every other one with ``fsync=always``. The nodes live on from seed to seed,
until one of them fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import SOAK
from tests.faults.ordeal import ALL_FAULTS, Ordeal, faults_of
from tests.faults.processes import FaultyTrio
from tests.seeds import chosen_seeds
from tests.system.observing import status

SEEDS = chosen_seeds(1, 100 if SOAK else 2)

ROUNDS = 4
SETTINGS = ("log.segment_bytes=64KiB", "log.segment_seconds=0.5", "log.snapshot_seconds=0.5")


@pytest.fixture(scope="module")
def trio(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyTrio]:
    """Three nodes that sync everything, or every now and then."""
    sets = (*SETTINGS, f"log.fsync={request.param}")
    with FaultyTrio.start(tmp_path_factory.mktemp(request.param), *sets) as nodes:
        yield nodes


def fsync_of(seed: int) -> str:
    return ("always", "interval")[seed % 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trio", "seed"), [(fsync_of(seed), seed) for seed in SEEDS], indirect=["trio"], scope="module"
)
async def test_a_cluster_keeps_its_promises(trio: FaultyTrio, seed: int) -> None:
    trio.working()
    before = status(trio.nodes[0])["head"]
    ordeal = Ordeal(trio.faulty, trio.wires, seed, fsync=fsync_of(seed), before=before)
    await ordeal.run(faults_of(seed, ROUNDS, ALL_FAULTS))
