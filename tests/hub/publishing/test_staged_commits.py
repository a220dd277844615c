"""Commits of stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.publishing.staged import piece, stage

from headrace.errors import RefusedError, StorageError
from headrace.hub.publishing.query_marks import Marked, Marks, Queries
from headrace.hub.publishing.staged_commits import Load, StagedCommits
from headrace.hub.publishing.staging import Staging, covered, loaded
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Commit, Published
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.message import Batch, Run

AB = Commit(digest=12, token=34)


def test_a_commit_is_one_append_and_a_function_of_the_log(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log")
    queries, staging = Queries(), Staging(tmp_path / "stages")
    hub = Hub(log, 1, max_uncommitted=1 << 20, state=HubState(queries))
    commits = StagedCommits(hub, queries, staging)
    for name, payload in (("a", b"1"), ("b", b"2")):
        staging.add(name, 0, stage(), piece(payload, payload), 0.0)
    told: list[object] = []
    again: list[str] = []
    begun = commits.begin("q", 1, ["a", "b"], lambda: None, AB)
    assert isinstance(begun, Load)
    assert commits.begin("q", 1, ["a", "b"], lambda: again.append("now"), AB) is None
    batches = loaded(begun.pieces)
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
        commits.compare("q", begun.known, covered(begun.pieces))
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
    staging.add("a", 0, stage(), piece(b"1"), 0.0)
    told: list[object] = []

    def fail(_: object) -> None:
        raise StorageError("no")

    for _ in range(2):
        begun = commits.begin("q", 1, ["a"], lambda: None, AB)
        assert isinstance(begun, Load)
        batches = loaded(begun.pieces)
        with monkeypatch.context() as patch:
            if not told:
                patch.setattr(log, "append", fail)
            commits.append("q", 1, batches, ["a"], told.append, AB)
            hub.turn(1)
    assert isinstance(told[0], StorageError)
    assert told[1] == Published(1, 1, op=2)
    log.close()
