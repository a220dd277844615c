"""JSON of a wanted type, or our error."""

from __future__ import annotations

import msgspec
import pytest

from headrace.errors import MalformedError
from headrace.wire.typed_json import Json, decode_json, shown

NUMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
WORDS = msgspec.json.Decoder(list[str])


@pytest.mark.parametrize("text", [b'["a"]', '["a"]', msgspec.Raw(b'["a"]')])
def test_the_value_of_a_text(text: Json) -> None:
    assert decode_json(WORDS, text, "sdk", "words", "a list of strings") == ["a"]
    assert shown(text) == '["a"]'


@pytest.mark.parametrize(
    "text", [b"", b"[", b"{}", b"[1]", b'["\xff"]', '["\ud800"]', b'["a"] x', msgspec.Raw(b"null")]
)
def test_any_other_text_breaks_the_rule(text: Json) -> None:
    with pytest.raises(MalformedError) as caught:
        decode_json(WORDS, text, "sdk", "words", "a list of strings")
    error = caught.value
    assert (error.protocol, error.field, error.limit) == ("sdk", "words", "a list of strings")
    assert error.value == shown(text)


def test_deep_nesting_in_what_nobody_asked_for() -> None:
    with pytest.raises(MalformedError):
        decode_json(NUMBERS, b'{"a": ' + b"[" * 100_000, "attribute", "numbers", "an object")
