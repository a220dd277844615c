"""Stages, commits and the marks of queries."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from headrace.errors import RefusedError, StorageError
from headrace.hub.publishing import staging as staging_module
from headrace.hub.publishing.cover import cover_of
from headrace.hub.publishing.idempotent import published
from headrace.hub.publishing.staging import (
    MARKS,
    SUMMED_UP,
    Load,
    Marked,
    Marks,
    Queries,
    StagedCommits,
    StagedRows,
    Staging,
    loaded,
    mark,
    remove_all,
)
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Commit, Published
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.log.checksum import crc32c
from headrace.message import Batch, Run
from headrace.wire.link.message import PUBLISHED

AB = Commit(digest=12, token=34)


def rows(*payloads: bytes) -> pa.RecordBatch:
    columns = [[""] * len(payloads), [[]] * len(payloads), [[]] * len(payloads), list(payloads)]
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, PUBLISHED, strict=True)], schema=PUBLISHED
    )


def stage(*payloads: bytes, query: str = "q", batch: int = 1, deadline: float = 10.0) -> StagedRows:
    return StagedRows(query, batch, 0, published(rows(*payloads)), deadline)


def test_past_the_memory_there_is_the_disk(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "stages", max_memory=stage(b"a").size)
    small, large = stage(b"a"), stage(b"b" * 1000)
    assert staging.add("s", small) is None
    path = staging.add("l", large)
    assert path is not None
    large.spill(path)
    assert path.exists()
    assert [list(each.run) for each in loaded([small, large])] == [[b"a"], [b"b" * 1000]]
    remove_all(staging.remove(["l", "nobody"]))
    assert not path.exists()
    with pytest.raises(RefusedError):
        large.load()
    assert staging.add("again", stage(b"")) is not None  # the small one still has the memory
    remove_all(staging.remove(["s"]))
    assert staging.add("room", stage(b"a")) is None


def test_stages_are_bounded_and_do_not_last(tmp_path: Path) -> None:
    staging = Staging(tmp_path, max_bytes=2 * stage(b"a").size)
    for name, deadline in (("a", 1.0), ("b", 3.0)):
        staging.add(name, stage(b"a", deadline=deadline))
    with pytest.raises(RefusedError) as full:
        staging.add("c", stage(b"a"))
    assert full.value.code == "limit"
    assert len(staging.expire(2.0)) == 1
    assert len(staging) == 1
    with pytest.raises(RefusedError) as missing:
        staging.pick("q", 1, ["a"])
    assert missing.value.code == "missing"


def test_a_commit_names_its_own_stages_once_each(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add("a", stage(b"a"))
    for query, batch, names in (("p", 1, ["a"]), ("q", 2, ["a"]), ("q", 1, ["a", "a"])):
        with pytest.raises(RefusedError) as conflict:
            staging.pick(query, batch, names)
        assert conflict.value.code == "conflict"


def test_only_so_many_queries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "MAX_QUERIES", 3)
    queries = Queries()
    for seq, name in enumerate(["a", "b", "c", "a", "d"], 2):
        queries.apply(name, b'{"batch":1,"rows":1}', seq, seq)
    assert list(queries) == ["c", "a", "d"]  # the one not heard of for longest is forgotten
    loaded_queries = Queries()
    loaded_queries.load(queries.dump())
    assert list(loaded_queries) == ["c", "a", "d"]


def test_writes_that_are_no_streams_push_out_each_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may come back after a weekend, in which another query has written a batch every second."""
    monkeypatch.setattr(staging_module, "MAX_QUERIES", 2)
    monkeypatch.setattr(staging_module, "MAX_WRITES", 3)
    queries = Queries()
    names = ["a", *(f"write-{number}" for number in range(9)), "b", "write-6", "write-9"]
    for seq, name in enumerate(names, 2):
        queries.apply(name, b'{"batch":1,"rows":1}', seq, seq)
    assert list(queries) == ["a", "write-8", "b", "write-6", "write-9"]
    queries.apply("c", b'{"batch":1,"rows":1}', 99, 99)
    assert list(queries) == ["write-8", "b", "write-6", "write-9", "c"]
    again = Queries()
    again.load(queries.dump())
    again.apply("write-10", b'{"batch":1,"rows":1}', 100, 100)
    assert list(again) == ["b", "write-6", "write-9", "c", "write-10"]
    monkeypatch.setattr(staging_module, "MAX_WRITES", 1)
    again.load(queries.dump())
    assert list(again) == ["b", "write-9", "c"]


def test_the_last_batches_of_a_query_are_remembered() -> None:
    queries = Queries()
    for batch in range(20):
        queries.apply("q", mark("q", batch, 2, Commit(batch, batch, "me")).run[0], 2 * batch, batch)
    assert queries["q"].client == "me"
    assert [each.batch for each in queries["q"].marks] == list(range(20 - MARKS, 20))
    assert queries["q"].newest == Marked(19, 2, 38, 19, 19)
    again = Queries()
    again.load(queries.dump())
    assert again == queries


@pytest.mark.parametrize("field", ["batch", "rows", "digest", "token"])
def test_a_mark_that_no_snapshot_could_keep_changes_nothing(field: str) -> None:
    queries = Queries()
    state = HubState(queries)
    payload = msgspec.json.encode({"batch": 1, "rows": 0}).decode()
    state.apply(entry("query", "q", payload.encode()).numbered(1, 0, 0, 1))
    wrong = payload[:-1] + f', "{field}": {10**30}}}'
    state.apply(entry("query", "q", wrong.encode()).numbered(2, 0, 0, 1))
    assert state.unread == 1
    assert queries["q"] == Marks("", (Marked(1, 0, 0),))
    assert state.sections()


def test_a_file_that_the_disk_has_no_room_for_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(bytes(data)[:10])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    kept = stage(b"a")
    with pytest.raises(StorageError):
        kept.spill(tmp_path / "stages" / "a.rows")
    assert list((tmp_path / "stages").iterdir()) == []
    assert len(kept.load()) == len(stage(b"a").load())


def test_files_of_an_earlier_run_are_swept(tmp_path: Path) -> None:
    (tmp_path / "old.rows").write_bytes(b"x")
    (tmp_path / "foreign").write_bytes(b"x")
    Staging(tmp_path).sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["foreign"]


def test_a_commit_is_one_append_and_a_function_of_the_log(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log")
    queries, staging = Queries(), Staging(tmp_path / "stages")
    hub = Hub(log, 1, max_uncommitted=1 << 20, state=HubState(queries))
    commits = StagedCommits(hub, queries, staging)
    for name, payload in (("a", b"1"), ("b", b"2")):
        staging.add(name, stage(payload, payload))
    told: list[object] = []
    again: list[str] = []
    begun = commits.begin("q", 1, ["a", "b"], lambda: None, AB)
    assert isinstance(begun, Load)
    assert commits.begin("q", 1, ["a", "b"], lambda: again.append("now"), AB) is None
    batches = loaded(begun.stages)
    commits.append("q", 1, batches, ["a", "b"], told.append, AB)
    hub.turn(1)
    assert told == [Published(1, 4, op=5)]
    assert again == ["now"]
    assert (log.head, log.head_op) == (4, 5)
    # A repeat names all that is committed: the batch is somewhere in it.
    hub.submit(Batch(Run.one(b"later")))
    hub.turn(2)
    assert commits.begin("q", 1, ["a", "b"], lambda: None, AB) == Published(1, 4, op=6)
    begun = commits.begin("q", 1, [], lambda: None, Commit())
    assert isinstance(begun, Load)
    assert begun.known is not None
    with pytest.raises(RefusedError, match="conflict"):
        commits.compare("q", begun.known, cover_of(loaded(begun.stages)))
    with pytest.raises(RefusedError, match="conflict"):
        commits.begin("q", 0, [], lambda: None, Commit())
    assert len(staging) == 0
    restored = Queries()
    HubState(restored).restore(log)
    assert restored == queries == {"q": Marks("", (Marked(1, 4, 4, *AB[:2]),))}
    reloaded = Queries()
    reloaded.load(queries.dump())
    assert reloaded == queries
    log.close()


def test_a_commit_that_fails_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(tmp_path / "log")
    queries, staging = Queries(), Staging(tmp_path / "stages")
    hub = Hub(log, 1, max_uncommitted=1 << 20, state=HubState(queries))
    commits = StagedCommits(hub, queries, staging)
    staging.add("a", stage(b"1"))
    told: list[object] = []

    def fail(_: object) -> None:
        raise StorageError("no")

    for _ in range(2):
        begun = commits.begin("q", 1, ["a"], lambda: None, AB)
        assert isinstance(begun, Load)
        batches = loaded(begun.stages)
        with monkeypatch.context() as patch:
            if not told:
                patch.setattr(log, "append", fail)
            commits.append("q", 1, batches, ["a"], told.append, AB)
            hub.turn(1)
    assert isinstance(told[0], StorageError)
    assert told[1] == Published(1, 1, op=2)
    log.close()


def test_a_stage_counts_what_its_rows_keep_alive() -> None:
    small = StagedRows("q", 1, 0, published(rows(b"a")), 10.0)
    assert StagedRows("q", 1, 0, published(rows(b"a")), 10.0, held=5000).size == 5000
    assert StagedRows("q", 1, 0, published(rows(b"a")), 10.0, held=1).size == small.size


def test_long_payloads_that_stay_in_memory_are_summed_up(tmp_path: Path) -> None:
    long, short = stage(bytes(SUMMED_UP - 1), b"x"), stage(b"short")
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
    long = stage(bytes(SUMMED_UP))
    long.spill(tmp_path / "long.rows")
    long.sum_up()
    assert [batch.run.summed for batch in loaded([long])] == [None]
