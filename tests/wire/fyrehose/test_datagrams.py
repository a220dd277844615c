"""fyrehose over UDP: datagrams, one by one and many at once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.fyrehose_frames import (
    CLIENT,
    EXAMPLE,
    HUB,
    PUSHES,
    delivers,
    frames,
    hub_frames,
    pushes,
    wrong,
)

from headrace.errors import LimitError, MalformedError, UnexpectedError, WireError
from headrace.message import Run
from headrace.wire.fyrehose import datagrams as fyrehose_datagrams
from headrace.wire.fyrehose import kernels
from headrace.wire.fyrehose.stream import (
    MAX_DATAGRAM,
    MAX_DELIVER_DATAGRAM,
    MAX_PUSH_DATAGRAM,
    BadDatagram,
    Deliver,
    Frame,
    Keepalive,
    LoneDatagram,
    Push,
    PushDatagrams,
    parse,
    parse_client_datagram,
    parse_datagram,
    parse_datagrams,
    serialize,
)


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_compiled() -> None:
    kernels.warm()


class TestDatagrams:
    @given(frames)
    def test_single_packets(self, frame: Frame) -> None:
        wire = serialize(frame)
        if isinstance(frame, HUB):
            assert parse_datagram(wire) == [frame]
        else:
            with pytest.raises(UnexpectedError):
                parse_datagram(wire)
        if isinstance(frame, CLIENT):
            assert parse_client_datagram(wire) == [frame]
        else:
            with pytest.raises(UnexpectedError):
                parse_client_datagram(wire)

    @given(st.lists(pushes, min_size=1, max_size=10), st.lists(delivers, min_size=1, max_size=10))
    def test_several_that_delimit_themselves(self, several: list[Push], delivered: list[Deliver]) -> None:
        assert parse_datagram(b"".join(map(serialize, several))) == several
        assert parse_client_datagram(b"".join(map(serialize, delivered))) == delivered

    @given(st.lists(hub_frames, min_size=2, max_size=5))
    def test_other_packets_stand_alone(self, several: list[Frame]) -> None:
        wire = b"".join(map(serialize, several))
        if all(isinstance(frame, Push) for frame in several):
            assert parse_datagram(wire) == several
        else:
            with pytest.raises(MalformedError, match="stands alone"):
                parse_datagram(wire)

    @pytest.mark.parametrize(
        ("wire", "problem"),
        [
            ("", "TYPE 0x at byte 0 is malformed: one byte"),
            ("00", "TYPE 0 "),
            ("02", "packet size 3 at byte 0 is malformed: at most the datagram's 1 bytes"),
            ("02 0001", "packet size 4 "),
            ("02 0000 02", "packet size 3 at byte 3 "),
            ("02 0000 03", "TYPE 3 at byte 3 "),
            ("02 ffff", "LENGTH 65535 at byte 0 is over the limit: 65526"),
            ("10 7f000001 09", "packet size 7 "),
            ("10 7f000001 0913 00", "stands alone"),
            ("02 7f000001 0913 00", "packet size 32515 "),
            ("02 00 0000 0000 00", "TYPE 0 at byte 3 "),
            ("04 7f000001 0913 000000000009 000000000008", "FROM_SEQ 9 .* at most TO_SEQ, 8"),
            ("04 7f000001 0913 000000000000 000000000000", "FROM_SEQ 1 .* at most TO_SEQ, 0"),
            ("02 0000 01 0000 000000000001", "TYPE 'DELIVER' at byte 3 is not allowed here"),
        ],
    )
    def test_what_is_wrong_is_named(self, wire: str, problem: str) -> None:
        with pytest.raises(WireError, match=problem):
            parse_datagram(bytes.fromhex(wire))

    def test_no_datagram_is_longer_than_udp_has(self) -> None:
        push = Push(bytes(MAX_PUSH_DATAGRAM))
        deliver = Deliver(1, bytes(MAX_DELIVER_DATAGRAM))
        assert len(serialize(push)) == len(serialize(deliver)) == MAX_DATAGRAM
        assert parse_datagram(serialize(push)) == [push]
        assert parse_client_datagram(serialize(deliver)) == [deliver]
        with pytest.raises(LimitError, match="datagram size 65508"):
            parse_datagram(serialize(Push(bytes(MAX_PUSH_DATAGRAM + 1))))
        for long in ([Push(bytes(MAX_PUSH_DATAGRAM + 1))], [push, Push(b"")]):
            datagram = b"".join(map(serialize, long))
            several = parse_datagrams([serialize(push), datagram, serialize(push)])
            assert [type(arrival) for arrival in several] == [PushDatagrams, BadDatagram, PushDatagrams]

    @given(st.binary(min_size=7, max_size=7).map(lambda tail: b"\x02" + tail[1:]))
    def test_seven_bytes_that_begin_with_2_are_a_keepalive_unless_they_can_be_pushes(
        self, wire: bytes
    ) -> None:
        try:
            found = parse_datagram(wire)
        except WireError:
            assert wire[1] == 0
        else:
            assert isinstance(found[0], Keepalive) == (wire[1] != 0)
            assert wire[1] == 0 or found == [parse(b"\x10" + wire[1:])]

    @given(
        st.lists(
            st.lists(pushes, min_size=1, max_size=3).map(lambda several: b"".join(map(serialize, several)))
            | hub_frames.map(serialize)
            | st.just(EXAMPLE.wire)
            | st.binary(max_size=12)
            | wrong,
            max_size=12,
        )
    )
    def test_many_at_once_are_what_each_is(self, datagrams: list[bytes]) -> None:
        expected: list[Any] = []
        for datagram in datagrams:
            try:
                expected.append(parse_datagram(datagram))
            except WireError as error:
                expected.append(str(error))
        found: list[Any] = []
        for arrival in parse_datagrams(datagrams):
            match arrival:
                case PushDatagrams(first, counts, run):
                    assert first == len(found)
                    assert counts.sum() == len(run)
                    payload = map(Push, run)
                    found += [list(itertools.islice(payload, count)) for count in counts.tolist()]
                case LoneDatagram(index, frame):
                    assert index == len(found)
                    found.append([frame])
                case BadDatagram(index, error):
                    assert index == len(found)
                    found.append(str(error))
        assert found == expected

    def test_pushes_of_datagrams_side_by_side_are_one_run(self) -> None:
        hello, bad, keepalive = PUSHES.wire, b"\x03", EXAMPLE.wire
        found = parse_datagrams([hello, hello, bad, hello, keepalive, hello])
        assert [type(arrival) for arrival in found] == [
            PushDatagrams,
            BadDatagram,
            PushDatagrams,
            LoneDatagram,
            PushDatagrams,
        ]
        assert found[0].run == Run.of([b"hi", b""] * 2)
        assert found[0].counts.tolist() == [2, 2]

    def test_none_at_all(self) -> None:
        assert parse_datagrams([]) == []

    def test_a_run_never_outgrows_its_offsets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fyrehose_datagrams, "MAX_RUN_BYTES", 25)
        arrivals = parse_datagrams([serialize(Push(b"0123456789"))] * 5)
        assert [(arrival.first, len(arrival.run)) for arrival in arrivals] == [(0, 2), (2, 2), (4, 1)]

    def test_thousands_of_one_datagram_are_not_read_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fyrehose_datagrams, "read", None)
        (arrival,) = parse_datagrams([serialize(Push(b"long" * 100)) + serialize(Push(b"")) * 20_000])
        assert isinstance(arrival, PushDatagrams)
        assert (len(arrival.run), arrival.counts.tolist()) == (20_001, [20_001])

    def test_nor_are_thousands_before_a_bad_packet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        datagram = serialize(Push(b"")) * 20_000 + b"\x03"
        with pytest.raises(MalformedError) as caught:
            parse_datagram(datagram)
        monkeypatch.setattr(fyrehose_datagrams, "read", None)
        (arrival,) = parse_datagrams([datagram])
        assert isinstance(arrival, BadDatagram)
        assert str(arrival.error) == str(caught.value)
