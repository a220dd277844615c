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
from headrace.errors import DamagedError, MalformedError
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
            [True, [], {}],
            [True, [], {}, [], 0],
            [1, [], {}, []],
            [True, [65_536], {}, []],
            [True, [-1], {}, []],
            [True, list(range(MAX_NODES + 1)), {}, []],
            [True, [], {7: -1}, []],
            [True, [], {7: 1 << 63}, []],
            [True, [], {"a": 1}, []],
            [True, [], {}, [[1]]],
            [True, [], {}, [[1, 1.5]]],
            [True, [], {}, [[2, 1], [1, 5]]],
            [True, [], {}, [[1, 5], [2, 4]]],
            [True, [], {}, [[1, 1], [1, 2]]],
            [True, [], {}, [[n, n] for n in range(1, MAX_SPANS + 2)]],
        ],
    )
    def test_what_is_none_is_refused(self, content: Any) -> None:
        with pytest.raises(MalformedError):
            parse_testimony(msgspec.msgpack.encode(content))

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
        path.write_bytes(b"HRCLST\x01\n" + crc32c(content).to_bytes(4, "little") + content)
        with pytest.raises(DamagedError, match="unknown form"):
            load(path)
