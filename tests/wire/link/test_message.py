"""The link's messages: heads, requests and bodies of rows, from friends and from foes."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import Golden

from headrace.errors import LimitError, MalformedError, UnexpectedError, WireError
from headrace.message import SCHEMA, Batch, Run
from headrace.wire.link.message import (
    LONG,
    MAX_ANSWER,
    MAX_HEAD,
    MAX_ROWS_BYTES,
    PUBLISHED,
    LinkMessage,
    body_of,
    parse,
    rows_of,
    serialize,
    serialize_before,
)
from headrace.wire.link.requests import (
    MAX_ID,
    OPERATIONS,
    EntriesRequest,
    FollowRequest,
    HeadRequest,
    HelloRequest,
    MoreRequest,
    PassRequest,
    PublishRequest,
    ReadRequest,
    ReplicateRequest,
    ServicesRequest,
    parse_request,
    parse_where,
    serialize_request,
)
from headrace.wire.sdk.predicate import Between, Equals

GOLDEN = [
    Golden("link", "hello", HelloRequest(id=0, version=2, name="tool")),
    Golden("link", "head", HeadRequest(id=1)),
    Golden("link", "head's answer", {"id": 1, "ok": True, "first": 1, "head": 300}),
    Golden("link", "publish, without its body", PublishRequest(id=2, publisher="me", number=7)),
    Golden(
        "link", "publish's answer", {"id": 2, "ok": True, "first": 301, "last": 302, "repeated": 0, "op": 310}
    ),
    Golden("link", "pass, without its body", PassRequest(id=4, frontend="f00d", number=1, rows=3)),
    Golden(
        "link", "pass's answer", {"id": 4, "ok": True, "first": 7, "last": 9, "repeated": False, "op": 12}
    ),
    Golden("link", "replicate", ReplicateRequest(id=6, from_op=13)),
    Golden(
        "link", "an event of replicate, without its body", {"id": 6, "event": "ops", "first": 13, "last": 17}
    ),
    Golden("link", "entries", EntriesRequest(id=7, first=1, last=9)),
    Golden("link", "an event of entries, without its body", {"id": 7, "event": "rows", "next": 13}),
    Golden("link", "a refusal", {"id": 3, "error": "missing", "reason": "no hold"}),
    Golden(
        "link",
        "hello, of a version that is not spoken",
        {"id": 0, "error": "version", "reason": "too old", "versions": [2]},
    ),
    Golden("link", "hello, answered with a challenge", {"id": 0, "ok": True, "challenge": "a/7"}),
    Golden(
        "link",
        "services, creating one",
        ServicesRequest(id=4, service="fleet/42", action="create", kind="last"),
    ),
    Golden("link", "services, removing one", ServicesRequest(id=5, service="fleet/42", action="remove")),
    Golden("link", "its answer", {"id": 5, "ok": True, "removed": True}),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden(golden: Golden) -> None:
    message = parse(golden.wire + b"body")
    assert bytes(message.body) == b"body"
    if isinstance(golden.frame, dict):
        assert message.head == golden.frame
        assert serialize(golden.frame) == golden.wire
    else:
        assert parse_request(message.head) == golden.frame
        assert parse_request(parse(serialize(serialize_request(golden.frame))).head) == golden.frame


def sample(count: int = 3) -> pa.RecordBatch:
    return Batch(Run.of([b"%d" % n for n in range(count)]), first=1, time=5, topic="t").to_arrow()


# Heads


@given(
    st.dictionaries(st.text(max_size=8), st.integers(-9, 9) | st.text(max_size=5) | st.none()), st.binary()
)
def test_any_head_and_body_come_apart_as_they_were_put_together(head: dict[str, Any], body: bytes) -> None:
    assert parse(serialize(head) + body) == LinkMessage(head, memoryview(body))


@given(st.dictionaries(st.text(max_size=8), st.integers(-9, 9) | st.text(max_size=99), max_size=30))
def test_an_aligned_head_says_the_same(head: dict[str, Any]) -> None:
    head.pop("pad", None)
    data = serialize_before(head, LONG)
    assert len(data) % 8 == 0
    assert {**parse(data).head, "pad": ""} == {**head, "pad": ""}


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_our_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        parse_request(parse(data).head)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xa1",
        b"\x80",
        b"\xbf\xff",  # of indefinite length
        b"\xa1\x01\x02",  # a key that is no text
        b"\xa2aa\x01aa\x02",  # a key twice
        b"\xa1aa\xc1\x00",  # a tag
        b"\xa1aa\xd8\x1d\x00",
        b"\xa1aa" + b"\x81" * 50 + b"\x00",
        b"\xa1aa\x5b" + b"\xff" * 8,
        b"\xbb" + b"\xff" * 8,
        cbor2.dumps({"a": b"x" * MAX_HEAD}),
    ],
)
def test_what_is_no_head_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse(data)


def test_long_messages_and_heads_are_refused() -> None:
    with pytest.raises(LimitError):
        parse(bytes(MAX_ANSWER + 1))
    with pytest.raises(LimitError):
        serialize({"a": "x" * MAX_HEAD})


# Requests


@pytest.mark.parametrize(
    ("head", "field"),
    [
        ({"op": "read", "id": 1}, "first"),
        ({"op": "read", "first": 1}, "id"),
        ({"op": "read", "id": MAX_ID + 1, "first": 1}, "id"),
        ({"op": "read", "id": True, "first": 1}, "id"),
        ({"op": "read", "id": 1, "first": 1.5}, "first"),
        ({"op": "read", "id": 1, "first": 1, "credit": 0}, "credit"),
        ({"op": "follow", "id": 1, "from": -1}, "from"),
        ({"op": "publish", "id": 1, "number": "7"}, "number"),
        ({"op": "commit", "id": 1, "query": "", "batch": 0, "stages": []}, "query"),
        ({"op": "commit", "id": 1, "query": "q", "batch": 0, "stages": ["s"] * 5000}, "stages"),
    ],
)
def test_members_are_checked(head: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedError) as refused:
        parse_request(head)
    assert refused.value.field == field


@pytest.mark.parametrize("op", [None, 7, "nothing", "Read", b"read", ["read"]])
def test_unknown_operations(op: object) -> None:
    with pytest.raises(UnexpectedError):
        parse_request({"op": op, "id": 1})


def test_members_of_a_newer_client_are_passed_over() -> None:
    assert parse_request({"op": "more", "id": 4, "bytes": 9, "colour": "red"}) == MoreRequest(id=4, bytes=9)


def test_every_operation_has_a_name() -> None:
    assert {"hello", "head", "read", "follow", "publish", "stage", "commit", "holds"} <= set(OPERATIONS)
    head = serialize_request(
        FollowRequest(id=1, from_seq=5, topic="a/*", where={"c": {"use": 1, "strval": "x"}})
    )
    assert head["from"] == 5
    assert parse_request(head) == FollowRequest(
        id=1, from_seq=5, topic="a/*", where={"c": {"use": 1, "strval": "x"}}
    )
    assert serialize_request(ReadRequest(id=2, first=1)) == {"op": "read", "id": 2, "first": 1}


def test_where_holds_the_sdks_predicates() -> None:
    where = {"a": {"use": 1, "strval": "x"}, "b": {"use": 2, "low": 1, "high": 2}}
    assert parse_where(where) == {"a": Equals("x"), "b": Between(1.0, 2.0)}
    for wrong in ({"use": 9}, 7, b"\xff", {"use": 2, "low": 2, "high": 1}, float("nan")):
        with pytest.raises(MalformedError, match=r"where\.a"):
            parse_where({"a": wrong})


# Rows


@pytest.mark.parametrize("offset", range(9))
def test_rows_come_back_from_any_place_in_a_message(offset: int) -> None:
    rows = sample()
    message = memoryview(bytes(offset) + bytes(body_of(rows)))
    read = rows_of(message[offset:], SCHEMA)
    assert read.equals(rows)
    assert Run.from_arrow(read.column("payload")).offsets.flags.aligned


def test_packed_rows_are_unpacked() -> None:
    rows = sample(1000)
    assert rows_of(packed(rows), SCHEMA).equals(rows)


def test_rows_that_unpack_to_too_much_are_refused_before_they_do() -> None:
    body = bytearray(packed(sample(1000)))
    # The length that the first packed buffer states, made larger than anything.
    metadata = struct.unpack_from("<I", body, 4)[0]
    before = pa.total_allocated_bytes()
    struct.pack_into("<q", body, 8 + metadata, MAX_ROWS_BYTES + 1)
    with pytest.raises(LimitError):
        rows_of(bytes(body), SCHEMA)
    assert pa.total_allocated_bytes() <= before + (1 << 20)


def test_nulls_are_refused() -> None:
    maps = PUBLISHED.field("attributes").type
    for column, values in (
        ("topic", pa.array([None], pa.string())),
        ("payload", pa.array([None], pa.binary())),
        ("attributes", pa.array([None], maps)),
        ("attributes", pa.array([[("a", None)]], maps)),
    ):
        good = {
            "topic": pa.array(["t"]),
            "attributes": pa.array([[]], maps),
            "numbers": pa.array([[]], PUBLISHED.field("numbers").type),
            "payload": pa.array([b""], pa.binary()),
        }
        nullable = pa.schema([field.with_nullable(True) for field in PUBLISHED])
        rows = pa.RecordBatch.from_arrays(list((good | {column: values}).values()), schema=nullable)
        with pytest.raises(MalformedError, match=column):
            rows_of(bytes(body_of(rows)), PUBLISHED)


def test_what_is_no_record_batch_is_refused() -> None:
    for body in (b"", b"rows", SCHEMA.serialize().to_pybytes(), bytes(body_of(sample()))[:-8]):
        with pytest.raises(MalformedError):
            rows_of(body, SCHEMA)
    with pytest.raises(MalformedError):
        rows_of(bytes(body_of(sample())), PUBLISHED)


PLAIN = bytes(body_of(sample(20)))


@given(st.data())
def test_damaged_rows_give_rows_or_our_error(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([PLAIN, packed(sample(20))])))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, len(body) * 8 - 1))
        body[bit // 8] ^= 1 << bit % 8
    try:
        rows = rows_of(bytes(body), SCHEMA)
    except WireError:
        return
    rows.validate(full=True)


def packed(rows: pa.RecordBatch) -> bytes:
    """Rows as a sealed segment has them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        begin = sink.tell()
        writer.write_batch(rows)
        end = sink.tell()
    whole = sink.getvalue().to_pybytes()
    if begin == 0:  # the schema is written with the first batch
        begin = 8 + struct.unpack_from("<I", whole, 4)[0]
    return whole[begin:end]
