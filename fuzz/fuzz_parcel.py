"""Arbitrary nodes of a cluster.

The input's first byte chooses how the rest is chunked; the rest is what the node sends.
"""

from __future__ import annotations

import contextlib

import cbor2

from headrace.errors import UnexpectedError, WireError
from headrace.wire.parcel.stream import (
    DIALLER,
    LISTENER,
    MAX_PARCEL,
    Exchange,
    Parcel,
    ParcelDecoder,
    parse_parcel,
    serialize,
    serialize_parts,
)

MAX_BULK = 600
SPELT_OUT = 20
"""What we may write beyond what came: a true ``size``, and fields that were left to their defaults."""

Outcome = tuple[list[Parcel], tuple[object, ...] | None, int]


def target(data: bytes) -> None:
    choice, wire = data[0] if data else 0, data[1:]
    outcome = read([wire])
    step = choice + 1
    assert read([wire[i : i + step] for i in range(0, len(wire), step)]) == outcome, "chunking matters"
    check(wire, outcome)
    converse(outcome[0])
    alone(wire)


def read(chunks: list[bytes]) -> Outcome:
    """The parcels, the refusal's facts, and how much of a parcel is left unfinished."""
    decoder = ParcelDecoder(max_bulk=MAX_BULK)
    parcels: list[Parcel] = []
    try:
        for chunk in chunks:
            for parcel in decoder.feed(chunk):
                parcels.append(parcel)  # noqa: PERF402  those before a refusal count
            assert len(decoder.inbox) <= MAX_BULK
    except WireError as error:
        return parcels, (type(error), error.protocol, error.field, str(error), error.limit, error.offset), 0
    return parcels, None, decoder.unfinished


def check(wire: bytes, outcome: Outcome) -> None:
    """What was read can be written and is read as the same; nothing is lost between parcels."""
    parcels, refusal, unfinished = outcome
    at = 0
    for parcel in parcels:
        end = at + 1 + wire[at]
        if wire[at] <= MAX_PARCEL - SPELT_OUT:
            assert list(ParcelDecoder().feed(serialize(parcel))) == [parcel]
            came, ours = cbor2.loads(wire[at + 1 : end]), cbor2.loads(serialize_parts(parcel)[0][1:])
            if came["parcel_type"] == "SeqRes" and not came["is_response"]:
                came["parcel_type"] = "SeqReq"  # as the document calls it
            for key in ("is_response", "parcel_type", "id"):
                assert came[key] == ours[key]
        assert wire[end : end + len(parcel.bulk)] == parcel.bulk
        at = end + len(parcel.bulk)
    if refusal is None:
        assert at + unfinished == len(wire)


def converse(parcels: list[Parcel]) -> None:
    """Both ends of a stream judge each parcel alike."""
    dialler, listener = Exchange(DIALLER), Exchange(LISTENER)
    for parcel in parcels:
        try:
            dialler.sent(parcel.body)
        except UnexpectedError:
            continue
        assert listener.received(parcel.body) is dialler.state


def alone(encoded: bytes) -> None:
    """A parcel without its length byte, so that the search need not get the length right."""
    with contextlib.suppress(WireError):
        parse_parcel(encoded[:MAX_PARCEL])
