"""The publisher door: single publishes, runs of them, and a plain reading that both must agree with."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire.golden import cut, read
from tests.wire.outcome import outcome, traced_peak

from headrace.errors import LimitError, MalformedError, UsageError, WireError
from headrace.message import Run
from headrace.wire.attribute import kernels
from headrace.wire.attribute.items import HEADER, ITEM, MAX_BODY
from headrace.wire.attribute.publish import (
    RUN_BYTES,
    Attributes,
    Publish,
    PublisherDecoder,
    Publishes,
    PublishItem,
    parse_attributes,
    parse_publish,
    separate,
    serialize,
    serialize_all,
    serialize_attributes,
)

OSLO = Publish({"city": "Oslo", "degrees": -3.5}, b"snow")


def message(*items: tuple[int, bytes], extra: int = 0, command: int = 1) -> bytes:
    body = b"".join(bytes((number,)) + len(content).to_bytes(2) + content for number, content in items)
    return bytes((command,)) + len(body).to_bytes(2) + bytes((extra,)) + body


def publishes(chunks: Iterable[bytes]) -> tuple[list[Publish], tuple[Any, ...] | None]:
    """What the decoder makes of a stream, however it groups it."""
    runs, error = outcome(PublisherDecoder(), chunks)
    return list(itertools.chain.from_iterable(runs)), error


def reference(wire: bytes) -> tuple[list[Publish], int | None]:
    """The publishes of a stream in the plainest Python, and where it goes wrong."""
    found = []
    at = 0
    while len(wire) - at >= 4:
        command, length = wire[at], int.from_bytes(wire[at + 1 : at + 3])
        if command != 1 or length > 2000:
            return found, at
        body = wire[at + 4 : at + 4 + length]
        if len(body) < length:
            break
        items: dict[int, bytes] = {}
        inside = 0
        while inside < length:
            size = int.from_bytes(body[inside + 1 : inside + 3])
            content = body[inside + 3 : inside + 3 + size]
            if inside + 3 > length or len(content) < size:
                return found, at
            items[body[inside]] = content
            inside += 3 + size
        if length == 0 or (attributes := plain_attributes(items.get(1, b""))) is None:
            return found, at
        found.append(Publish(attributes, items.get(2, b"")))
        at += 4 + length
    return found, None


def plain_attributes(text: bytes) -> dict[str, str | float] | None:
    def refuse(word: str) -> None:
        raise ValueError(word)

    if not text:
        return {}
    try:
        value = json.loads(text.decode(), parse_constant=refuse, parse_int=float)
    except ValueError:
        return None
    if not isinstance(value, dict) or any(type(content) not in (str, float) for content in value.values()):
        return None
    for name, content in value.items():
        if isinstance(content, float) and not math.isfinite(content):
            return None
        try:
            (name + str(content)).encode()
        except UnicodeEncodeError:
            return None
    return value


# Attributes


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        (b"", {}),
        (b"{}", {}),
        (b' {"a" : 1 }\n', {"a": 1.0}),
        (b'{"a":1,"a":"last"}', {"a": "last"}),
        (b'{"":""}', {"": ""}),
        (
            b'{"a":1e3,"b":-0.25,"c":123456789012345678901234567890}',
            {"a": 1e3, "b": -0.25, "c": 1.2345678901234568e29},
        ),
        ('{"größe":"\\u00e9\\ud83d\\ude00é"}'.encode(), {"größe": "é😀é"}),
    ],
)
def test_attributes(text: bytes, attributes: Attributes) -> None:
    assert parse_attributes(text) == attributes
    assert parse_publish(message((1, text), (2, b"x"))[4:]) == Publish(attributes, b"x")
    assert all(type(value) in (str, float) for value in parse_attributes(text).values())


BAD_ATTRIBUTES = [
    b" ",
    b"null",
    b"[]",
    b"1",
    b'"a"',
    b"{",
    b'{"a":1',
    b'{"a":1}{}',
    b'{"a":1},{"b":2}',
    b'{"a":1}\x00',
    b'{"a":true}',
    b'{"a":null}',
    b'{"a":[]}',
    b'{"a":{"b":1}}',
    b'{"a":' + b"[" * 1900,
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":1e999}',
    b'{"a":' + b"9" * 400 + b"}",
    b'{"a":01}',
    b'{"a":.5}',
    b"{'a':1}",
    b"{a:1}",
    b'{"a":1,}',
    b'{"a":"\xff"}',
    b'{"\xff":1}',
    b'{"a":"\\ud800"}',
    b'{"a":"line\nbreak"}',
    b'\xef\xbb\xbf{"a":1}',
]


@pytest.mark.parametrize("text", BAD_ATTRIBUTES)
def test_bad_attributes_are_refused_in_their_place(text: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_attributes(text)
    assert (caught.value.protocol, caught.value.field, caught.value.value) == (
        "attribute",
        "attributes",
        text,
    )
    good, bad = serialize(OSLO), message((1, text), (2, b"x"))
    for before, after in itertools.product((0, 1, 3), (0, 2)):
        wire = good * before + bad + good * after
        for chunks in ([wire], [wire[i : i + 1] for i in range(len(wire))], cut(wire, [len(good) + 9])):
            found, error = publishes(chunks)
            assert found == [OSLO] * before
            assert error is not None
            assert (error[2], error[-1]) == ("attributes", before * len(good))


@pytest.mark.parametrize(
    "attributes",
    [
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": True},
        {"a": None},
        {"a": [1]},
        {"a": {"b": 1}},
        {"a": 10**400},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": object()},
    ],
)
def test_bad_attributes_are_not_written(attributes: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        serialize_attributes(attributes)


def test_the_envelope_has_texts_and_numbers_apart() -> None:
    assert separate(OSLO.attributes) == ({"city": "Oslo"}, {"degrees": -3.5})
    assert separate({}) == ({}, {})


# Items


@pytest.mark.parametrize(
    ("wire", "publish"),
    [
        (message((2, b"snow")), Publish({}, b"snow")),
        (message((1, b'{"a":1}')), Publish({"a": 1.0})),
        (message((1, b""), (2, b"")), Publish({})),
        (message((2, b"snow"), (1, b'{"a":1}')), Publish({"a": 1.0}, b"snow")),
        (message((1, b"bad"), (2, b"x"), (2, b"snow"), (1, b'{"a":1}')), Publish({"a": 1.0}, b"snow")),
        (message((9, b"skipped"), (2, b"snow"), (0, b"")), Publish({}, b"snow")),
        (message((9, b"skipped")), Publish({})),
        (message((2, b"snow"), extra=255), Publish({}, b"snow")),
    ],
)
def test_items_of_a_publish(wire: bytes, publish: Publish) -> None:
    assert publishes([wire]) == ([publish], None)
    assert publishes([wire * 3]) == ([publish] * 3, None)


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        (message(), "body of a publish"),
        (message((2, b"x"), command=2), "command"),
        (message((2, b"x"), command=0), "command"),
        (b"\x01\x00\x04\x00" + b"\x02\x00\x02x", "length of item 2"),
        (b"\x01\x00\x05\x00" + b"\x02\x00\x01x" + b"\x09", "body"),
        (b"\x01\x00\x06\x00" + b"\x02\x00\x01x" + b"\x09\x00", "body"),
        (b"\x01\x07\xd1\x00", "body length"),
        (b"\x01\xff\xff\x00", "body length"),
    ],
)
def test_what_is_refused(wire: bytes, field: str) -> None:
    good = serialize(OSLO)
    for before in (0, 1, 2, 5):
        found, error = publishes([good * before + wire + good * 2])
        assert found == [OSLO] * before
        assert error is not None
        assert (error[2], error[-1]) == (field, before * len(good))


def test_a_body_of_exactly_the_limit() -> None:
    publish = Publish({}, bytes(MAX_BODY - 3 - 2 - 3))
    wire = serialize(publish)
    assert len(wire) == 4 + MAX_BODY
    assert publishes([wire * 3]) == ([publish] * 3, None)


def test_what_does_not_fit_a_body_is_not_published() -> None:
    with pytest.raises(LimitError) as caught:
        serialize(Publish({}, bytes(MAX_BODY - 3 - 2 - 3 + 1)))
    assert (caught.value.field, caught.value.value, caught.value.limit) == (
        "body length of a publish",
        2001,
        MAX_BODY,
    )


# Runs


def test_publishes_side_by_side_are_one_run() -> None:
    messages = [Publish({"n": float(n)}, b"%d" % n) for n in range(100)]
    [run] = read(PublisherDecoder(), [b"".join(map(serialize, messages))])
    assert len(run) == 100
    assert run == Publishes([message.attributes for message in messages], Run.of(m.payload for m in messages))
    assert list(run) == messages


def test_a_long_stream_is_cut_into_runs_of_bounded_size() -> None:
    wire = serialize(OSLO)
    count = 3 * RUN_BYTES // len(wire)
    runs = read(PublisherDecoder(), [wire * count])
    assert 3 <= len(runs) <= 4
    assert sum(map(len, runs)) == count
    assert all(publish == OSLO for run in runs for publish in run)


def test_a_run_has_its_own_memory() -> None:
    data = bytearray(serialize(OSLO) * 2)
    decoder = PublisherDecoder()
    [run] = read(decoder, [bytes(data)])
    list(decoder.feed(serialize(Publish({}, b"xxxx")) * 9))
    assert list(run) == [OSLO, OSLO]


def test_as_many_attributes_as_payloads() -> None:
    with pytest.raises(UsageError):
        Publishes([{}], Run.of([]))


ATTRIBUTES = st.dictionaries(
    st.text(max_size=8),
    st.one_of(st.text(max_size=8), st.floats(allow_nan=False, allow_infinity=False)),
    max_size=4,
)
PUBLISHES = st.builds(Publish, ATTRIBUTES, st.binary(max_size=60))
PLACES = st.lists(st.integers(0, 1 << 16), max_size=12)


@given(st.lists(PUBLISHES, max_size=12), PLACES)
def test_what_is_written_is_read_back(messages: list[Publish], places: list[int]) -> None:
    wire = b"".join(map(serialize, messages))
    batch = Publishes([message.attributes for message in messages], Run.of(m.payload for m in messages))
    assert serialize_all(batch) == wire
    assert publishes([wire]) == publishes(cut(wire, places)) == (messages, None)
    assert reference(wire) == (messages, None)


def damaged(items: list[tuple[int, bytes]], at: int) -> bytes:
    wire = bytearray(message(*items))
    if at:
        wire[at % len(wire)] ^= 1 + at % 255
    return bytes(wire)


JSON_LIKE = st.one_of(
    ATTRIBUTES.map(serialize_attributes),
    st.sampled_from(BAD_ATTRIBUTES),
    st.text('{}[]":,0123e.-\\u d8atrue\n', max_size=20).map(str.encode),
)
NEAR_PUBLISHES = st.one_of(
    PUBLISHES.map(serialize),
    st.builds(
        damaged,
        st.lists(
            st.one_of(st.tuples(st.just(1), JSON_LIKE), st.tuples(st.integers(0, 4), st.binary(max_size=20))),
            max_size=4,
        ),
        st.one_of(st.just(0), st.integers(0, 1 << 16)),
    ),
)


@given(st.one_of(st.binary(max_size=100), st.lists(NEAR_PUBLISHES, max_size=8).map(b"".join)), PLACES)
@example(serialize(OSLO) * 3 + b"\x02", [])
def test_runs_are_single_publishes_are_the_reference(wire: bytes, places: list[int]) -> None:
    found, error = publishes([wire])
    assert publishes(cut(wire, places)) == (found, error)
    assert publishes(wire[i : i + 1] for i in range(len(wire))) == (found, error)
    assert (found, None if error is None else error[-1]) == reference(wire)
    for publish in found:
        assert publishes([serialize(publish)]) == ([publish], None)


@given(st.one_of(st.binary(max_size=100), st.lists(NEAR_PUBLISHES, max_size=8).map(b"".join)))
def test_the_kernels_are_their_plain_python(wire: bytes) -> None:
    data = np.frombuffer(wire, np.uint8)
    compiled, plain = (np.full((len(wire) // 7, kernels.COLUMNS), -1, np.int32) for _ in range(2))
    count = compiled_form(kernels.scan_publishes)(data, compiled)
    assert count == unwrapped(kernels.scan_publishes)(data, plain)
    edges = compiled[:count]
    assert np.array_equal(edges, plain[:count])
    assert ((edges >= 0) & (edges <= len(wire))).all()
    size = int((edges[:, kernels.PAYLOAD_END] - edges[:, kernels.PAYLOAD_BEGIN]).sum())
    gathered = []
    for gather in (compiled_form(kernels.gather_payloads), unwrapped(kernels.gather_payloads)):
        run = Run(np.empty(size, np.uint8), np.empty(count + 1, np.int32))
        gather(data, edges, run.data, run.offsets)
        gathered.append(run)
    assert gathered[0] == gathered[1]


def unwrapped(kernel: Any) -> Any:
    return kernel.py_func


def compiled_form(kernel: Any) -> Any:
    kernels.load(kernels.__name__)
    return kernel.compiled


def test_the_kernels_can_be_warmed() -> None:
    kernels.warm()


def test_the_kernels_and_the_codec_agree_on_the_layout() -> None:
    assert (HEADER.size, ITEM.size, MAX_BODY) == (kernels.HEADER_BYTES, kernels.ITEM_BYTES, kernels.MAX_BODY)
    assert (kernels.PUBLISH, kernels.ATTRIBUTES, kernels.PAYLOAD) == (
        Publish.COMMAND,
        PublishItem.ATTRIBUTES,
        PublishItem.PAYLOAD,
    )


# Memory


@given(st.binary(max_size=4000), st.integers(1, 1000))
def test_memory_stays_within_the_limits(wire: bytes, step: int) -> None:
    chunks = [wire[i : i + step] for i in range(0, len(wire), step)]
    assert traced_peak(PublisherDecoder(), chunks) < 8 * (MAX_BODY + step) + 32_768


def test_the_attributes_of_one_run_at_a_time() -> None:
    names = ",".join(f'"{n:x}":1' for n in range(200))
    wire = message((1, b"{%b}" % names.encode())) * 1000
    peak = traced_peak(PublisherDecoder(), [wire])
    assert len(wire) > 20 * RUN_BYTES
    assert peak < 3 * len(wire) + 40 * RUN_BYTES


def test_a_refusal_is_ours() -> None:
    with pytest.raises(WireError, match="at byte 0"):
        read(PublisherDecoder(), [message((1, b"[]"))])
