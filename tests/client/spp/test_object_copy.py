"""A client's copy of a service stays what the service is, and its readers miss nothing that matters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.spp import object_copy as module
from headrace.client.spp.object_copy import NOTHING, CopyReader, ObjectCopy
from headrace.hub.services.merge_patch import apply

names = st.sampled_from("abc")
patches = st.dictionaries(
    names, st.none() | st.integers(0, 3) | st.dictionaries(names, st.integers(0, 3), max_size=2)
)


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def reader_of(replica: ObjectCopy) -> tuple[CopyReader, list[None]]:
    woken: list[None] = []
    return CopyReader(replica, lambda: woken.append(None)), woken


def drain(reader: CopyReader) -> list[Any]:
    changes = []
    while (change := reader.take()) is not NOTHING:
        changes.append(change)
    return changes


def test_the_whole_object_then_changes() -> None:
    replica = ObjectCopy("a")
    reader, woken = reader_of(replica)
    assert (replica.value, replica.kind) == (NOTHING, None)
    replica.inform(b'{"x":1,"y":1}')
    assert (replica.value, replica.kind, drain(reader)) == ({"x": 1, "y": 1}, "json", [])
    replica.inform(b'{"y":null}')
    replica.inform(b'{"z":2}')
    assert replica.value == {"x": 1, "z": 2}
    assert drain(reader) == [{"y": None}, {"z": 2}]
    assert len(woken) == 3


def test_bytes_are_replaced() -> None:
    replica = ObjectCopy("a")
    reader, _ = reader_of(replica)
    for message in (b"", b"1", b'{"x":1}', b"2"):
        replica.inform(message)
    assert (replica.value, replica.kind) == (b"2", "last")
    assert drain(reader) == [b"1", b'{"x":1}', b"2"]


def test_a_wrong_guess_is_found_out() -> None:
    replica = ObjectCopy("a")
    replica.inform(b'{"x":1}')
    assert replica.kind == "json"
    replica.inform(b"no object")
    assert (replica.value, replica.kind) == (b"no object", "last")
    replica.inform(b'{"y":2}')
    assert replica.value == b'{"y":2}'


def test_a_caller_who_knows_better() -> None:
    last = ObjectCopy("a", "last")
    last.inform(b'{"x":1}')
    last.inform(b'{"y":2}')
    assert last.value == b'{"y":2}'
    strict = ObjectCopy("a", "json")
    strict.inform(b"no object")
    assert strict.value is NOTHING
    strict.inform(b'{"y":2}')
    assert strict.value == {"y": 2}


def test_a_whole_object_again_shows_as_what_has_changed() -> None:
    replica = ObjectCopy("a")
    reader, _ = reader_of(replica)
    replica.inform(b'{"x":1,"y":1}')
    replica.expect_whole()
    replica.inform(b'{"y":1,"z":2}')
    assert replica.value == {"y": 1, "z": 2}
    assert drain(reader) == [{"x": None, "z": 2}]
    replica.expect_whole()
    replica.inform(b'{"z":2,"y":1}')
    assert drain(reader) == [], "nothing has happened"
    replica.expect_whole()
    replica.inform(b"bytes")
    assert drain(reader) == [b"bytes"]
    replica.expect_whole()
    replica.inform(b"bytes")
    assert drain(reader) == []
    replica.expect_whole()
    replica.inform(b'{"q":1}')
    assert (replica.kind, drain(reader)) == ("json", [{"q": 1}])


def test_each_reader_at_its_own_pace() -> None:
    replica = ObjectCopy("a")
    first, _ = reader_of(replica)
    replica.inform(b"{}")
    replica.inform(b'{"x":1}')
    second, _ = reader_of(replica)
    replica.inform(b'{"x":2}')
    assert drain(first) == [{"x": 1}, {"x": 2}]
    assert drain(second) == [{"x": 2}]
    second.close()
    second.close()
    replica.inform(b'{"x":3}')
    assert (drain(first), drain(second)) == ([{"x": 3}], [])


@given(patches, st.lists(st.tuples(patches, st.booleans()), max_size=12))
def test_changes_lead_to_the_value_however_many_are_one(whole: Any, steps: list[tuple[Any, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PENDING_BYTES", 3 * 256)
        whole = apply({}, whole)
        replica = ObjectCopy("a")
        reader, _ = reader_of(replica)
        replica.inform(text(whole))
        seen, value, told = whole, whole, 0
        for change, takes in steps:
            replica.inform(text(change))
            value = apply(value, change)
            assert replica.value == value
            if takes:
                for each in drain(reader):
                    seen = apply(seen, each)
                    told += 1
                assert seen == value
        for each in drain(reader):
            seen = apply(seen, each)
            told += 1
        assert seen == value
        # When several come as one, they count as conflated, and the one that stands for them is told.
        assert told <= len(steps) <= told + reader.conflated


def test_who_never_reads_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES", 10_000)
    replica = ObjectCopy("a")
    reader, _ = reader_of(replica)
    replica.inform(b"first")
    for number in range(1_000):
        replica.inform(b"%d" % number)
    assert drain(reader) == [b"999"]
    assert reader.conflated == 1_000
    replica.inform(b"live")
    assert drain(reader) == [b"live"]


def test_one_large_change_is_no_reason_to_conflate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES", 10)
    replica = ObjectCopy("a")
    reader, _ = reader_of(replica)
    replica.inform(b"{}")
    replica.inform(b'{"x":1,"y":null}')
    assert drain(reader) == [{"x": 1, "y": None}]
    assert reader.conflated == 0
