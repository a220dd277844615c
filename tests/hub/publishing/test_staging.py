"""Stages: where they are kept, who pays for them, and when they are given back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.hub.publishing.staged import Budget, piece, rows, stage

from headrace.errors import FullError, RefusedError, StorageError
from headrace.hub.publishing.idempotent import published
from headrace.hub.publishing.staging import (
    KEPT_SECONDS,
    LEAST_COST,
    QUIET_SECONDS,
    SUMMED_UP,
    StagedPiece,
    Staging,
    covered,
    loaded,
    remove_all,
)
from headrace.log import Log
from headrace.log.checksum import crc32c


def test_past_the_memory_there_is_the_disk(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "stages", max_memory=LEAST_COST)
    small, large = piece(b"a"), piece(b"b" * 1000)
    assert staging.add("s", 0, stage(), small, 0.0) == (None, [])
    path, _ = staging.add("l", 0, stage(), large, 0.0)
    assert path is not None
    expected = covered([piece(b"a"), piece(b"b" * 1000)])
    large.spill(path)
    assert path.exists()
    assert [list(each.run) for each in loaded([small, large])] == [[b"a"], [b"b" * 1000]]
    assert covered([small, large]) == expected
    remove_all(staging.remove(["l", "nobody"]))
    assert not path.exists()
    with pytest.raises(RefusedError):
        large.load()
    assert (
        staging.add("again", 0, stage(), piece(b""), 0.0)[0] is not None
    )  # the small one still has the memory
    remove_all(staging.remove(["s"]))
    assert staging.add("room", 0, stage(), piece(b"a"), 0.0)[0] is None


def test_a_stage_has_any_number_of_pieces_in_their_own_order(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    budget = Budget(10 * LEAST_COST)
    for number in (2, 0, 1):
        staging.add("a", number, stage(budget=budget), piece(b"%d" % number), 0.0)
    # Its answer was lost with the tube: the piece is sent again, and counts once.
    _, replaced = staging.add("a", 1, stage(budget=budget), piece(b"again"), 0.0)
    assert len(replaced) == 1
    assert budget.taken == 3 * LEAST_COST
    picked = staging.pick("q", 1, ["a"])
    assert [list(each.run) for each in loaded(picked)] == [[b"0"], [b"again"], [b"2"]]
    staging.remove_piece("a", 1, replaced[0])  # too late: another one is in its place
    assert len(staging.pick("q", 1, ["a"])) == 3
    staging.remove_piece("a", 1, picked[1])
    with pytest.raises(RefusedError, match="piece 1 ") as missing:
        staging.pick("q", 1, ["a"])
    assert missing.value.code == "missing"
    assert budget.taken == 2 * LEAST_COST


def test_a_budget_is_kept_and_given_back(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    budget, other = Budget(2 * LEAST_COST), Budget(LEAST_COST)
    for name in ("a", "b"):
        staging.add(name, 0, stage(budget=budget), piece(b"a"), 0.0)
    with pytest.raises(RefusedError, match="commit or abort") as full:
        staging.add("c", 0, stage(budget=budget), piece(b"a"), 0.0)
    assert full.value.code == "limit"
    staging.add("theirs", 0, stage(query="p", budget=other), piece(b"a"), 0.0)  # others do not feel it
    assert len(staging.remove(["a"])) == 1
    staging.add("c", 0, stage(budget=budget), piece(b"a"), 0.0)
    assert len(staging) == 3


def test_what_a_silent_query_staged_makes_room_for_its_clients_others(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    budget, other = Budget(2 * LEAST_COST), Budget(LEAST_COST)
    staging.add("theirs", 0, stage(query="theirs", budget=other), piece(b"a"), 0.0)
    staging.add("old", 0, stage(query="old", budget=budget), piece(b"a"), 0.0)
    staging.add("new", 0, stage(query="new", budget=budget), piece(b"a"), QUIET_SECONDS - 1)
    with pytest.raises(RefusedError):
        staging.add("more", 0, stage(query="new", budget=budget), piece(b"a"), QUIET_SECONDS - 1)
    _, removed = staging.add("more", 0, stage(query="new", budget=budget), piece(b"a"), QUIET_SECONDS)
    assert len(removed) == 1
    with pytest.raises(RefusedError) as missing:
        staging.pick("old", 1, ["old"])
    assert missing.value.code == "missing"
    assert len(staging.pick("theirs", 1, ["theirs"])) == 1


def test_stages_wait_for_a_day_and_older_batches_not_at_all(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    for batch in (1, 2, 3):
        staging.add(f"b{batch}", 0, stage(batch=batch), piece(b"a"), float(batch))
    staging.add("other", 0, stage(query="other"), piece(b"a"), 0.0)
    assert len(staging.outdated("q", 2)) == 1
    assert len(staging.expire(KEPT_SECONDS - 1)) == 0
    assert len(staging.expire(KEPT_SECONDS)) == 1
    assert [len(staging.pick("q", batch, [f"b{batch}"])) for batch in (2, 3)] == [1, 1]
    assert len(staging.expire(KEPT_SECONDS + 3)) == 2
    assert len(staging) == 0


def test_a_commit_names_its_own_stages_once_each(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add("a", 0, stage(), piece(b"a"), 0.0)
    for query, batch, names in (("p", 1, ["a"]), ("q", 2, ["a"]), ("q", 1, ["a", "a"])):
        with pytest.raises(RefusedError) as conflict:
            staging.pick(query, batch, names)
        assert conflict.value.code == "conflict"
    for another in (stage(query="p"), stage(batch=2), stage(budget=Budget(1 << 30))):
        with pytest.raises(RefusedError) as conflict:
            staging.add("a", 1, another, piece(b"a"), 0.0)
        assert conflict.value.code == "conflict"


def test_a_piece_that_is_removed_while_it_is_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, write = piece(b"a"), Path.write_bytes

    def meanwhile(path: Path, data: bytes) -> int:
        kept.remove()
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", meanwhile)
    kept.spill(tmp_path / "a.rows")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RefusedError):
        kept.load()


def test_the_log_keeps_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1000, f_frsize=4096))
    with pytest.raises(FullError, match="only 3 MiB are free"):
        piece(b"a").spill(tmp_path / "a.rows")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_disk_has_no_room_for_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(bytes(data)[:10])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    kept = piece(b"a")
    with pytest.raises(StorageError):
        kept.spill(tmp_path / "stages" / "a.rows")
    assert list((tmp_path / "stages").iterdir()) == []
    assert len(kept.load()) == len(piece(b"a").load())


def test_files_of_an_earlier_run_are_swept(tmp_path: Path) -> None:
    (tmp_path / "old.rows").write_bytes(b"x")
    (tmp_path / "foreign").write_bytes(b"x")
    Staging(tmp_path).sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["foreign"]


def test_a_stage_counts_what_its_rows_keep_alive() -> None:
    assert StagedPiece(published(rows(b"a")), held=5 * LEAST_COST).size == 5 * LEAST_COST
    assert piece(b"a").size == LEAST_COST
    assert piece(bytes(10 * LEAST_COST)).size > 10 * LEAST_COST


def test_long_payloads_that_stay_in_memory_are_summed_up(tmp_path: Path) -> None:
    long, short = piece(bytes(SUMMED_UP - 1), b"x"), piece(b"short")
    for each in (long, short):
        each.sum_up()
    found = loaded([long, short])
    assert [batch.run.summed for batch in found] == [crc32c(bytes(SUMMED_UP - 1) + b"x"), None]
    log = Log.open(tmp_path)
    log.append([batch.numbered(1 + 2 * place, 1 + 2 * place, 0, 0) for place, batch in enumerate(found)])
    log.commit(3)
    assert [payload for batch in log.read(1, max_bytes=1 << 22) for payload in batch.run] == [
        bytes(SUMMED_UP - 1), b"x", b"short"
    ]  # fmt: skip
    log.close()


def test_what_is_on_the_disk_is_not_summed_up(tmp_path: Path) -> None:
    long = piece(bytes(SUMMED_UP))
    long.spill(tmp_path / "long.rows")
    long.sum_up()
    assert [batch.run.summed for batch in loaded([long])] == [None]
