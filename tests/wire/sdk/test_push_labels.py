"""Many pushes with labels: byte for byte what is written one by one, compiled and in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.message import Run
from headrace.wire.numba_kernels import load
from headrace.wire.sdk import push_labels
from headrace.wire.sdk.commands import Push, label_push, serialize
from headrace.wire.sdk.push_labels import encode_labels, label_pushes

NAMES = st.sampled_from(["", "near", "a", "b", 'say "ü"\n', "\U0001f600"])
LABELS = st.tuples(NAMES, st.sampled_from(["", "enter", "exit", "inside"]))
PAYLOADS = st.sampled_from([b"", b"a", b"}\r\n", b"\xff\x00", b"x" * 55, b"x" * 960, '"é'.encode()])
WANTED = st.lists(st.tuples(PAYLOADS, st.lists(LABELS, max_size=5)), min_size=1, max_size=8)

Wanted = list[tuple[bytes, list[tuple[str, str]]]]


def one_by_one(wanted: Wanted) -> list[bytes]:
    told = []
    for seq, (payload, labels) in enumerate(wanted, 1):
        names = dict.fromkeys(name for name, _ in sorted(labels) if name)
        events: dict[str, list[str]] = {}
        for name, event in sorted({*labels}):
            if event:
                events.setdefault(name, []).append(event)
        push = serialize(Push(seq, payload))
        told.append(label_push(push, tuple(names), events) if names or events else push)
    return told


def together(wanted: Wanted) -> list[bytes]:
    labels = sorted({label for _, some in wanted for label in some} | {("", "")})
    pushes = Run.of(serialize(Push(seq, payload)) for seq, (payload, _) in enumerate(wanted, 1))
    codes = [sorted(map(labels.index, some)) for _, some in wanted]
    first = np.cumsum([0, *map(len, codes)], dtype=np.int64)
    every = np.array([code for some in codes for code in some], np.int32)
    rows = np.arange(len(wanted), dtype=np.int32)
    return list(label_pushes(pushes, rows, first, every, encode_labels(labels)))


@given(WANTED)
@example([(b"x" * size, [("near", "enter")]) for size in range(40, 70)])
@example([(b"x" * size, [("near", "")]) for size in range(930, 970)])
def test_many_pushes_are_those_written_one_by_one(wanted: Wanted) -> None:
    load(push_labels.__name__)
    assert together(wanted) == one_by_one(wanted)


@given(WANTED)
def test_plain_python_writes_the_same(wanted: Wanted) -> None:
    plain: Any = push_labels.write_pushes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(push_labels, "write_pushes", plain._plain)
        assert together(wanted) == one_by_one(wanted)
