"""The outbox's file: what is found after a crash is whole requests, from the first on, or the damage by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tests.hub.publishing.relaying.test_publishes import Root
from tests.hub.publishing.storing.edge import Edge

from headrace.errors import DamagedError
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.storing.kept_requests import KeptReader, KeptRequest
from headrace.hub.publishing.storing.outbox import Outbox
from headrace.log import Log

REQUESTS = [[b"door0", b"door1"], [b"p0"], [b"door2" * 40], [b"p1", b"p2"]]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, UUID]:
    """An outbox with some requests that was not closed, as after a crash, and the history it is for."""
    edge = Edge(tmp_path / "edge", Root(tmp_path / "root"))
    edge.away()
    edge.submit("door0", "door1")
    edge.turn()
    edge.publish("p", 0, "p0")
    edge.turn()
    edge.submit("door2" * 40)
    edge.turn()
    edge.publish("p", 1, "p1", "p2")
    edge.turn()
    shutil.copytree(tmp_path / "edge" / "outbox", tmp_path / "copy")
    (tmp_path / "copy" / "lock").unlink()
    return tmp_path / "copy", edge.log.uuid


def requests(directory: Path, history: UUID) -> list[list[bytes]]:
    """The payloads of all requests that an outbox has."""
    log = Log.open(directory, fsync="never")
    try:
        outbox = Outbox(log, history, PublisherNumbers(), most=1 << 20)
        found = read(outbox)
        assert sum(len(each.ops) for each in found) == outbox.state.waiting.requests
        assert sum(each.terms.messages for each in found) == outbox.state.waiting.messages
        return [[payload for batch in each.rows for payload in batch.run] for each in found]
    finally:
        log.close()


def read(outbox: Outbox) -> list[KeptRequest]:
    reader = KeptReader(1, outbox.state.renamed, ())
    return [*reader.take(list(outbox.hub.log.scan_ops(1))), *reader.rest()]


def tail_of(directory: Path) -> Path:
    (path,) = directory.glob("*.open")
    return path


def test_all_of_it_is_there(kept: tuple[Path, UUID]) -> None:
    assert requests(*kept) == REQUESTS


def test_a_torn_end_costs_whole_requests_from_the_last_on(kept: tuple[Path, UUID], tmp_path: Path) -> None:
    directory, history = kept
    size = tail_of(directory).stat().st_size
    seen = set()
    for end in range(size - 1, size - 700, -7):
        torn = tmp_path / f"torn{end}"
        shutil.copytree(directory, torn)
        with tail_of(torn).open("r+b") as file:
            file.truncate(end)
        found = requests(torn, history)
        assert found == REQUESTS[: len(found)]
        seen.add(len(found))
    assert len(seen) > 2


def test_a_flipped_bit_is_damage_or_a_torn_end_and_never_another_message(
    kept: tuple[Path, UUID], tmp_path: Path
) -> None:
    directory, history = kept
    random = Random(7)
    content = tail_of(directory).read_bytes()
    damaged = 0
    for number, at in enumerate(random.sample(range(len(content)), 60)):
        flipped = tmp_path / f"flipped{number}"
        shutil.copytree(directory, flipped)
        changed = bytearray(content)
        changed[at] ^= 1 << random.randrange(8)
        tail_of(flipped).write_bytes(changed)
        try:
            found = requests(flipped, history)
        except DamagedError:
            damaged += 1
        else:
            assert found == REQUESTS[: len(found)]
    assert damaged


def test_the_state_is_a_function_of_the_log(tmp_path: Path) -> None:
    """A request is kept between two notes that are under way: what is remembered is the same after a crash."""
    edge = Edge(tmp_path / "edge", Root(tmp_path / "root"))
    edge.away()
    edge.publish("p", 0, "p0")
    edge.turn()
    edge.publish("q", 0, "q0")
    edge.turn()
    outbox = edge.outbox
    one, two = read(outbox)
    outbox.rename(one, 0, "new", lambda _: None)
    outbox.settle(one, 1, 1, one.terms.size)
    edge.publish("p", 1, "p1")
    outbox.settle(two, 1, 1, two.terms.size)
    edge.turn()
    live = outbox.state.dump(), outbox.numbers.dump()
    edge.crash()
    assert (edge.outbox.state.dump(), edge.outbox.numbers.dump()) == live
