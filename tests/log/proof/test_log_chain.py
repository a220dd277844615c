"""The chain of a log on disk: the same whatever the files look like, and whatever happens to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.log.content import append, append_entries, batch, entries, seal_all, submitted

from headrace.log import Log
from headrace.log.damage import repair
from headrace.log.proof import chain as module
from headrace.log.proof import log_chain, resumable_sha256
from headrace.log.proof.chain import Chain
from headrace.log.proof.log_chain import FILE
from headrace.log.snapshots.snapshot import FrozenState, parse
from headrace.log.snapshots.start_after import begin, install
from headrace.message import Batch


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)


def fill(log: Log, count: int, each: int = 3) -> None:
    for place in range(count):
        append(log, *(b"%d.%d" % (log.tail, row) for row in range(each)), topic=f"t{place % 2}")


def recomputed(log: Log) -> Chain:
    """The chain of everything in a log, from its rows alone."""
    return Chain(log.uuid).extended((each.to_arrow() for each in log.scan(1)), log.head)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(submitted(), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_the_same_chain_for_any_segments_and_restarts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Batch, bool, bool]]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = Log.open(directory, fsync="never")
    for content, seals, restarts in steps:
        log.append(
            [replace(content, first=log.tail + (not content.is_entries), time=log.last_time, columns=None)]
        )
        log.commit(log.tail_op)
        if seals:
            seal_all(log)
            assert log.chain.kept.through == log.head
        if restarts:
            log.close()
            log = Log.open(directory, fsync="never")
    assert log.chain.at(log.head) == recomputed(log)
    # In any order: each is told from what was asked for before.
    for seq in [*range(log.head, -1, -2), *range(log.head + 1)]:
        told = Chain(log.uuid).extended((each.to_arrow() for each in log.scan(1, seq)), seq)
        assert log.chain.at(seq) == told
        assert log.chain.fingerprint(seq) == log.chain.fingerprint_at_hand(seq) == told.fingerprint
    log.close()


def test_a_reader_that_goes_on_costs_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compress(*_: object) -> None:
        raise AssertionError("what is not saved is digested by hashlib, which is hundreds of times as fast")

    log = Log.open(tmp_path, fsync="never")
    read: list[tuple[int, int]] = []
    found: dict[int, str | None] = {}
    with monkeypatch.context() as patched:
        patched.setattr(resumable_sha256, "_compress", compress)
        patched.setattr(resumable_sha256, "compress", compress)
        patched.setattr(log_chain, "_rows", _noted(log_chain._rows, read))
        for _ in range(7):
            fill(log, 1)
            found[log.head] = log.chain.fingerprint(log.head)
            assert all(log.chain.fingerprint(seq) == before for seq, before in found.items())
    assert read == [(last - 2, last) for last in range(3, 22, 3)]
    seal_all(log)
    log.close()
    log = Log.open(tmp_path, fsync="never")
    # A reader that has been away begins with the digests of whole blocks.
    monkeypatch.setattr(log_chain, "_rows", _noted(log_chain._rows, read))
    read.clear()
    assert log.chain.fingerprint(21) == found[21]
    assert read == [(17, 21)]
    assert found == {seq: log.chain.at(seq).fingerprint for seq in found}
    log.close()


def _noted(
    rows: Callable[[Log, int, int], Iterator[pa.RecordBatch]], read: list[tuple[int, int]]
) -> Callable[[Log, int, int], Iterator[pa.RecordBatch]]:
    def noted(log: Log, first: int, last: int) -> Iterator[pa.RecordBatch]:
        read.append((first, last))
        return rows(log, first, last)

    return noted


def test_digests_of_removed_messages_stay(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    fill(log, 4)
    before = recomputed(log)
    for _ in range(5):
        fill(log, 1)
        seal_all(log)
    whole = recomputed(log)
    log.write_snapshot(log.head_op, log.head, {})
    log.retain(0, retain_bytes=0, retain_us=None, holds={})
    assert log.first == log.head + 1
    log.close()
    log = Log.open(tmp_path, fsync="never")
    assert log.chain.kept == whole
    assert whole.digest(0) == before.digest(0)
    fill(log, 1, 1)
    # The open block goes on, though nobody has its beginning any more.
    assert log.chain.at(log.head).open_digest != whole.open_digest
    assert log.chain.at(log.head).value == whole.value
    assert log.chain.fingerprint(log.head) == log.chain.at(log.head).fingerprint is not None
    log.close()


def test_a_chain_that_is_gone_or_damaged_is_made_again(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    for _ in range(3):
        fill(log, 3)
        seal_all(log)
    whole = recomputed(log)
    log.close()
    for damage in (None, b"", b"nonsense", (tmp_path / FILE).read_bytes()[:-1]):
        if damage is None:
            (tmp_path / FILE).unlink()
        else:
            (tmp_path / FILE).write_bytes(damage)
        log = Log.open(tmp_path, fsync="never")
        assert log.chain.kept.through == 0
        while log.prove_next():
            pass
        assert log.chain.kept == whole
        log.close()
        assert Chain.parse((tmp_path / FILE).read_bytes(), "file") == whole


def test_without_its_past_a_log_knows_what_it_has(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    for _ in range(4):
        fill(log, 3)
        seal_all(log)
    whole = recomputed(log)
    log.write_snapshot(log.head_op, log.head, {})
    size = sum(segment.size for segment in log.segments[2:])
    log.retain(0, retain_bytes=size, retain_us=None, holds={})
    assert log.first == 19
    log.close()
    (tmp_path / FILE).unlink()
    log = Log.open(tmp_path, fsync="never")
    while log.prove_next():
        pass
    kept = log.chain.kept
    assert (kept.value, kept.base) == (None, 3)
    assert kept.digest(3) == whole.digest(3) != None  # noqa: E711
    log.close()


def test_a_chain_of_another_log_does_not_count(tmp_path: Path) -> None:
    one, other = Log.open(tmp_path / "one", fsync="never"), Log.open(tmp_path / "other", fsync="never")
    fill(one, 3)
    seal_all(one)
    fill(other, 4)
    seal_all(other)
    one.close()
    other.close()
    (tmp_path / "one" / FILE).write_bytes((tmp_path / "other" / FILE).read_bytes())
    one = Log.open(tmp_path / "one", fsync="never")
    assert one.chain.at(one.head) == recomputed(one)
    one.close()


def test_a_log_that_becomes_another_has_the_others_chain(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    assert log.chain.at(0).uuid == log.uuid
    log.adopt(UUID(int=7))
    fill(log, 3)
    assert log.chain.at(log.head) == recomputed(log)
    assert log.chain.kept.uuid == UUID(int=7)
    log.close()


def test_messages_that_were_removed_unsealed_leave_a_chain_that_begins_later(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    fill(log, 2)
    seal_all(log)
    fill(log, 4)
    log.rotate()
    log.write_snapshot(log.head_op, log.head, {})
    log.let_go(0, retain_bytes=0, retain_us=None, holds={}, unsealed=True)
    assert log.first == 19
    fill(log, 6)
    seal_all(log)
    while log.prove_next():
        pass
    kept = log.chain.kept
    assert (kept.through, kept.base, kept.value) == (36, 3, None)
    assert kept.digest(3) is not None
    log.close()


def test_a_chain_that_is_ahead_of_its_log_is_cut_back_before_its_numbers_are_given_again(
    tmp_path: Path,
) -> None:
    """As after a power failure without syncs, which the chain survived and the newest segment did not."""
    log = Log.open(tmp_path / "lost", fsync="never")
    fill(log, 4)
    seal_all(log)
    ahead = log.chain.kept.serialize()
    log.close()
    other = Log.open(tmp_path / "log", fsync="never", uuid=log.uuid)
    fill(other, 2)
    seal_all(other)
    other.close()
    (tmp_path / "log" / FILE).write_bytes(ahead)
    for _ in range(2):
        # Opened and not sealed, then opened again with more messages than the chain had.
        other = Log.open(tmp_path / "log", fsync="never")
        append(other, b"another", b"another", b"another", b"another")
        other.close()
    other = Log.open(tmp_path / "log", fsync="never")
    assert other.tail > 12
    seal_all(other)
    while other.prove_next():
        pass
    assert other.chain.kept == recomputed(other)
    other.write_snapshot(other.head_op, other.head, {})
    other.retain(0, retain_bytes=0, retain_us=None, holds={})
    other.close()
    # Nor does one that cannot be cut back keep the log from sealing.
    chain = Chain(other.uuid, 800, 0, bytes(32 * 100))
    (tmp_path / "log" / FILE).write_bytes(chain.serialize())
    other = Log.open(tmp_path / "log", fsync="never")
    fill(other, 1)
    seal_all(other)
    assert (other.chain.kept.through, other.chain.kept.value) == (other.head, None)
    other.close()


def test_what_is_cut_back_was_never_in_the_chain(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    fill(log, 3)
    seal_all(log)
    log.append([batch(log.tail + 1, b"lost", b"lost", time=log.last_time)])
    log.rotate()
    log.append([batch(log.tail + 1, b"lost", time=log.last_time)])
    assert log.seal_next() is None
    log.cut_back(log.head_op)
    fill(log, 2)
    seal_all(log)
    assert log.chain.kept == recomputed(log)
    log.close()


@pytest.mark.parametrize("seq", [0, 5, 8, 17, 19])
@pytest.mark.parametrize("how", ["copy", "install"])
def test_a_late_start_goes_on_with_the_same_chain(tmp_path: Path, seq: int, how: str) -> None:
    log = Log.open(tmp_path / "original", fsync="never")
    while log.tail < seq:
        append(log, b"%d" % log.tail)
        append_entries(log, b"entry")
    if seq == 17:
        seal_all(log)
    taken = parse(log.packed_snapshot(FrozenState(log.head_op, log.head, {"part": b"state"})))
    fill(log, 4)
    if how == "copy":
        begin(tmp_path / "late", taken, sync=False)
    else:
        install(tmp_path / "late", taken, log.last_time)
    late = Log.open(tmp_path / "late", fsync="never")
    if seq or how == "install":
        assert late.snapshot is not None
        assert late.snapshot.sections == {"part": b"state"}
    for place, each in enumerate(log.scan_ops(taken.op + 1)):
        late.append([each])
        late.commit(late.tail_op)
        if place % 3 == 1:
            seal_all(late)
    seal_all(late)
    assert late.chain.kept == recomputed(log)
    log.close()
    late.close()


def test_a_snapshot_from_before_the_newest_seal_has_its_own_chain(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    fill(log, 4)
    state = FrozenState(log.head_op, log.head, {})
    expected = recomputed(log)
    fill(log, 4)
    seal_all(log)
    sections = parse(log.packed_snapshot(state)).sections
    assert Chain.parse(sections["chain"], "section") == expected
    # Once what it needs is removed, a copy has to begin without: it is told nothing rather than something wrong.
    log.write_snapshot(log.head_op, log.head, {})
    log.retain(0, retain_bytes=0, retain_us=None, holds={})
    assert Chain.parse(parse(log.packed_snapshot(state)).sections["chain"], "section") == expected
    log.close()
    log = Log.open(tmp_path, fsync="never")
    assert dict(parse(log.packed_snapshot(state)).sections) == {}
    log.close()


def test_a_repair_keeps_the_digests_of_what_it_keeps(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    for _ in range(3):
        fill(log, 4)
        seal_all(log)
    log.append([entries(log.tail, b"entry", time=log.last_time)])
    log.close()
    newest = max(tmp_path.glob("*.arrow"))
    newest.write_bytes(newest.read_bytes()[:-40] + bytes(40))
    newest.with_suffix(".index").unlink()
    repair.repair(tmp_path, "before")
    log = Log.open(tmp_path, fsync="never")
    while log.prove_next():
        pass
    assert log.chain.at(log.head) == recomputed(log)
    log.close()
