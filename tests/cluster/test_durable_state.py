from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.durable_state import (
    MAX_NODES,
    DurableState,
    StoredState,
    load,
    parse_testimony,
    save,
    serialize_testimony,
)
from headrace.cluster.history import MAX_SPANS, History
from headrace.errors import DamagedError, MalformedError, StorageError
from headrace.log.checksum import crc32c

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
