from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Iterator
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.errors import (
    ArchiveError,
    ClosedError,
    ConfigError,
    DamagedError,
    ForgedError,
    FullError,
    HeadraceError,
    LimitError,
    LockedError,
    LostRangeError,
    MalformedError,
    NoArchiveError,
    OvertakenError,
    PeerError,
    RefusedError,
    StorageError,
    TrimmedError,
    UnavailableError,
    UnexpectedError,
    UnreachableError,
    UsageError,
    WireError,
    shorten,
)

# One of each, with the sentence it reads as and the facts it carries.
EXAMPLES: list[tuple[HeadraceError, str, dict[str, object]]] = [
    (HeadraceError("something"), "something", {}),
    (UsageError("not like that"), "not like that", {}),
    (ForgedError("f", "no"), "f: no", {"name": "f", "reason": "no"}),
    (
        ConfigError("log.fsync", "sometimes", source="--set", expected="always, interval or never"),
        "log.fsync = 'sometimes' (from --set): expected always, interval or never",
        {
            "key": "log.fsync",
            "value": "sometimes",
            "source": "--set",
            "expected": "always, interval or never",
        },
    ),
    (
        ConfigError("log.fsnyc", None, source="a.toml", expected="a setting that exists"),
        "log.fsnyc (from a.toml): expected a setting that exists",
        {"key": "log.fsnyc", "value": None, "source": "a.toml", "expected": "a setting that exists"},
    ),
    (ClosedError("the log is closed"), "the log is closed", {}),
    (PeerError("it hung up"), "it hung up", {}),
    (
        WireError("link", "op", "dance", "known operations"),
        "link: op 'dance' breaks the protocol: known operations",
        {"protocol": "link", "field": "op", "value": "dance", "limit": "known operations", "offset": None},
    ),
    (
        MalformedError("fyrehose", "type", b"\x03", "one of 01, 02, 04, 08, 10", offset=12),
        "fyrehose: type 0x03 at byte 12 is malformed: one of 01, 02, 04, 08, 10",
        {"protocol": "fyrehose", "field": "type", "value": b"\x03", "offset": 12, "reason": "malformed"},
    ),
    (
        LimitError("spp", "length", 4_000_000_000, 8 << 20),
        "spp: length 4000000000 is over the limit: 8388608",
        {"protocol": "spp", "field": "length", "value": 4_000_000_000, "limit": 8 << 20, "reason": "limit"},
    ),
    (
        UnexpectedError("sdk", "sub", "in state new", "only auth may come now"),
        "sdk: sub 'in state new' is not allowed here: only auth may come now",
        {"reason": "unexpected"},
    ),
    (
        RefusedError("not-leader", "this node is not the primary"),
        "this node is not the primary (not-leader)",
        {"code": "not-leader", "reason": "this node is not the primary"},
    ),
    (
        UnreachableError("127.0.0.1:8081", "connection refused"),
        "127.0.0.1:8081: connection refused",
        {"address": "127.0.0.1:8081", "reason": "connection refused"},
    ),
    (
        LostRangeError(3, 7, "nobody stores them"),
        "messages 3 to 7 are lost: nobody stores them",
        {"first": 3, "last": 7, "reason": "nobody stores them"},
    ),
    (StorageError("the disk is gone"), "the disk is gone", {}),
    (
        DamagedError("0001.arrow", 64, 10, 19, "CRC32C differs"),
        "0001.arrow: CRC32C differs at byte 64; messages 10 to 19 are in doubt",
        {"path": "0001.arrow", "offset": 64, "first": 10, "last": 19, "reason": "CRC32C differs"},
    ),
    (
        DamagedError("open.log", 64, 10, None, "CRC32C differs"),
        "open.log: CRC32C differs at byte 64; messages from 10 on are in doubt",
        {"last": None},
    ),
    (
        DamagedError("7.entries", 64, 10, 9, "CRC32C differs"),
        "7.entries: CRC32C differs at byte 64; entries of the log after message 9 are in doubt",
        {"first": 10, "last": 9},
    ),
    (
        DamagedError("1.entries", 0, 1, 0, "the file is gone"),
        "1.entries: the file is gone at byte 0; entries of the log before message 1 are in doubt",
        {"last": 0},
    ),
    (
        LockedError("headrace-data", "process 4711"),
        "headrace-data is in use by process 4711; stop it first, or choose another data directory",
        {"path": "headrace-data", "holder": "process 4711"},
    ),
    (
        FullError("headrace-data", "no space left on device"),
        "headrace-data: no space left on device; free space or lower log.retain_bytes",
        {"path": "headrace-data", "reason": "no space left on device"},
    ),
    (
        UnavailableError("the upstream hub has not answered for 10 s"),
        "the upstream hub has not answered for 10 s",
        {},
    ),
    (
        TrimmedError(1, 5, 100),
        "messages 1 to 5 are no longer kept; the oldest is 100",
        {"first": 1, "last": 5, "oldest": 100},
    ),
    (
        ArchiveError("/srv/archive", 1, 9, "it is out of reach"),
        "messages 1 to 9 cannot be read from the archive /srv/archive: it is out of reach",
        {"place": "/srv/archive", "first": 1, "last": 9, "reason": "it is out of reach"},
    ),
    (
        NoArchiveError("/srv/archive"),
        "/srv/archive: there is no archive, or nothing in it yet",
        {"place": "/srv/archive"},
    ),
    (
        OvertakenError("/srv/archive", "query 7f3c, batch 12", 500),
        "/srv/archive: query 7f3c, batch 12 has added messages up to 500 meanwhile",
        {"place": "/srv/archive", "writer": "query 7f3c, batch 12", "through": 500},
    ),
]


def every_error() -> list[type[HeadraceError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, HeadraceError) and kind.__module__ == errors.__name__
    ]


def drawn_tree(text: str) -> Iterator[tuple[str, str]]:
    """Each (error, parent) of the tree in the module's docstring."""
    above: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"^ {4}([│├└─ ]*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            del above[depth:]
            yield found[2], above[-1] if above else "Exception"
            above.append(found[2])


def name_of(example: tuple[HeadraceError, str, dict[str, object]]) -> str:
    return type(example[0]).__name__


def test_the_drawn_tree_is_the_real_one() -> None:
    assert errors.__doc__ is not None
    drawn = list(drawn_tree(errors.__doc__))
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in every_error()}
    assert dict(drawn) == real
    assert len(drawn) == len(real)


def test_there_is_an_example_of_every_error() -> None:
    assert {type(example) for example, _, _ in EXAMPLES} == set(every_error())


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_sentence_and_fields(example: tuple[HeadraceError, str, dict[str, object]]) -> None:
    error, sentence, facts = example
    assert str(error) == sentence
    assert {name: getattr(error, name) for name in facts} == facts


@pytest.mark.parametrize("clone", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_survives_another_process(example: tuple[HeadraceError, str, dict[str, object]], clone) -> None:
    error = example[0]
    error.add_note("while reading")
    again = clone(error)
    assert type(again) is type(error)
    assert again is not error
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


def test_a_wire_error_keeps_no_buffer() -> None:
    buffer = bytearray(b"abc")
    error = MalformedError("spp", "id", memoryview(buffer)[1:], "UTF-8")
    buffer.clear()  # BufferError, if the error held a view of it
    assert error.value == b"bc"
    assert pickle.loads(pickle.dumps(error)).value == b"bc"


def test_a_whole_branch_is_caught_by_its_root() -> None:
    for kind in (MalformedError, LimitError, UnexpectedError):
        with pytest.raises(WireError):
            raise kind("tube", "code", 8, "0 to 7")


class Code(IntEnum):
    PUSH = 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"", "0x"),
        (b"\x00\xff", "0x00ff"),
        (memoryview(b"ab"), "0x6162"),
        (bytearray(64), "0x" + "00" * 64),
        (bytes(65), "0x" + "00" * 64 + "…"),
        ("a\nb", r"'a\nb'"),
        ("a" * 64, repr("a" * 64)),
        ("a" * 65, repr("a" * 64) + "…"),
        (0, "0"),
        (-1, "-1"),
        (2**64, "18446744073709551616"),
        (True, "True"),
        (Code.PUSH, "2"),
        (1.5, "1.5"),
        (None, "None"),
        ([1, "b"], "[1, 'b']"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_shorten(value: object, shown: str) -> None:
    assert shorten(value) == shown


def test_shorten_takes_what_python_cannot_print() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(shorten(deep)) <= 65
    assert shorten(10**5000) == "an integer of 16610 bits"
    assert len(shorten([10**5000])) <= 65


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    )
)
def test_shorten_is_a_short_line(value: object) -> None:
    shown = shorten(value)
    # Worst: 64 characters outside the BMP, escaped to 10 each.
    assert len(shown) <= 64 * 10 + 3
    assert "\n" not in shown
