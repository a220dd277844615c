from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.log.content import batch, columns, flat, operations, place, submitted

from headrace.errors import UsageError
from headrace.log import frame
from headrace.log.checksum import crc32c
from headrace.message import Batch, Run

SALT = 0x5EED_5A17


def encoded(content: Batch, salt: int = SALT, **options: Any) -> bytes:
    pieces, length = frame.encode(content, salt, **options)
    whole = b"".join(pieces)
    assert len(whole) == length
    return whole


def no_label(_at: int) -> frame.Label:
    raise AssertionError("it has one of its own")


RICH = batch(
    7,
    b"one",
    b"",
    b"three",
    time=1_700_000_000_000_000,
    origin="attribute",
    node=60396,
    publisher="p",
    number=40,
    topic="t/é",
    columns=columns(
        attributes=[{"a": "b"}, {}, {"c": ""}],
        numbers=[{}, {"x": float("nan")}, {"y": -0.0}],
        node=[1, 2, 65535],
    ),
)


class TestSummedUp:
    def test_payloads_that_are_summed_up_make_the_same_frame(self) -> None:
        run = Run.of([b"before", *(b"%d" % n * 9 for n in range(3000)), b"after"]).slice(1, 3001)
        content = replace(RICH, run=run, columns=None)
        summed = replace(content, run=Run(run.data, run.offsets, crc32c(run.content)))
        assert encoded(summed) == encoded(content)
        assert frame.check(encoded(summed), 0, SALT) > run.size

    def test_what_changed_since_is_found(self) -> None:
        run = Run.of([bytes(20_000), b"y"])
        wrong = replace(RICH, run=Run(run.data, run.offsets, crc32c(bytes(19_999) + b"xy")), columns=None)
        with pytest.raises(frame.BadFrame, match="checksum"):
            frame.check(encoded(wrong), 0, SALT)

    def test_a_part_of_a_run_is_summed_up_anew(self) -> None:
        run = Run.of([bytes(20_000), b"x" * 20_000, b"y"])
        summed = Run(run.data, run.offsets, crc32c(run.content))
        part = replace(RICH, run=summed.slice(1, 3), columns=None)
        assert frame.check(encoded(part), 0, SALT) > 20_000


class TestRoundTrip:
    @given(
        submitted(),
        st.integers(1, (1 << 48) - 10),
        st.integers(1, (1 << 48) - 10),
        st.integers(0, 1 << 50),
        st.binary(max_size=40),
        st.booleans(),
    )
    def test_a_frame_gives_back_its_batch(
        self, content: Batch, op: int, first: int, now: int, before: bytes, continued: bool
    ) -> None:
        written = replace(place(content, first, now), op=op)
        begin, end = frame.time_span(written)
        whole = encoded(written, time=begin, continued=continued)
        assert len(whole) % 4 == 0
        before = before[: len(before) & ~3]
        assert frame.check(before + whole, len(before), SALT) == len(whole)
        [found] = frame.scan(before + whole, len(before), SALT)
        assert found[:6] == (len(before), len(whole), len(written), op, written.first, begin)
        assert bool(found.flags & frame.CONTINUED) == continued
        assert (found.entries, found.label) == (written.is_entries, 0)
        read = frame.decode(before + whole, len(before), no_label)
        assert operations([read]) == operations([written])
        assert read.last_time == frame.last_time(before + whole, len(before)) == end
        parts = frame.parts(before + whole, len(before))
        assert parts.columns - parts.payload == written.run.size

    @given(submitted(), st.integers(1, frame.REACH // 4))
    def test_a_label_that_an_earlier_frame_has(self, content: Batch, back: int) -> None:
        """The frame is the same in everything else, and shorter."""
        written = place(content, 7, 0)
        begin, _ = frame.time_span(written)
        alone, referring = encoded(written, time=begin), encoded(written, time=begin, back=4 * back)
        assert len(referring) <= len(alone)
        [found] = frame.scan(referring, 0, SALT)
        assert found.label == 4 * back
        asked = []

        def find(at: int) -> frame.Label:
            asked.append(at)
            return frame.label_of(written)

        assert flat([frame.decode(referring, 0, find)]) == flat([written])
        assert asked == [-4 * back]

    @pytest.mark.parametrize("size", [0, 1, 16 << 10, (16 << 10) + 1, 3 << 20])
    def test_small_and_large_payloads_make_the_same_kind_of_frame(self, size: int) -> None:
        written = batch(3, b"x" * size, b"y", origin="tube", columns=columns(topic=["a", "b"]))
        whole = encoded(written)
        assert frame.check(whole, 0, SALT) == len(whole)
        assert flat([frame.decode(whole, 0, no_label)]) == flat([written])

    def test_a_slice_is_written_without_what_surrounds_it(self) -> None:
        content = batch(1, b"secret", b"a", b"b", b"secret").slice(1, 3)
        whole = encoded(content)
        assert b"secret" not in whole
        assert list(frame.decode(whole, 0, no_label).run) == [b"a", b"b"]

    @pytest.mark.parametrize("size", [0, 1, 5, 8, 1000, 20_000])
    @pytest.mark.parametrize("continued", [False, True])
    def test_a_message_alone_makes_the_same_bytes(self, size: int, continued: bool) -> None:
        for differing in (None, columns(topic=["x"])):
            shared = {
                "first": 9,
                "time": 4,
                "origin": "o",
                "number": 3,
                "topic": "t",
                "node": 7,
                "columns": differing,
            }
            alone = Batch(Run.one(b"x" * size), **shared)
            among = Batch(Run.of([b"x" * size]), **shared)
            assert encoded(alone, continued=continued) == encoded(among, continued=continued)

    def test_side_by_side(self) -> None:
        parts = [encoded(batch(n, b"x" * n)) for n in range(1, 9)]
        found = list(frame.scan(b"".join(parts) + b"\0" * 80, 0, SALT))
        assert [place.first for place in found] == list(range(1, 9))
        assert [place.at for place in found] == [sum(map(len, parts[:n])) for n in range(8)]


class TestDamage:
    @pytest.mark.parametrize("content", [batch(1, b"hello", origin="x"), RICH], ids=["plain", "rich"])
    def test_every_flipped_bit_is_noticed(self, content: Batch) -> None:
        whole = encoded(content)
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(frame.BadFrame):
                frame.check(bytes(flipped), 0, SALT)
            assert not list(frame.scan(bytes(flipped), 0, SALT))

    def test_every_missing_byte_is_noticed(self) -> None:
        whole = encoded(RICH)
        for size in range(len(whole)):
            with pytest.raises(frame.BadFrame, match="cut short"):
                frame.check(whole[:size], 0, SALT)
            assert not list(frame.scan(whole[:size], 0, SALT))
            lacking = frame.missing(whole[:size], 0, SALT)
            assert lacking == (len(whole) if size >= frame.HEADER.size else frame.HEADER.size) - size

    def test_a_frame_of_another_file_is_none_of_ours(self) -> None:
        whole = encoded(RICH, salt=SALT + 1)
        with pytest.raises(frame.BadFrame, match="no frame"):
            frame.check(whole, 0, SALT)
        assert frame.missing(whole[:-8], 0, SALT) == 0

    @pytest.mark.parametrize("length", [0, 8, frame.HEADER.size - 4, 61, frame.MAX_FRAME + 8, (1 << 32) - 8])
    def test_a_length_that_cannot_be_takes_no_memory(self, length: int) -> None:
        whole = bytearray(encoded(RICH))
        whole[8:12] = length.to_bytes(4, "little")
        with pytest.raises(frame.BadFrame, match=f"a frame cannot have {length} bytes"):
            frame.check(bytes(whole), 0, SALT)
        assert frame.missing(bytes(whole), 0, SALT) == 0


class TestZeroCopy:
    def test_payloads_and_offsets_stay_where_they_are(self) -> None:
        window = encoded(RICH)
        run = frame.decode(window, 0, no_label).run
        inside = np.frombuffer(window, np.uint8)
        assert np.shares_memory(run.data, inside)
        assert np.shares_memory(run.offsets, inside)

    def test_large_payloads_are_written_from_where_they_are(self) -> None:
        content = batch(1, b"x" * 100_000, b"y")
        pieces, _ = frame.encode(content, SALT)
        assert any(
            np.shares_memory(np.frombuffer(piece, np.uint8), content.run.data) for piece in pieces if piece
        )


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (batch(1, origin="x" * 256), "origin has 256 bytes; the limit is 255"),
            (batch(1, publisher="é" * 32768), "publisher has 65536 bytes; the limit is 65535"),
            (batch(1, topic="x" * 65536), "topic has 65536 bytes; the limit is 65535"),
            (batch(1, node=65536), "node 65536 is not within 0 to 65535"),
            (batch(1, node=-1), "node -1"),
            (batch(-1), "first -1"),
            (batch(1, number=1 << 63), "number 9223372036854775808"),
            (batch(1, time=1 << 63), "time 9223372036854775808"),
            (batch(1, b"a", b"b", columns=columns(node=[1])), "columns for 1 messages beside 2"),
            (batch(1, columns=pa.record_batch({"node": pa.array([1])})), "column node of int64"),
            (batch(1, columns=pa.record_batch({"seq": pa.array([1])})), "column seq"),
            (batch(1, columns=pa.record_batch({"payload": pa.array([b"x"])})), "column payload"),
            (batch(1, columns=columns(topic=[None])), "column topic has nulls"),
            (Batch(Run(np.zeros(3, np.uint8), np.array([0, 1, 4], np.int32)), first=1), "offsets 0 to 4"),
        ],
    )
    def test_what_has_no_room_in_a_frame(self, content: Batch, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            frame.encode(content, SALT)
        if len(content) == 1 and not said.startswith("offsets"):
            with pytest.raises(UsageError, match=said):
                frame.encode(replace(content, run=Run.one(b"")), SALT)

    def test_a_batch_past_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for run in (Run.of([b"x" * 100]), Run.one(b"x" * 100)):
            content = Batch(run, first=1)
            _, length = frame.encode(content, SALT)
            with monkeypatch.context() as patch:
                patch.setattr(frame, "MAX_FRAME", length)
                frame.encode(content, SALT)
                patch.setattr(frame, "MAX_FRAME", length - 1)
                with pytest.raises(UsageError, match=f"a batch of {length} bytes is too long: split it"):
                    frame.encode(content, SALT)

    def test_times_that_decrease(self) -> None:
        content = batch(5, b"a", b"b", b"c", columns=columns(time=[3, 5, 4]))
        with pytest.raises(UsageError, match="times decrease within the batch of message 5"):
            frame.time_span(content)
        assert frame.time_span(replace(content, columns=columns(time=[3, 3, 4]))) == (3, 4)
