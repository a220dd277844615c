from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.durable_state import (
    MAX_NODES,
    STATE_FILE,
    DurableState,
    StoredState,
    is_intact,
    load,
    open_log,
    parse_testimony,
    remember,
    save,
    serialize_testimony,
)
from headrace.cluster.history import MAX_SPANS, History
from headrace.errors import DamagedError, MalformedError, StorageError
from headrace.log import Log, watermark
from headrace.log.checksum import crc32c
from headrace.message import Batch, Run

STATE = DurableState(9, 7, 1234, True, (7, 17, 27), {7: 2, 17: 1}, History([(1, 1), (7, 1001)]))


class TestTestimony:
    def test_the_documented_bytes(self) -> None:
        state = DurableState(voter=True, nodes=(7, 17, 27), incarnations={7: 1})
        bulk = serialize_testimony(state, History([(1, 1), (3, 1001)]))
        page = (Path(__file__).parents[2] / "docs" / "protocols" / "parcel.md").read_text()
        assert bulk.hex(" ") in page

    def test_round_trip(self) -> None:
        heard = parse_testimony(serialize_testimony(STATE, STATE.history))
        assert (heard.voter, heard.nodes, heard.incarnations) == (True, (7, 17, 27), {7: 2, 17: 1})
        assert heard.history == STATE.history

    @pytest.mark.parametrize(
        "content",
        [
            None,
            [],
            [2, True, [], {}],
            [2, True, [], {}, [], 0],
            [2, 1, [], {}, []],
            [1, True, [], {}, []],
            [3, True, [], {}, []],
            [2, True, [65_536], {}, []],
            [2, True, [-1], {}, []],
            [2, True, list(range(MAX_NODES + 1)), {}, []],
            [2, True, [], {7: -1}, []],
            [2, True, [], {7: 1 << 63}, []],
            [2, True, [], {"a": 1}, []],
            [2, True, [], {}, [[1]]],
            [2, True, [], {}, [[1, 1.5]]],
            [2, True, [], {}, [[2, 1], [1, 5]]],
            [2, True, [], {}, [[1, 5], [2, 4]]],
            [2, True, [], {}, [[1, 1], [1, 2]]],
            [2, True, [], {}, [[n, n] for n in range(1, MAX_SPANS + 2)]],
        ],
    )
    def test_what_is_none_is_refused(self, content: Any) -> None:
        with pytest.raises(MalformedError):
            parse_testimony(msgspec.msgpack.encode(content))

    def test_a_node_that_numbers_entries_is_told_to_be_of_another_release(self) -> None:
        with pytest.raises(MalformedError, match="of form 2: all nodes need the same release"):
            parse_testimony(msgspec.msgpack.encode([True, [7, 17, 27], {7: 1}, [[1, 1]]]))

    @given(st.binary(max_size=200))
    def test_any_bytes_are_a_testimony_or_refused(self, bulk: bytes) -> None:
        try:
            heard = parse_testimony(bulk)
        except MalformedError:
            return
        assert (
            parse_testimony(
                serialize_testimony(
                    DurableState(0, 0, 0, heard.voter, heard.nodes, heard.incarnations), heard.history
                )
            )
            == heard
        )


class TestFile:
    def test_round_trip(self, tmp_path: Path) -> None:
        path = tmp_path / "cluster"
        assert load(path) is None
        save(path, StoredState(STATE, "a boot", "a log"))
        assert load(path) == StoredState(STATE, "a boot", "a log")
        save(path, StoredState(DurableState(), "", ""))
        assert load(path) == StoredState(DurableState(), "", "")
        assert [each.name for each in tmp_path.iterdir()] == ["cluster"]

    def test_every_flipped_bit_and_every_cut_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "cluster"
        save(path, StoredState(STATE, "a boot", "a log"))
        whole = path.read_bytes()
        for bit in range(8 * len(whole)):
            broken = bytearray(whole)
            broken[bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            with pytest.raises(DamagedError, match="cluster's state"):
                load(path)
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(DamagedError):
                load(path)

    @pytest.mark.parametrize(
        "content", [b"", msgspec.msgpack.encode({"view": -1}), msgspec.msgpack.encode({})]
    )
    def test_another_form_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "cluster"
        path.write_bytes(b"HRCLST\x02\n" + crc32c(content).to_bytes(4, "little") + content)
        with pytest.raises(DamagedError, match="unknown form"):
            load(path)

    def test_a_state_of_a_log_whose_entries_had_numbers_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "cluster"
        save(path, StoredState(STATE, "a boot", "a log"))
        path.write_bytes(path.read_bytes().replace(b"HRCLST\x02", b"HRCLST\x01"))
        with pytest.raises(
            StorageError, match=r"version 1 .*: begin with an empty data directory"
        ) as refused:
            load(path)
        assert not isinstance(refused.value, DamagedError)


Mode = Literal["always", "interval", "never"]
MODES: list[Mode] = ["always", "interval", "never"]


class TestIntact:
    """Whether a node lost nothing follows from how its log was written, not from what is configured now."""

    def written(self, directory: Path, fsync: Mode, count: int = 3) -> None:
        """Write operations as a node does whose ``log.fsync`` is this one."""
        log, stored = open_log(directory, fsync=fsync, segment_bytes=1 << 20)
        remember(log, STATE if stored is None else stored.state)
        for _ in range(count):
            following = log.tail + 1
            log.append([Batch(Run.of([b"acknowledged"]), first=following, time=following, origin="tube")])
        log.close()

    def power_fails(self, directory: Path, lost: int = 10) -> None:
        """Lose the end of the log, and boot again."""
        tail = max(directory.glob("*.open"))
        os.truncate(tail, tail.stat().st_size - lost)
        stored = load(directory / STATE_FILE)
        assert stored is not None
        save(directory / STATE_FILE, replace(stored, boot="an earlier boot"))

    def intact(self, directory: Path, fsync: Mode) -> bool:
        log, stored = open_log(directory, fsync=fsync, segment_bytes=1 << 20)
        log.close()
        return is_intact(log, stored)

    @pytest.mark.parametrize("written", ["interval", "never"])
    @pytest.mark.parametrize("now", MODES)
    def test_a_log_written_with_less_is_not_made_whole_by_another_setting(
        self, tmp_path: Path, written: Mode, now: Mode
    ) -> None:
        self.written(tmp_path, written)
        self.power_fails(tmp_path)
        assert not self.intact(tmp_path, now)

    @pytest.mark.parametrize("now", MODES)
    def test_one_that_was_synced_before_it_counted_stays_whole_whatever_is_set_now(
        self, tmp_path: Path, now: Mode
    ) -> None:
        self.written(tmp_path, "always")
        self.power_fails(tmp_path, lost=0)
        assert self.intact(tmp_path, now)

    @pytest.mark.parametrize("weaker", ["interval", "never"])
    def test_a_setting_that_is_lowered_counts_from_the_first_append_on(
        self, tmp_path: Path, weaker: Mode
    ) -> None:
        self.written(tmp_path, "always")
        self.written(tmp_path, weaker)
        self.power_fails(tmp_path)
        assert not self.intact(tmp_path, "always")

    @pytest.mark.parametrize("weaker", ["interval", "never"])
    def test_a_setting_that_is_raised_counts_once_everything_is_on_the_disk(
        self, tmp_path: Path, weaker: Mode, synced: Callable[[], set[str]]
    ) -> None:
        self.written(tmp_path, weaker)
        log, _ = open_log(tmp_path, fsync=weaker, segment_bytes=1 << 20)
        log.rotate()
        assert log.seal_next() is not None
        log.append([Batch(Run.of([b"after"]), first=4, time=4, origin="tube")])
        log.close()
        synced().clear()
        log, stored = open_log(tmp_path, fsync="always", segment_bytes=1 << 20)
        assert is_intact(log, stored)
        kept = {each.name for each in tmp_path.iterdir() if each.suffix in {".open", ".arrow", ".index"}}
        assert len(kept) == 3
        if weaker == "never":
            assert synced() >= kept
        remember(log, STATE)
        log.close()
        self.power_fails(tmp_path, lost=0)
        assert self.intact(tmp_path, "always")

    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
        """Names of the files that were synced."""
        names: set[str] = set()

        def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
            def note(fd: int) -> None:
                names.add(Path(f"/proc/self/fd/{fd}").readlink().name)
                sync(fd)

            return note

        monkeypatch.setattr(os, "fsync", noting(os.fsync))
        monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
        return lambda: names

    def test_a_state_that_does_not_tell_was_written_with_the_least(self, tmp_path: Path) -> None:
        self.written(tmp_path, "always")
        path = tmp_path / STATE_FILE
        body = msgspec.msgpack.decode(path.read_bytes()[12:])
        del body["fsync"]
        encoded = msgspec.msgpack.encode(body)
        path.write_bytes(path.read_bytes()[:8] + crc32c(encoded).to_bytes(4, "little") + encoded)
        stored = load(path)
        assert stored is not None
        assert stored.fsync == "never"
        assert self.intact(tmp_path, "always")
        self.power_fails(tmp_path, lost=0)
        assert not self.intact(tmp_path, "always")

    def test_a_log_of_another_uuid_is_not(self, tmp_path: Path) -> None:
        self.written(tmp_path, "always")
        log = Log.open(tmp_path / "another")
        assert not is_intact(log, load(tmp_path / STATE_FILE))
        log.close()


class TestCommit:
    """The commit number outlives a restart, wherever it was noted last."""

    @pytest.mark.parametrize(
        ("noted", "commit"), [(None, 2), (1, 2), (3, 3)], ids=["none", "an older one", "a newer one"]
    )
    def test_the_newest_that_was_noted_is_shown_at_once(
        self, tmp_path: Path, noted: int | None, commit: int
    ) -> None:
        log, _ = open_log(tmp_path, fsync="interval", segment_bytes=1 << 20)
        log.append([Batch(Run.of([b"one", b"two", b"three", b"four"]), first=1, time=1, origin="tube")])
        remember(log, replace(STATE, commit=2))
        if noted is not None:
            watermark.Watermark(tmp_path, watermark.COMMITTED).write(log.uuid, noted)
        log.close()
        log, stored = open_log(tmp_path, fsync="interval", segment_bytes=1 << 20)
        assert stored is not None
        assert (stored.state.commit, log.head_op) == (commit, commit)
        log.close()

    def test_one_of_another_log_is_none(self, tmp_path: Path) -> None:
        log, _ = open_log(tmp_path, fsync="interval", segment_bytes=1 << 20)
        remember(log, replace(STATE, commit=0))
        log.close()
        watermark.Watermark(tmp_path, watermark.COMMITTED).write(UUID(int=7), 3)
        log, stored = open_log(tmp_path, fsync="interval", segment_bytes=1 << 20)
        assert stored is not None
        assert stored.state.commit == 0
        log.close()
