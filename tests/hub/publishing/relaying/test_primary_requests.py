"""What nodes ask of the primary, there and back, and what is no such thing."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    FullError,
    HeadraceError,
    LimitError,
    MalformedError,
    RefusedError,
    UnavailableError,
)
from headrace.hub.publishing.relaying.primary_requests import (
    PrimaryAnswer,
    body_for,
    parse_answer,
    parse_bulk,
    published_batch,
    refusal,
    request_for,
    serialize_answer,
    serialize_request,
)
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.sequencer import Published
from headrace.message import SCHEMA, Batch, Run


def there(batch: Batch) -> Batch:
    """A publisher's batch as the primary gets it."""
    request = RelayRequest(
        [batch],
        lambda _: None,
        passed=False,
        publisher=batch.publisher,
        number=batch.number or 0,
        follows=True,
    )
    asked, body = parse_bulk(serialize_request(request_for(request), body_for(request, UUID(int=1))))
    assert (asked.kind, asked.follows) == ("publish", True)
    return published_batch(asked, body)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_rows_are_the_same_there(payloads: list[bytes], topic: str, publisher: str) -> None:
    """Few messages and many take different ways, and come to the same."""
    batch = Batch(Run.of(payloads), origin="tube", publisher=publisher, number=7, topic=topic)
    got = there(batch)
    assert list(got.run) == payloads
    assert (got.origin, got.publisher, got.number, got.topic) == ("tube", publisher, 7, topic)
    assert got.columns is None


def test_attributes_are_the_same_there() -> None:
    columns = pa.record_batch(
        [
            pa.array([[("city", "Praha")], []], SCHEMA.field("attributes").type),
            pa.array([[("x", 5.0)], [("x", 6.0)]], SCHEMA.field("numbers").type),
        ],
        schema=pa.schema([SCHEMA.field("attributes"), SCHEMA.field("numbers")]),
    )
    batch = Batch(Run.of([b"a", b"b"]), origin="tube", publisher="p", number=0, topic="t", columns=columns)
    got = there(batch)
    assert list(got.run) == [b"a", b"b"]
    assert got.columns == columns


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError("gap", "a number is missing"), "gap"),
        (LimitError("link", "commit", 2, 1), "limit"),
        (UnavailableError("no primary"), "unavailable"),
        (FullError("log", "no space"), "storage"),
    ],
)
def test_refusals_are_told(error: HeadraceError, code: str) -> None:
    told = parse_answer(serialize_answer(refusal(error)))
    assert told.error == code
    again = told.published
    assert isinstance(again, UnavailableError if code == "unavailable" else RefusedError)
    assert told.refused is not None


def test_answers_are_told() -> None:
    told = parse_answer(serialize_answer(PrimaryAnswer(3, 9, 2, op=11)))
    assert told.refused is None
    assert told.published == Published(3, 9, 2, op=11)


@pytest.mark.parametrize("bulk", [b"", b"\0\0\0\xff", b"\0\0\0\1\xc1", b"\0\0\0\1\x80"])
def test_what_is_no_question_is_refused(bulk: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_bulk(bulk)


def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(MalformedError):
        parse_answer(b"\xc1")
