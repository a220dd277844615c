"""Captures to rows: every protocol's frames, what is malformed, and TCP as it really arrives."""

from __future__ import annotations

import itertools
import json
import struct
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.spark.jobs.conftest import Play
from websockets.frames import Frame, Opcode

from headrace.archive.folder import Folder
from headrace.config import DOORS
from headrace.errors import MalformedError, UsageError
from headrace.spark.jobs.decode import TASKS_A_CORE, decode, parse_ports
from headrace.spark.jobs.decode.capture_rows import of_pieces, rows_of
from headrace.spark.jobs.decode.pcap import pieces
from headrace.wire import spp
from headrace.wire.attribute import publish
from headrace.wire.capture import Capture, Chunk, serialize
from headrace.wire.fyrehose import stream as fyrehose
from headrace.wire.link import message as link
from headrace.wire.sdk import commands as sdk
from headrace.wire.tube import frames as tube

CORPUS = Path(__file__).parents[4] / "fuzz" / "corpus"
PORTS = {2323: "fyrehose", 3002: "spp"}


def capture(path: Path, door: str, *chunks: tuple[bool, bytes], datagrams: bool = False) -> str:
    content = serialize(Capture(door, "127.0.0.1:40000", datagrams))
    for time, (outgoing, data) in enumerate(chunks):
        content += serialize(Chunk(outgoing, time, data))
    path.write_bytes(content)
    return path.name


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return list(rows_of(Folder.at(str(folder)), name, PORTS))


SWITCH = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"


def framed(data: bytes, opcode: Opcode = Opcode.BINARY, *, fin: bool = True) -> bytes:
    """A frame as a WebSocket client sends it, by the library."""
    return Frame(opcode, bytes(data), fin=fin).serialize(mask=True)


def pieces_of(message: bytes) -> list[bytes]:
    return [bytes(piece) for piece in tube.websocket_pieces(message, 128)]


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in found]


def test_every_door_has_its_decoder(tmp_path: Path) -> None:
    """A frame of each protocol, cut in the middle: a row, told from where it came."""
    offer = spp.serialize(spp.Publish("load", b"{}"))
    hello = link.serialize({"op": "hello", "id": 0})
    wanted = {
        "fyrehose": (fyrehose.serialize(fyrehose.Push(b"hi")), "Push"),
        "spp": (offer, "Publish"),
        "sdk": (sdk.serialize(sdk.Heartbeat()), "Heartbeat"),
        "publisher": (publish.serialize(publish.Publish({"n": 1}, b"hi")), "Publish"),
        "tube_ws": (SWITCH + framed(b"\x80\x01") + b"".join(map(framed, pieces_of(hello))), "Message"),
        "tube_tcp": (b"\x80\x01" + b"".join(map(bytes, tube.stream_pieces(hello, 128))), "Message"),
        "parcel": ((CORPUS / "parcel" / "seqreq").read_bytes()[1:], "Parcel"),
        "router": ((CORPUS / "attribute" / "router-push").read_bytes()[1:], "Push"),
        "dispatcher": ((CORPUS / "attribute" / "matcher-push").read_bytes()[1:], "MatcherPush"),
        "status": ((CORPUS / "attribute" / "node-info").read_bytes()[1:], "NodeInfo"),
    }
    for door, (wire, kind) in wanted.items():
        found = rows(
            tmp_path, capture(tmp_path / f"{door}.capture", door, (False, wire[:3]), (False, wire[3:]))
        )
        assert kinds(found)[-1] == kind, found
        assert all(row["error"] is None and row["door"] == door for row in found)
        json.loads(found[-1]["fields"])
    message = rows(tmp_path, "tube_tcp.capture")[-1]
    assert json.loads(message["fields"]) == {"op": "hello", "id": 0}
    assert set(wanted) | {"http"} == set(DOORS)


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 200_000])
def test_websocket_messages_of_any_size_in_any_frames(tmp_path: Path, size: int) -> None:
    message = Random(size).randbytes(size)
    piece = b"".join(map(bytes, tube.websocket_pieces(message, 1 << 20)))
    cut = len(piece) // 2
    wire = SWITCH + framed(b"\x80\x01") + framed(b"?", Opcode.PING)
    wire += framed(piece[:cut], fin=False) + framed(b"", Opcode.PONG) + framed(piece[cut:], Opcode.CONT)
    wire += framed(b"\x03\xe8bye", Opcode.CLOSE)
    name = capture(
        tmp_path / "a.capture", "tube_ws", *((False, wire[at : at + 999]) for at in range(0, len(wire), 999))
    )
    found = rows(tmp_path, name)
    assert kinds(found) == ["Handshake", "FragmentSize", "WebSocketPing", "WebSocketPing", "Message", "Close"]
    assert found[4]["payload"] == message
    assert json.loads(found[5]["fields"]) == {"code": 1000, "reason": "bye"}


@pytest.mark.parametrize(
    "bad",
    [
        framed(b"words", Opcode.TEXT),
        Frame(Opcode.BINARY, b"\x80\x01").serialize(mask=False),
        b"\xc2\x80",
        b"\x82\xff" + b"\xff" * 12,
        framed(b""),
    ],
    # Masks are random, and the names of tests must not be.
    ids=["text", "unmasked", "reserved", "too long", "empty"],
)
def test_websocket_frames_that_are_refused(tmp_path: Path, bad: bytes) -> None:
    found = rows(
        tmp_path, capture(tmp_path / "a.capture", "tube_ws", (False, SWITCH + bad), (False, b"more"))
    )
    assert kinds(found) == ["Handshake", "refused"]
    assert "tube" in found[1]["error"]


def test_a_websocket_handshake_without_an_end(tmp_path: Path) -> None:
    found = rows(tmp_path, capture(tmp_path / "a.capture", "tube_ws", (False, b"x" * 70_000)))
    assert kinds(found) == ["refused"]


def test_malformed_is_a_row_with_its_error(tmp_path: Path) -> None:
    good, bad = fyrehose.serialize(fyrehose.Push(b"hi")), b"\xff" * 40
    found = rows(tmp_path, capture(tmp_path / "a.capture", "fyrehose", (False, good + bad), (False, good)))
    assert kinds(found) == ["Push", "refused"]
    assert "fyrehose" in found[1]["error"]
    assert bad.startswith(found[1]["payload"][:8])
    cut = rows(tmp_path, capture(tmp_path / "b.capture", "spp", (True, b"\0\0")))
    assert kinds(cut) == ["unfinished"]
    datagrams = [(False, good), (False, bad), (False, good)]
    found = rows(tmp_path, capture(tmp_path / "c.capture", "fyrehose", *datagrams, datagrams=True))
    assert kinds(found) == ["Push", "refused", "Push"]
    (tmp_path / "d.capture").write_bytes(b"no capture\n")
    assert kinds(rows(tmp_path, "d.capture")) == ["refused"]
    cut = rows(tmp_path, capture(tmp_path / "e.capture", "tube_ws", (False, b"GET /")))
    assert kinds(cut) == ["unfinished"]


# pcap


def packet(data: bytes, seq: int, *, flags: int = 0x10, ports: tuple[int, int] = (40000, 2323)) -> bytes:
    """An IPv4 packet with a TCP segment, in an Ethernet frame."""
    tcp = struct.pack(">HHIIBBHHH", *ports, seq & 0xFFFFFFFF, 0, 5 << 4, flags, 1000, 0, 0) + data
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0, b"\x7f\0\0\1", b"\x7f\0\0\2")
    return b"\0" * 12 + b"\x08\0" + ip + tcp


def datagram(data: bytes) -> bytes:
    udp = struct.pack(">HHHH", 40000, 2323, 8 + len(data), 0) + data
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\2")
    return b"\0" * 12 + b"\x08\0" + ip + udp


def pcap(packets: list[bytes], *, order: str = "<", nanoseconds: bool = False, kind: int = 1) -> bytes:
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    made = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, kind)
    for index, each in enumerate(packets):
        made += struct.pack(f"{order}IIII", index, 5000 if nanoseconds else 5, len(each), len(each)) + each
    return made


@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_tcp_is_put_into_order(content: bytes, begin: int, random: Random) -> None:
    """Segments cut anywhere, twice, overlapping, in any order, over the wrap of the numbers."""
    edges = sorted({0, len(content), *(random.randrange(len(content) + 1) for _ in range(6))})
    segments = [(at, content[at:end]) for at, end in itertools.pairwise(edges)]
    for _ in range(3):
        at = random.randrange(len(content))
        segments.append((at, content[at : at + random.randrange(1, 50)]))
    random.shuffle(segments)
    packets = [packet(b"", begin, flags=0x02)]
    packets += [packet(data, begin + 1 + at) for at, data in segments]
    found = list(pieces(BytesIO(pcap(packets))))
    assert b"".join(piece.data for piece in found) == content
    assert not any(piece.lost for piece in found)
    assert found[-1].ended


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_pcap_to_frames(order: str, nanoseconds: bool) -> None:
    push = fyrehose.serialize(fyrehose.Push(b"hello"))
    packets = [
        packet(b"", 99, flags=0x02),
        packet(push[:4], 100),
        packet(push[4:] + push, 104),
        datagram(push),
    ]
    content = pcap(packets, order=order, nanoseconds=nanoseconds)
    found = list(of_pieces(pieces(BytesIO(content)), PORTS))
    assert [(row["kind"], row["payload"], row["time"]) for row in found] == [
        ("Push", b"hello", 2_000_005),
        ("Push", b"hello", 2_000_005),
        ("Push", b"hello", 3_000_005),
    ]
    assert {row["peer"] for row in found} == {"127.0.0.1:40000"}


def test_what_is_lost_is_said() -> None:
    push = fyrehose.serialize(fyrehose.Push(b"hello"))
    packets = [packet(push, 100), packet(push, 100 + 3 * len(push))]
    found = list(of_pieces(pieces(BytesIO(pcap(packets))), PORTS))
    assert kinds(found) == ["Push", "lost"]
    assert f"{2 * len(push)} bytes" in found[1]["error"]


def test_a_syn_that_comes_again_begins_nothing() -> None:
    push = fyrehose.serialize(fyrehose.Push(b"hello"))
    size = len(push)
    packets = [packet(b"", 99, flags=0x02), packet(push, 100), packet(b"", 99, flags=0x02)]
    packets += [packet(push, 100 + size), packet(b"", 5000, flags=0x02), packet(push, 5001)]
    assert kinds(list(of_pieces(pieces(BytesIO(pcap(packets))), PORTS))) == ["Push"] * 3


@pytest.mark.parametrize("length_at", [16, 18], ids=["IPv4", "IPv6"])
def test_packets_whose_length_the_card_was_to_fill_in(length_at: int) -> None:
    push = fyrehose.serialize(fyrehose.Push(b"hello"))
    whole = packet(push, 100)
    if length_at == 18:
        tcp = whole[34:]
        whole = whole[:12] + b"\x86\xdd\x60\0\0\0" + struct.pack(">HBB", len(tcp), 6, 64)
        whole += bytes(15) + b"\1" + bytes(15) + b"\2" + tcp
    unknown = whole[:length_at] + b"\0\0" + whole[length_at + 2 :]
    for each in (whole, unknown):
        assert kinds(list(of_pieces(pieces(BytesIO(pcap([each]))), PORTS))) == ["Push"]


def test_what_waits_in_vain_costs_no_more_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small segments behind one that is lost: each is looked at a few times, not all for each."""
    from headrace.spark.jobs.decode import pcap as module

    distance, looked = module._distance, 0

    def counted(seq: int, other: int) -> int:
        nonlocal looked
        looked += 1
        return distance(seq, other)

    monkeypatch.setattr(module, "_distance", counted)
    packets = [packet(b"", 99, flags=0x02)] + [packet(b"x" * 20, 200 + 20 * each) for each in range(3000)]
    found = list(pieces(BytesIO(pcap(packets))))
    assert [piece.lost for piece in found if piece.lost] == [100]
    assert sum(len(piece.data) for piece in found) == 60_000
    assert looked < 10_000


def test_all_that_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.spark.jobs.decode import pcap as module

    monkeypatch.setattr(module, "MAX_WAITING_IN_ALL", 20_000)
    packets = []
    for port in range(1, 101):
        packets += [
            packet(b"", 99, flags=0x02, ports=(port, 2323)),
            packet(b"x" * 900, 200, ports=(port, 2323)),
        ]
    found = list(pieces(BytesIO(pcap(packets))))
    given_up = [index for index, piece in enumerate(found) if piece.lost]
    ended = next(index for index, piece in enumerate(found) if piece.ended)
    assert len(given_up) == 100
    assert sum(index < ended for index in given_up) > 75  # before the file was at its end


def test_a_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    """By whoever was killed while writing it: all that is whole, then what is not."""
    push = fyrehose.serialize(fyrehose.Push(b"hello"))
    whole = (
        tmp_path / capture(tmp_path / "a.capture", "fyrehose", (False, push), (False, push))
    ).read_bytes()
    wire = pcap([packet(push, 1), packet(push, 1 + len(push))])
    for name, content in (("a.capture", whole), ("a.pcap", wire)):
        for cut in (1, 9, 20):
            (tmp_path / name).write_bytes(content[:-cut])
            found = rows(tmp_path, name)
            assert kinds(found) == ["Push", "unfinished"], (name, cut)
            assert "the file ends" in found[-1]["error"]
        (tmp_path / name).write_bytes(content)
        assert kinds(rows(tmp_path, name)) == ["Push", "Push"]
    for content in (b"", b'{"headrace":"cap'):
        (tmp_path / "a.capture").write_bytes(content)
        assert kinds(rows(tmp_path, "a.capture")) == ["unfinished"]


def test_what_is_no_pcap_is_refused() -> None:
    with pytest.raises(MalformedError, match="pcapng"):
        list(pieces(BytesIO(b"\x0a\x0d\x0d\x0a" + bytes(40))))
    with pytest.raises(MalformedError, match="link type"):
        list(pieces(BytesIO(pcap([packet(b"x", 1)], kind=147))))


@given(st.binary(max_size=200))
def test_any_packet_is_read_or_passed_over(data: bytes) -> None:
    list(pieces(BytesIO(pcap([data, packet(data, 1), data]))))


def test_ports() -> None:
    assert parse_ports("")[3002] == "spp"
    assert parse_ports("9000=spp, 9001=sdk") == {9000: "spp", 9001: "sdk"}
    with pytest.raises(UsageError, match="PORT=DOOR"):
        parse_ports("9000=nothing")


@pytest.mark.spark
def test_only_what_it_wrote_is_replaced(play: Play, tmp_path: Path) -> None:
    push = fyrehose.serialize(fyrehose.Push(b"hello"))
    captures, path = tmp_path / "captures", tmp_path / "decode"
    captures.mkdir()
    capture(captures / "a.capture", "fyrehose", (False, push))
    (captures / "a folder.pcap").mkdir()
    with pytest.raises(UsageError, match="choose another path"):
        play("decode", "", captures=captures, path=captures)
    with pytest.raises(UsageError, match="choose another path"):
        play("decode", "", captures=captures, path=tmp_path)
    assert play("decode", "", captures=captures, path=path)["frames"] == 1
    capture(captures / "b.capture", "fyrehose", (False, push * 2))
    assert play("decode", "", captures=captures, path=path)["frames"] == 3
    assert play("decode", "", captures=captures / "b.capture", path=path)["frames"] == 2
    (path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        play("decode", "", captures=captures, path=path)
    assert (captures / "a.capture").exists()
    with pytest.raises(UsageError, match="no captures"):
        play("decode", "", captures=tmp_path / "nowhere", path=path)


@pytest.mark.spark
def test_tasks_are_as_many_as_there_is_use_for(spark: SparkSession, tmp_path: Path) -> None:
    most = TASKS_A_CORE * spark.sparkContext.defaultParallelism
    names = [f"{each}.capture" for each in range(most + 1000)]
    assert decode(spark, Folder.at(str(tmp_path)), names, PORTS).rdd.getNumPartitions() == most
    assert decode(spark, Folder.at(str(tmp_path)), names[:3], PORTS).rdd.getNumPartitions() == 3


@pytest.mark.spark
def test_many_files_at_once(spark: SparkSession, tmp_path: Path) -> None:
    push = fyrehose.serialize(fyrehose.Push(b"hello"))
    names = [capture(tmp_path / f"{each}.capture", "fyrehose", (False, push * 1000)) for each in range(4)]
    (tmp_path / "x.pcap").write_bytes(pcap([packet(push * 10, 1)]))
    found = decode(spark, Folder.at(str(tmp_path)), [*names, "x.pcap"], PORTS)
    counted = {
        (row["capture"], row["kind"]): row["count"]
        for row in found.groupBy("capture", "kind").count().collect()
    }
    assert counted == {**{(name, "Push"): 1000 for name in names}, ("x.pcap", "Push"): 10}
