from __future__ import annotations

import datetime
import itertools
import math
import tracemalloc
from dataclasses import replace
from decimal import Decimal
from typing import Any, get_args

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.golden import Golden, check_golden, cut, read_bytewise, read_whole
from tests.wire.outcome import outcome_and_rest, traced_peak

from headrace.errors import LimitError, MalformedError, UnexpectedError, WireError
from headrace.message import node_id
from headrace.wire.parcel.body import (
    BODIES,
    MAX_HOST,
    MAX_NAME,
    Ack,
    Body,
    Commit,
    DoViewChange,
    DscReq,
    DscRes,
    Fault,
    GetSnapshot,
    GetState,
    Mode,
    NewState,
    NodeInfo,
    Ping,
    Pong,
    Prepare,
    PrepareOk,
    ProtoError,
    Publish,
    Recovery,
    RecoveryResponse,
    SeqReq,
    SeqRes,
    SnapshotPart,
    StartView,
    StartViewChange,
    StateChange,
    parse_host,
)
from headrace.wire.parcel.serde import fields_of
from headrace.wire.parcel.stream import (
    DIALLER,
    LISTENER,
    MAX_BULK,
    MAX_PARCEL,
    MAX_REASON,
    MAX_TAG,
    Exchange,
    Parcel,
    ParcelDecoder,
    ParcelEvent,
    ParcelState,
    discovered,
    parse_parcel,
    refusal,
    serialize,
    serialize_parts,
)

IVAN = NodeInfo(60396, Mode.WRK, "Ivan", "127.0.0.1")
IVAN_DSC = replace(IVAN, mode=Mode.DSC)

GOLDEN = [
    Golden(
        "parcel",
        "DscReq as the original sends it",
        Parcel(0x1234, DscReq(NodeInfo(0x1234, Mode.DSC, "Ivan", "127.0.0.1"))),
    ),
    Golden("parcel", "DscReq", Parcel(60396, DscReq(IVAN_DSC))),
    Golden("parcel", "DscRes", Parcel(60396, DscRes((IVAN,)))),
    Golden("parcel", "SeqReq", Parcel(60396, SeqReq())),
    Golden("parcel", "SeqRes", Parcel(60396, SeqRes(1000))),
    Golden("parcel", "ProtoError as the original has it", Parcel(60396, ProtoError())),
    Golden("parcel", "ProtoError with a reason", Parcel(60396, ProtoError(Fault.BAD_RES, "not now"))),
    Golden("parcel", "StateChange", Parcel(60396, StateChange(Mode.ERR))),
    Golden("parcel", "Ping", Parcel(60396, Ping())),
    Golden("parcel", "Ping with a tag", Parcel(60396, Ping(), b"\x01\x02\x03\x04")),
    Golden("parcel", "Pong", Parcel(60396, Pong())),
    Golden("parcel", "Publish", Parcel(60396, Publish(3, 41), b"batch")),
    Golden("parcel", "Ack", Parcel(60396, Ack(3, 41, 1001, 1002))),
    Golden("parcel", "Prepare", Parcel(60396, Prepare(3, 1001, 1002, 1000), b"batch")),
    Golden("parcel", "PrepareOk", Parcel(60396, PrepareOk(3, 1002))),
    Golden("parcel", "Commit", Parcel(60396, Commit(3, 1002, 1002))),
    Golden("parcel", "StartViewChange", Parcel(60396, StartViewChange(4))),
    Golden("parcel", "DoViewChange", Parcel(60396, DoViewChange(4, 3, 1002, 1000))),
    Golden("parcel", "StartView", Parcel(60396, StartView(4, 1002, 1000))),
    Golden("parcel", "Recovery", Parcel(60396, Recovery(0x0123456789ABCDEF, 2))),
    Golden("parcel", "RecoveryResponse", Parcel(60396, RecoveryResponse(4, 0x0123456789ABCDEF, 1002, 1000))),
    Golden("parcel", "GetState", Parcel(60396, GetState(4, 1000))),
    Golden("parcel", "NewState", Parcel(60396, NewState(4, 1001, 1002, 1000), b"batch")),
    Golden("parcel", "GetSnapshot", Parcel(60396, GetSnapshot(7, 1000, 0))),
    Golden("parcel", "SnapshotPart", Parcel(60396, SnapshotPart(7, 2000, 0, 5), b"state")),
]

BY_NAME = {golden.name: golden for golden in GOLDEN}
SEQ_REQ = BY_NAME["SeqReq"].wire


def test_every_parcel_type_has_a_golden_vector() -> None:
    assert {golden.frame.parcel_type for golden in GOLDEN} == set(BODIES)
    assert set(BODIES.values()) == set(get_args(Body))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden(golden: Golden) -> None:
    check_golden(golden, ParcelDecoder, following=SEQ_REQ[:-1])


@pytest.mark.parametrize(
    "golden",
    [golden for golden in GOLDEN if golden.name != "DscReq as the original sends it"],
    ids=lambda golden: golden.name,
)
def test_golden_is_what_we_write(golden: Golden) -> None:
    assert serialize(golden.frame) == golden.wire
    assert serialize_parts(golden.frame) == (golden.wire[: 1 + golden.wire[0]], golden.frame.bulk)


def test_size_is_that_of_the_body_and_any_is_accepted() -> None:
    original = BY_NAME["DscReq as the original sends it"]
    ours = serialize(original.frame)
    assert cbor2.loads(ours[1:])["size"] == 59
    for size in (0, 58, 59, 65535, 65536, 2**64 - 1):
        assert read_whole(ParcelDecoder(), framed({**envelope(original.frame), "size": size})) == [
            original.frame
        ]


def test_the_id_in_the_vectors_is_made_of_the_name() -> None:
    assert node_id(IVAN.name) == IVAN.id


# Reading what others write


def envelope(parcel: Parcel) -> dict[str, Any]:
    """A parcel as CBOR's plain values."""
    decoded: dict[str, Any] = cbor2.loads(serialize_parts(parcel)[0][1:])
    return decoded


def framed(value: object) -> bytes:
    """Any CBOR value behind its length byte."""
    encoded = cbor2.dumps(value)
    return bytes((len(encoded),)) + encoded


def test_keys_may_come_in_any_order() -> None:
    parcel = Parcel(60396, DscReq(IVAN))
    plain = envelope(parcel)
    plain["body"]["DscReq"]["identity"] = dict(reversed(plain["body"]["DscReq"]["identity"].items()))
    for keys in itertools.permutations(plain):
        assert read_whole(ParcelDecoder(), framed({key: plain[key] for key in keys})) == [parcel]


@pytest.mark.parametrize("extra", [None, 1.5, math.nan, -1, b"x", [1, {"a": []}], {"x": 1}, {1: 2}])
def test_unknown_keys_are_passed_over(extra: object) -> None:
    parcel = Parcel(60396, DscReq(IVAN))
    plain = envelope(parcel)
    plain["more"] = extra
    plain["body"]["DscReq"]["more"] = extra
    plain["body"]["DscReq"]["identity"]["more"] = extra
    assert read_whole(ParcelDecoder(), framed(plain)) == [parcel]


@pytest.mark.parametrize("body", ["Empty", {"SeqRes": {"seq_number": 0}}])
def test_a_seq_res_that_is_no_response_is_a_seq_req(body: object) -> None:
    """ "Ivan can send a `SeqRes` to each of its neighbours. Each one responds with their `SEQ` number." """
    parcel = {"is_response": False, "parcel_type": "SeqRes", "id": 7, "size": 0, "body": body}
    assert parse_parcel(cbor2.dumps(parcel)) == (Parcel(7, SeqReq()), 0)
    with pytest.raises(MalformedError):
        parse_parcel(cbor2.dumps({**parcel, "body": {"SeqReq": {}}}))
    with pytest.raises(MalformedError):
        parse_parcel(cbor2.dumps({**parcel, "is_response": True, "body": "Empty"}))


def test_an_empty_body_may_be_spelt_out() -> None:
    plain = envelope(Parcel(1, SeqReq()))
    assert read_whole(ParcelDecoder(), framed({**plain, "body": {"SeqReq": {}}})) == [Parcel(1, SeqReq())]
    error = envelope(Parcel(1, ProtoError(Fault.BAD_RES, "x")))
    error["body"]["ProtoError"].pop("reason")
    assert read_whole(ParcelDecoder(), framed(error)) == [Parcel(1, ProtoError(Fault.BAD_RES))]


def test_longer_integers_than_needed_are_read() -> None:
    wire = SEQ_REQ.replace(bytes.fromhex("6473697a6506"), bytes.fromhex("6473697a651900 06"))
    wire = bytes((wire[0] + 2,)) + wire[1:]
    assert read_whole(ParcelDecoder(), wire) == [Parcel(60396, SeqReq())]


def test_a_dsc_res_may_be_empty() -> None:
    assert read_whole(ParcelDecoder(), serialize(Parcel(1, DscRes(())))) == [Parcel(1, DscRes(()))]


# What is refused


def changed(parcel: Parcel, path: str, value: object) -> bytes:
    """A parcel's bytes with the value at a dotted path replaced, or its key removed if the value is ``...``."""
    plain = envelope(parcel)
    *way, last = path.split(".")
    at: Any = plain
    for step in way:
        at = at[int(step) if step.isdigit() else step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return framed(plain)


ASK = Parcel(60396, DscReq(IVAN))
ANSWER = Parcel(60396, DscRes((IVAN,)))
SEQUENCE = Parcel(60396, SeqRes(1000))


@pytest.mark.parametrize(
    ("parcel", "path", "value", "field"),
    [
        (ASK, "is_response", ..., "ProtoParcel.is_response"),
        (ASK, "is_response", 0, "ProtoParcel.is_response"),
        (ASK, "is_response", None, "ProtoParcel.is_response"),
        (ASK, "is_response", True, "is_response"),
        (ANSWER, "is_response", False, "is_response"),
        (ASK, "parcel_type", ..., "ProtoParcel.parcel_type"),
        (ASK, "parcel_type", 1, "ProtoParcel.parcel_type"),
        (ASK, "parcel_type", "Empty", "parcel_type"),
        (ASK, "parcel_type", "dscreq", "parcel_type"),
        (ASK, "parcel_type", "SeqReq", "body"),
        (ASK, "parcel_type", "ProtoError", "body"),
        (ASK, "id", ..., "ProtoParcel.id"),
        (ASK, "id", True, "ProtoParcel.id"),
        (ASK, "id", -1, "ProtoParcel.id"),
        (ASK, "id", 65536, "ProtoParcel.id"),
        (ASK, "id", 1.0, "ProtoParcel.id"),
        (ASK, "id", "1", "ProtoParcel.id"),
        (ASK, "size", ..., "ProtoParcel.size"),
        (ASK, "size", -1, "ProtoParcel.size"),
        (ASK, "size", False, "ProtoParcel.size"),
        (ASK, "size", math.nan, "ProtoParcel.size"),
        (ASK, "body", ..., "ProtoParcel.body"),
        (ASK, "body", None, "body"),
        (ASK, "body", {}, "body"),
        (ASK, "body", [], "body"),
        (ASK, "body", {1: 2}, "body"),
        (ASK, "body", "Empty", "DscReq.identity"),
        (ASK, "body", "DscReq", "body"),
        (ASK, "body.SeqRes", {"seq_number": 1}, "body"),
        (ASK, "body.DscReq", "Empty", "DscReq"),
        (ASK, "body.DscReq", {}, "DscReq.identity"),
        (ASK, "body.DscReq.identity", [1], "DscReq.identity"),
        (ASK, "body.DscReq.identity.id", 65536, "DscReq.identity.id"),
        (ASK, "body.DscReq.identity.id", False, "DscReq.identity.id"),
        (ASK, "body.DscReq.identity.mode", "wrk", "DscReq.identity.mode"),
        (ASK, "body.DscReq.identity.mode", ["WRK"], "DscReq.identity.mode"),
        (ASK, "body.DscReq.identity.name", b"Ivan", "DscReq.identity.name"),
        (ASK, "body.DscReq.identity.name", ..., "DscReq.identity.name"),
        (ASK, "body.DscReq.identity.host", "", "DscReq.identity.host"),
        (ASK, "body.DscReq.identity.host", "a b", "DscReq.identity.host"),
        (ASK, "body.DscReq.identity.host", "a\0", "DscReq.identity.host"),
        (ASK, "body.DscReq.identity.host", "127.0.0.1:", "DscReq.identity.host"),
        (ASK, "body.DscReq.identity.host", "127.0.0.1:0", "DscReq.identity.host"),
        (ASK, "body.DscReq.identity.host", "127.0.0.1:65536", "DscReq.identity.host"),
        (ASK, "body.DscReq.identity.host", "[::1", "DscReq.identity.host"),
        (ASK, "body.DscReq.identity.host", "::1]:1", "DscReq.identity.host"),
        (ASK, "body.DscReq.bulk", True, "bulk"),
        (ASK, "body.DscReq.bulk", -1, "bulk"),
        (ASK, "body.DscReq.bulk", "1", "bulk"),
        (ANSWER, "body.DscRes.neighbours", {}, "DscRes.neighbours"),
        (ANSWER, "body.DscRes.neighbours", [1], "DscRes.neighbours"),
        (SEQUENCE, "body.SeqRes.seq_number", True, "SeqRes.seq_number"),
        (SEQUENCE, "body.SeqRes.seq_number", -1, "SeqRes.seq_number"),
        (SEQUENCE, "body.SeqRes.seq_number", 1e3, "SeqRes.seq_number"),
    ],
)
def test_values_of_another_type_or_range_are_refused(
    parcel: Parcel, path: str, value: object, field: str
) -> None:
    wire = SEQ_REQ + changed(parcel, path, value)
    for read in (read_whole, read_bytewise):
        with pytest.raises(MalformedError) as caught:
            read(ParcelDecoder(), wire)
        assert (caught.value.protocol, caught.value.field) == ("parcel", field)
        assert caught.value.offset == len(SEQ_REQ)


@pytest.mark.parametrize(
    ("path", "value", "field", "limit"),
    [
        ("body.DscReq.identity.name", "n" * 65, "DscReq.identity.name", MAX_NAME),
        ("body.DscReq.identity.host", "h" * 65, "DscReq.identity.host", MAX_HOST),
        ("body.DscReq.bulk", MAX_TAG + 1, "bulk", MAX_TAG),
        ("body.DscReq.bulk", 2**64 - 1, "bulk", MAX_TAG),
    ],
)
def test_what_is_too_long_is_refused(path: str, value: object, field: str, limit: int) -> None:
    with pytest.raises(LimitError) as caught:
        read_whole(ParcelDecoder(), changed(ASK, path, value))
    assert (caught.value.field, caught.value.limit) == (field, limit)


HOSTILE = {
    "nothing": "",
    "an integer": "01",
    "null": "f6",
    "undefined": "f7",
    "text": "6141",
    "an empty map": "a0",
    "an empty array": "80",
    "two items": "a0a0",
    "a head cut short": "19ff",
    "text cut short": "6261",
    "bytes of 2^64-1": "5bffffffffffffffff",
    "text of 2^64-1": "7bffffffffffffffff",
    "an array of 2^64-1": "9bffffffffffffffff",
    "a map of 2^64-1": "bbffffffffffffffff",
    "a map of 2^63": "bb8000000000000000" + "00" * 40,
    "a reserved head": "1c",
    "a break": "ff",
    "an indefinite map": "bf616101ff",
    "an indefinite array": "9f01ff",
    "indefinite text": "7f6161ff",
    "indefinite bytes": "5f4161ff",
    "a one-byte simple value": "f801",
    "a key twice": "a2616101616102",
    "not UTF-8": "a161ff01",
    "lone surrogate": "a163eda08001",
    "deep arrays": "81" * 254 + "80",
    "deep maps": "a16161" * 84 + "a0",
    "arrays as keys": "a18000",
    "maps as keys": "a1a000",
    "NaN as key": "a1f97e0000",
    "a big integer": "c249010000000000000000",
    "a small big integer": "c24105",
    "a date": "c074323032302d30312d30315430303a30303a30305a",
    "an epoch": "c1fb7fefffffffffffff",
    "a decimal": "c4821b7fffffffffffffff01",
    "a bigfloat": "c5821b7fffffffffffffff01",
    "a regular expression": "d8236828612b292b5c642b",
    "MIME": "d82468000000000000",
    "a UUID": "d82541aa",
    "shareable": "d81c81d81d00",
    "a missing shared reference": "d81d05",
    "a string reference": "d9010081d81900",
    "a set": "d9010281a0",
    "an IP address": "d9010444ffffffff",
    "self-described": "d9d9f7a0",
    "an unknown tag": "dbffffffffffffffff00",
    "a complex number": "d9a7f88261786179",
}


@pytest.mark.parametrize("encoded", HOSTILE.values(), ids=HOSTILE)
def test_hostile_cbor_is_malformed(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(MalformedError):
        parse_parcel(data)
    with pytest.raises(MalformedError):
        read_whole(ParcelDecoder(), bytes((len(data),)) + data)


@pytest.mark.parametrize("encoded", HOSTILE.values(), ids=HOSTILE)
def test_hostile_cbor_in_an_unknown_key_is_no_way_round(encoded: str) -> None:
    inner = bytes.fromhex(encoded)
    head = cbor2.dumps(envelope(Parcel(1, SeqReq())))
    data = b"\xa6" + head[1:] + b"\x61x" + inner
    try:
        parcel, bulk = parse_parcel(data[:MAX_PARCEL])
    except MalformedError:
        return
    assert (parcel, bulk) == (Parcel(1, SeqReq()), 0)
    # what gets through is plain: no tag, nothing indefinite, one item, no deeper than the limit
    assert cbor2.dumps(cbor2.loads(inner)) == inner


# Bulk


def test_bulk_of_a_batch_is_bounded_by_the_decoder() -> None:
    parcel = Parcel(1, Prepare(1, 1, 1, 0), bytes(1000))
    assert read_whole(ParcelDecoder(max_bulk=1000), serialize(parcel)) == [parcel]
    head = serialize_parts(parcel)[0]
    with pytest.raises(LimitError) as caught:
        read_whole(ParcelDecoder(max_bulk=999), head)
    assert (caught.value.field, caught.value.value, caught.value.limit) == ("bulk", 1000, 999)


def test_bulk_is_bounded_when_written() -> None:
    with pytest.raises(LimitError):
        serialize(Parcel(1, Ping(), bytes(MAX_TAG + 1)))
    with pytest.raises(LimitError):
        serialize(Parcel(1, Prepare(1, 1, 1, 0), bytes(MAX_BULK + 1)))


def test_large_bulk_arrives_in_pieces_and_takes_memory_only_as_it_does() -> None:
    parcel = Parcel(1, Prepare(1, 1, 1, 0), bytes(8 * 1024 * 1024))
    head, bulk = serialize_parts(parcel)
    decoder = ParcelDecoder()
    tracemalloc.start()
    assert list(decoder.feed(head)) == []
    assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    tracemalloc.stop()
    chunk = 256 * 1024
    got = [p for at in range(0, len(bulk), chunk) for p in decoder.feed(bulk[at : at + chunk])]
    assert got == [parcel]


def test_bulk_byte_by_byte() -> None:
    parcel = Parcel(1, NewState(1, 1, 1, 0), bytes(range(256)) * 400)
    assert read_bytewise(ParcelDecoder(), serialize(parcel) + SEQ_REQ) == [parcel, Parcel(60396, SeqReq())]


def test_unfinished_tells_whether_a_stream_was_cut() -> None:
    wire = BY_NAME["Prepare"].wire
    decoder = ParcelDecoder()
    for count, byte in enumerate(wire[:-1], start=1):
        assert list(decoder.feed(bytes((byte,)))) == []
        assert decoder.unfinished == count
    assert len(list(decoder.feed(wire[-1:]))) == 1
    assert decoder.unfinished == 0


# What we do not write


@pytest.mark.parametrize(
    "parcel",
    [
        Parcel(-1, Ping()),
        Parcel(65536, Ping()),
        Parcel(True, Ping()),
        Parcel(1, SeqRes(2**64)),
        Parcel(1, SeqRes(1.0)),  # type: ignore[arg-type]
        Parcel(1, StateChange("WRK")),  # type: ignore[arg-type]
        Parcel(1, DscReq("Ivan")),  # type: ignore[arg-type]
        Parcel(1, DscRes([IVAN])),  # type: ignore[arg-type]
        Parcel(1, DscRes(("Ivan",))),  # type: ignore[arg-type]
        Parcel(1, DscReq(replace(IVAN, name="\ud800"))),
        Parcel(1, DscReq(replace(IVAN, host="?"))),
        Parcel(1, ProtoError(Fault.BAD_REQ, 5)),  # type: ignore[arg-type]
    ],
)
def test_what_is_malformed_is_not_written(parcel: Parcel) -> None:
    with pytest.raises(MalformedError):
        serialize(parcel)


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(LimitError) as caught:
        serialize(Parcel(1, DscRes((IVAN,) * 6)))
    assert (caught.value.field, caught.value.limit) == ("DscRes", MAX_PARCEL)
    with pytest.raises(LimitError):
        serialize(Parcel(1, DscReq(replace(IVAN, name="n" * 65))))
    with pytest.raises(LimitError):
        serialize(Parcel(1, ProtoError(Fault.BAD_REQ, "r" * 250)))


def test_the_longest_node_fits_with_a_tag() -> None:
    node = NodeInfo(65535, Mode.WRK, "n" * MAX_NAME, "h" * MAX_HOST)
    for body in (DscReq(node), DscRes((node,))):
        parcel = Parcel(65535, body, bytes(MAX_TAG))
        assert read_whole(ParcelDecoder(), serialize(parcel)) == [parcel]


@pytest.mark.parametrize("reason", ["", "no", "x" * 500, "é" * 100, "\ud800", "𝄞" * 60, "a" + "𝄞" * 60])
def test_a_refusal_always_fits(reason: str) -> None:
    parcel = replace(refusal(65535, Fault.BAD_RES, reason), bulk=bytes(MAX_TAG))
    assert read_whole(ParcelDecoder(), serialize(parcel)) == [parcel]
    assert isinstance(parcel.body, ProtoError)
    assert len(parcel.body.reason.encode()) <= MAX_REASON
    assert reason.encode(errors="replace").startswith(parcel.body.reason.encode())


# Hosts


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", ("127.0.0.1", 7878)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("10.1.2.3:65535", ("10.1.2.3", 65535)),
        ("hub-2.example", ("hub-2.example", 7878)),
        ("hub_2:7001", ("hub_2", 7001)),
        ("::1", ("::1", 7878)),
        ("fe80::1:2", ("fe80::1:2", 7878)),
        ("[::1]", ("::1", 7878)),
        ("[::ffff:10.0.0.1]:7001", ("::ffff:10.0.0.1", 7001)),
    ],
)
def test_hosts(host: str, address: tuple[str, int]) -> None:
    assert replace(IVAN, host=host).address == address


@given(st.text(max_size=70))
def test_any_host_is_an_address_or_refused(host: str) -> None:
    try:
        address, port = parse_host(host)
    except MalformedError:
        return
    assert address in host
    assert 0 < port < 65536


# Answering a DscReq

NAMES = st.text(st.characters(codec="utf-8"), max_size=16)
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.2:7879", "[::1]:1", "a-rather-long-host-name.example:65535"])
NODES = st.builds(NodeInfo, st.integers(0, 65535), st.sampled_from(Mode), NAMES, HOSTS)
SMALL_NODES = st.builds(replace, NODES, name=st.text(st.characters(codec="utf-8"), max_size=3))


@given(NODES, st.lists(NODES, max_size=12), st.integers(0, MAX_TAG))
def test_discovered_lists_as_many_as_fit(responder: NodeInfo, known: list[NodeInfo], tag: int) -> None:
    parcel = discovered(responder, known, tag=tag)
    assert isinstance(parcel.body, DscRes)
    first, *listed = parcel.body.neighbours
    assert (parcel.id, first) == (responder.id, responder)
    serialize(replace(parcel, bulk=bytes(tag)))
    rest = iter(known)
    assert all(node in rest for node in listed), "freshest first"
    for node in [node for node in known if node not in listed]:
        more = DscRes((*parcel.body.neighbours, node))
        with pytest.raises(LimitError):
            serialize(Parcel(responder.id, more, bytes(tag)))


def test_discovered_prefers_the_freshest() -> None:
    known = [replace(IVAN, id=number, name=f"node {number}") for number in range(100)]
    parcel = discovered(IVAN, known)
    assert isinstance(parcel.body, DscRes)
    assert parcel.body.neighbours == (IVAN, *known[:3])


# The order of parcels on a stream

BODY_OF: dict[str, Body] = {
    "DscReq": DscReq(IVAN),
    "DscRes": DscRes((IVAN,)),
    "SeqReq": SeqReq(),
    "SeqRes": SeqRes(1),
    "ProtoError": ProtoError(),
    "other": Ping(),
}


def move(exchange: Exchange, event: ParcelEvent) -> ParcelState:
    verb, _, what = event.value.partition(" ")
    return (exchange.sent if verb == "send" else exchange.received)(BODY_OF[what])


PATHS: dict[ParcelState, list[ParcelEvent]] = {
    ParcelState.IDLE: [],
    ParcelState.DISCOVERY: [ParcelEvent.SEND_DSC_REQ],
    ParcelState.RECOVERY: [ParcelEvent.SEND_SEQ_REQ],
    ParcelState.CLOSED: [ParcelEvent.RECEIVE_PROTO_ERROR],
}


@pytest.mark.parametrize("state", ParcelState)
@pytest.mark.parametrize("event", ParcelEvent)
def test_each_parcel_in_each_state_at_the_dialler(state: ParcelState, event: ParcelEvent) -> None:
    exchange = Exchange(DIALLER)
    for step in PATHS[state]:
        move(exchange, step)
    assert exchange.state is state
    if (state, event) in DIALLER:
        assert move(exchange, event) is DIALLER[state, event]
    else:
        with pytest.raises(UnexpectedError):
            move(exchange, event)
        assert exchange.state is state


def test_discovery_is_strict() -> None:
    exchange = Exchange(DIALLER)
    exchange.sent(DscReq(IVAN))
    for body in (Ping(), SeqRes(1), Prepare(1, 1, 1, 0)):
        with pytest.raises(UnexpectedError, match="in state discovery"):
            exchange.received(body)
    assert exchange.received(DscRes((IVAN,))) is ParcelState.IDLE
    with pytest.raises(UnexpectedError):
        exchange.received(DscRes((IVAN,)))


def test_heartbeats_pass_during_sequence_recovery() -> None:
    exchange = Exchange(LISTENER)
    exchange.received(SeqReq())
    exchange.received(Ping())
    exchange.sent(Pong())
    assert exchange.sent(SeqRes(1)) is ParcelState.IDLE


def test_only_the_dialler_asks() -> None:
    for body in (DscReq(IVAN), SeqReq()):
        with pytest.raises(UnexpectedError):
            Exchange(LISTENER).sent(body)
        with pytest.raises(UnexpectedError):
            Exchange(DIALLER).received(body)


def test_the_listener_is_the_diallers_mirror_image() -> None:
    assert all(event.mirrored.mirrored is event is not event.mirrored for event in ParcelEvent)
    assert {(state, event.mirrored): after for (state, event), after in LISTENER.items()} == DIALLER


def test_nothing_follows_a_proto_error() -> None:
    assert not [event for state, event in DIALLER if state is ParcelState.CLOSED]
    assert set(DIALLER.values()) == set(ParcelState)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(sorted(BODY_OF))), max_size=20))
def test_both_ends_agree(steps: list[tuple[bool, str]]) -> None:
    dialler, listener = Exchange(DIALLER), Exchange(LISTENER)
    for by_dialler, what in steps:
        sender, receiver = (dialler, listener) if by_dialler else (listener, dialler)
        try:
            sender.sent(BODY_OF[what])
        except UnexpectedError:
            with pytest.raises(UnexpectedError):
                receiver.received(BODY_OF[what])
        else:
            receiver.received(BODY_OF[what])
        assert dialler.state is listener.state


# Properties

NUMBERS = st.one_of(st.integers(0, 30), st.integers(0, 2**64 - 1))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "identity": NODES,
    "neighbours": st.lists(SMALL_NODES, max_size=2).map(tuple),
    "mode": st.sampled_from(Mode),
    "error": st.sampled_from(Fault),
    "reason": st.text(st.characters(codec="utf-8"), max_size=20),
}
BODY: st.SearchStrategy[Body] = st.one_of(
    *(
        st.builds(cls, **{field.name: FIELDS.get(field.name, NUMBERS) for field in fields_of(cls)})
        for cls in BODIES.values()
    )
)
PARCELS = st.builds(
    lambda sender, body, tag, batch: Parcel(sender, body, batch + tag if body.carries_batch else tag),
    st.integers(0, 65535),
    BODY,
    st.sampled_from([b"", b"tag", bytes(MAX_TAG)]),
    st.binary(max_size=300),
)
PLACES = st.lists(st.integers(0, 10_000), max_size=12)

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
TAGGED = st.one_of(
    st.integers(2**64, 2**70),
    st.just(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)),
    st.just(Decimal("1.5")),
    st.builds(cbor2.CBORTag, st.integers(0, 300), PLAIN),
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.one_of(st.text(max_size=3), st.sampled_from(["id", "bulk", "DscReq", "neighbours"]))
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=6,
    )


@given(st.lists(PARCELS, max_size=5), PLACES)
def test_what_is_written_is_read_back(parcels: list[Parcel], places: list[int]) -> None:
    wire = b"".join(map(serialize, parcels))
    assert outcome_and_rest(ParcelDecoder(), cut(wire, places)) == (parcels, None, 0)


@given(PARCELS)
def test_what_is_written_is_what_serde_would_write(parcel: Parcel) -> None:
    head, bulk = serialize_parts(parcel)
    assert head[0] == len(head) - 1
    plain = cbor2.loads(head[1:])
    assert list(plain) == ["is_response", "parcel_type", "id", "size", "body"]
    assert cbor2.dumps(plain) == head[1:]
    assert plain["size"] == len(cbor2.dumps(plain["body"]))
    if plain["body"] != "Empty":
        ((name, inner),) = plain["body"].items()
        assert name == plain["parcel_type"]
        assert inner.get("bulk", 0) == len(bulk)


@given(
    st.lists(
        st.one_of(PARCELS.map(serialize), nested(PLAIN).map(framed), st.binary(max_size=40)), max_size=4
    ),
    PLACES,
)
def test_any_chunking_reads_the_same(pieces: list[bytes], places: list[int]) -> None:
    wire = b"".join(pieces)
    whole = outcome_and_rest(ParcelDecoder(max_bulk=500), [wire])
    assert outcome_and_rest(ParcelDecoder(max_bulk=500), cut(wire, places)) == whole
    assert outcome_and_rest(ParcelDecoder(max_bulk=500), (wire[i : i + 1] for i in range(len(wire)))) == whole


@given(PARCELS, st.sampled_from(["is_response", "parcel_type", "id", "size", "body"]), nested(PLAIN | TAGGED))
def test_any_value_in_any_place_is_read_or_refused(parcel: Parcel, key: str, value: object) -> None:
    encoded = cbor2.dumps({**envelope(parcel), key: value})
    try:
        read, bulk = parse_parcel(encoded)
    except WireError:
        return
    assert read.id == (value if key == "id" else parcel.id)
    if key != "body":
        assert read == replace(parcel, id=read.id, bulk=b"")
        assert bulk == len(parcel.bulk)


@given(st.one_of(st.binary(max_size=255), nested(PLAIN | TAGGED).map(cbor2.dumps)))
def test_any_bytes_are_read_or_refused(encoded: bytes) -> None:
    with pytest.raises(WireError):
        parse_parcel(encoded)


@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda size: serialize_parts(Parcel(1, Prepare(1, 1, 1, 0), bytes(size)))[0],
                st.integers(0, 5000),
            ),
            st.binary(max_size=4000),
        ),
        max_size=8,
    )
)
def test_memory_stays_within_the_limits(chunks: list[bytes]) -> None:
    limit = 2048
    decoder = ParcelDecoder(max_bulk=limit)
    parse_parcel(SEQ_REQ[1:])
    peak = traced_peak(decoder, chunks)
    # a parcel's bulk, what came behind it in its chunk, the copy handed over, and the objects' own size
    assert peak < 4 * (limit + max(map(len, chunks), default=0)) + 16_384
