"""Real nodes keep their promises whatever their disks, clocks, connections and operators do.

Each seed is a world: see :mod:`tests.simulation.nodes`. A seed that fails is named in the failure and runs alone with
``HEADRACE_SEED=<seed>``; ``HEADRACE_SOAK=1`` runs many more of them, and ``HEADRACE_SEEDS`` says how many.

Whatever a node must not do is done here once, on purpose, and has to be noticed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.seeds import chosen_seeds
from tests.simulation.cluster import BrokenPromiseError
from tests.simulation.node_process import Node
from tests.simulation.nodes import World, live

from headrace.cluster import durable_state
from headrace.cluster.durable_state import StoredState, remember
from headrace.cluster.membership import Membership
from headrace.errors import StorageError
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.steady_clock import SteadyClock
from headrace.log import Log
from headrace.log.tail_writer import TailWriter
from headrace.net.cluster import replica_driver, transfers
from headrace.net.cluster.replica_driver import ReplicaDriver

_BLOCK = 20

SEEDS = chosen_seeds(0, 2_000 if os.environ.get("HEADRACE_SOAK") == "1" else 50)
BLOCKS = [SEEDS[begin : begin + _BLOCK] for begin in range(0, len(SEEDS), _BLOCK)]

MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Files of the simulated disks are real ones; in memory they cost nothing."""


Play = Callable[[World], None]


def world_of(seed: int, play: Play = lambda _: None, **chosen: Any) -> World:
    with TemporaryDirectory(dir=MEMORY) as directory:
        return live(seed, Path(directory), play, **chosen)


@cache
def happened(seed: int) -> Counter[str]:
    return world_of(seed).happened


@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda seeds: f"seeds-{seeds.start}-to-{seeds.stop - 1}")
def test_the_promises_are_kept(seeds: range) -> None:
    for seed in seeds:
        happened(seed)


def test_a_seed_always_gives_the_same_world() -> None:
    first, second = world_of(7), world_of(7)
    assert first.happened == second.happened
    assert first.messages == second.messages
    assert first.network.now == second.network.now


def test_the_seeds_meet_every_fault() -> None:
    met = sum((happened(seed) for block in BLOCKS for seed in block), Counter[str]())
    if len(SEEDS) < 100:
        return
    assert met.keys() >= {
        "killed",
        "without power",
        "emptied",
        "rotten",
        "damaged",
        "partition",
        "reset",
        "stall",
        "failed sync",
        "full disk",
        "clock step",
        "upkeep",
        "began anew",
        "sent again",
        "started with always",
        "started with interval",
        "started with never",
    }


Break = Callable[[pytest.MonkeyPatch], None]


def forgets_how_the_log_was_written(patch: pytest.MonkeyPatch) -> None:
    """What ``log.fsync`` is now decides whether a node lost nothing."""

    def is_intact(log: Log, stored: StoredState | None) -> bool:
        if stored is None or stored.log != str(log.uuid):
            return False
        return "always" in (log.fsync, stored.fsync) or stored.boot == durable_state._boot()

    patch.setattr(replica_driver, "is_intact", is_intact)


def forgets_what_was_committed(patch: pytest.MonkeyPatch) -> None:
    """A node that is started again knows only what was committed when its view began."""
    patch.setattr(durable_state, "_with_commit", lambda _directory, stored: stored)


def acknowledges_after_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    """A sync that failed counts as one."""
    sync = Log.sync

    def careless(log: Log) -> int:
        try:
            return sync(log)
        except StorageError:
            log.failure = None
            return log.tail_op

    patch.setattr(Log, "sync", careless)


def ignores_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """What could not be written counts as written."""
    write = TailWriter.write

    def careless(writer: TailWriter, file: Any, pieces: Any) -> None:
        try:
            write(writer, file, pieces)
        except StorageError:
            writer._leftover = False

    patch.setattr(TailWriter, "write", careless)


def shows_work_without_a_primary(patch: pytest.MonkeyPatch) -> None:
    """A view counts as at work whether it has a primary or not."""
    replica_is = Membership.replica_is
    patch.setattr(
        Membership, "replica_is", lambda self, status, now, *, primary=True: replica_is(self, status, now)
    )


def waits_for_a_disk_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A primary keeps its place, whatever its disk does."""
    patch.setattr(replica_driver, "HUNG_SECONDS", 1e9)


def believes_any_clock(patch: pytest.MonkeyPatch) -> None:
    """Messages are stamped with whatever the machine's clock says."""
    patch.setattr(SteadyClock, "now", lambda self: self._wall())


def takes_repeats_for_new(patch: pytest.MonkeyPatch) -> None:
    """Nobody remembers which numbers of a publisher are in the log."""
    patch.setattr(PublisherNumbers, "follow", lambda _self, _batch: None)


def forgets_publishers_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A state that is restored from a snapshot knows no publishers."""
    patch.setattr(PublisherNumbers, "load", lambda _self, _section: None)


def tells_of_a_head_it_does_not_know(patch: pytest.MonkeyPatch) -> None:
    """A node that is started again answers with what it has noted."""
    patch.setattr(ReplicaDriver, "caught_up_with_itself", True)


def speaks_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """A node's state is saved some time, and what follows from it is said at once."""

    def careless(driver: ReplicaDriver, state: Any) -> None:
        def saved(done: Any) -> None:
            driver.stored = done.result()

        driver._disk.in_order(lambda: remember(driver._hub.log, state), saved)

    patch.setattr(ReplicaDriver, "_save", careless)


def serves_groups_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Sealed history is fetched as if every operation stood alone."""
    patch.setattr(transfers, "SERVE_BYTES", 1)
    patch.setattr(Log, "sealed_end", lambda _self, _op: None)


SAFE: dict[str, Any] = {
    "size": 3,
    "seconds": 10.0,
    "publishers": 2,
    "pause": 0.2,
    "ends": 0,
    "partitions": 0,
    "resets": 0,
    "stalls": 0,
    "sync_errors": 0,
    "full": 0,
    "rot": 0,
    "steps": 0,
    "upkeep": 0,
    "down": 0.3,
    "slowest": 0.02,
    "skew": 0.0,
}
"""Nothing happens but what a mutation needs to be noticed."""

LOST = (
    "others|is acknowledged as|no more|gives up|knew .* to be committed|has Message|another history|ends at"
    "|tells of head"
)
"""How it shows that something acknowledged is gone, or two nodes differ: which of these comes first is chance."""

MUTATIONS: dict[str, tuple[Break, dict[str, Any], str]] = {
    "forgets what was committed": (forgets_what_was_committed, {"ends": 5}, "knew .* to be committed"),
    "acknowledges after a failed sync": (
        acknowledges_after_a_failed_sync,
        {"sync_errors": 2, "fsync": ("always",)},
        "after a failed sync",
    ),
    "ignores a full disk": (ignores_a_full_disk, {"full": 2, "ends": 3}, "."),
    "shows work without a primary": (shows_work_without_a_primary, {}, "shows WRK"),
    "waits for a disk for ever": (
        waits_for_a_disk_for_ever,
        {"stalls": 3, "fsync": ("always",)},
        "though its disk hangs|does not tell",
    ),
    "believes any clock": (believes_any_clock, {"steps": 3}, "stamped"),
    "takes repeats for new": (takes_repeats_for_new, {"ends": 5, "resets": 3}, " is .* and |is refused"),
    "forgets publishers in snapshots": (
        forgets_publishers_in_snapshots,
        {"ends": 4, "upkeep": 5},
        " is .* and |is refused|states differ",
    ),
    "tells of a head it does not know": (
        tells_of_a_head_it_does_not_know,
        {"ends": 8, "pause": 0.02},
        "tells of head",
    ),
    "serves groups in parts": (
        serves_groups_in_parts,
        {"ends": 6, "down": 2.0, "upkeep": 8, "pause": 0.02},
        "a part of a group",
    ),
    "speaks before the disk": (
        speaks_before_the_disk,
        {"slowest": 0.3, "ends": 12, "partitions": 3, "fsync": ("always",)},
        f"{LOST}|no agreement",
    ),
}

SEEDS_FOR_EACH = 60


@pytest.mark.parametrize(("broken", "chosen", "caught"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_what_a_node_must_not_do_is_noticed(
    monkeypatch: pytest.MonkeyPatch, broken: Break, chosen: dict[str, Any], caught: str
) -> None:
    broken(monkeypatch)
    with pytest.raises(BrokenPromiseError, match=caught):
        all_of(range(SEEDS_FOR_EACH), {**SAFE, **chosen})


def raise_the_setting_after_a_crash(world: World) -> None:
    """One of three is away while the others commit; one of those loses power, and is started with more care.

    If it voted with what is left, it and the one that was away would be a majority without what was acknowledged.
    """
    at, nodes = world.network.at, world.nodes
    for node in nodes:
        node.fsync = "never"

    def part() -> None:
        away = next(node for node in nodes if node.process is not None and node.process.hub.sequencer)
        kept, crashed = [node for node in nodes if node is not away]
        cut_off(world, away)
        assert crashed.process is not None
        with crashed.machine.acting(crashed.process.loop):
            crashed.process.log.sync()  # the system writes by itself now and then

        def crash() -> None:
            kept.end("killed")
            crashed.end("without power")
            crashed.fsync = "always"
            crashed.start()
            world.cut.clear()

        at(world.network.now + 3, crash)
        at(world.network.now + 12, kept.start)

    at(4.0, part)


def cut_off(world: World, node: Node) -> None:
    nodes = world.nodes
    world.cut |= {(a.machine, b.machine) for a in nodes for b in nodes if (a is node) != (b is node)}


def test_a_setting_that_is_raised_after_a_crash_brings_nothing_back() -> None:
    world = world_of(1, raise_the_setting_after_a_crash, **{**SAFE, "seconds": 20.0})
    assert world.happened["Recovery"]


def test_a_node_that_forgets_how_its_log_was_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets_how_the_log_was_written(monkeypatch)
    with pytest.raises(BrokenPromiseError, match=LOST):
        world_of(1, raise_the_setting_after_a_crash, **{**SAFE, "seconds": 20.0})


def test_nodes_that_fetch_little_at_a_time_show_groups_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "SERVE_BYTES", 1)
    all_of(range(6), {**SAFE, **MUTATIONS["serves groups in parts"][1]})


def test_none_of_it_is_noticed_of_real_nodes() -> None:
    for place, (_, chosen, _) in enumerate(MUTATIONS.values()):
        all_of(range(place, place + 1), {**SAFE, **chosen})


def all_of(seeds: Sequence[int], chosen: dict[str, Any]) -> None:
    for seed in seeds:
        world_of(seed, **chosen)
