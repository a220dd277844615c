"""What ``serve --record`` writes is what passed, both ways, and decodes to the frames that were sent."""

from __future__ import annotations

import logging
import socket
import stat
from pathlib import Path

import pytest
from tests.hubprocess import HubProcess
from tests.net import raw
from tests.net.linkpeer import LinkPeer, rows

import headrace
from headrace.archive.folder import Folder
from headrace.errors import ConfigError
from headrace.net.server.accepting.recording import FILE_BYTES, Recorder
from headrace.spark.jobs.decode.capture_rows import rows_of
from headrace.tube import connect
from headrace.wire.capture import MAX_CHUNK, Capture, CaptureDecoder, Chunk


def frames(captures: Path, door: str) -> list[tuple[bool, str]]:
    folder = Folder.at(str(captures))
    names = [name for name in folder.names() if name.startswith(f"{door}-")]
    found = [row for name in names for row in rows_of(folder, name, {})]
    assert not [row for row in found if row["error"]]
    return [(row["outgoing"], row["kind"]) for row in found]


def test_what_passes_is_recorded(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    with HubProcess.start(tmp_path / "hub", options=("--record", str(captures))) as hub:
        with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
            link.publish([b"hello"] * 3)
        with headrace.connect_sync(f"fyrehose://{hub.doors['fyrehose']}", from_seq=1) as backbone:
            assert next(iter(backbone)).payload == b"hello"
        with headrace.connect_sync(f"spp://{hub.doors['spp']}") as services:
            services.publish({"cpu": 1}, topic="load")
        hub.terminate()
    assert "is recorded in" in hub.stderr
    tubes = frames(captures, "tube_tcp")
    assert tubes.count((False, "Message")) >= 2
    assert tubes.count((True, "Message")) >= 2
    assert (False, "Keepalive") in frames(captures, "fyrehose")
    assert (True, "Deliver") in frames(captures, "fyrehose")
    assert (False, "Publish") in frames(captures, "spp")
    for file in captures.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_datagrams_are_recorded_by_address_one_by_one(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    with HubProcess.start(tmp_path / "hub", options=("--record", str(captures))) as hub:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        ):
            for peer in (one, other):
                peer.bind(("127.0.0.1", 0))
                peer.settimeout(30)
            one.sendto(raw.keepalive(), hub.address("fyrehose"))
            assert one.recv(2048) == raw.ack()
            for number in range(3):
                other.sendto(raw.push(b"message %d" % number), hub.address("fyrehose"))
            other.sendto(b"?" * 30, hub.address("fyrehose"))
            got: list[tuple[int, bytes]] = []
            while len(got) < 3:
                got += raw.delivers(one.recv(65536))
            names = {
                f"127.0.0.1:{peer.getsockname()[1]}": name for peer, name in ((one, "one"), (other, "other"))
            }
        hub.terminate()
    folder = Folder.at(str(captures))
    found = [row for name in folder.names() for row in rows_of(folder, name, {})]
    said = [(names[row["peer"]], row["outgoing"], row["kind"], row["payload"]) for row in found]
    assert said.count(("one", False, "Keepalive", None)) == 1
    assert ("one", True, "KeepaliveAck", None) in said
    for number in range(3):
        assert ("other", False, "Push", b"message %d" % number) in said
        assert ("one", True, "Deliver", b"message %d" % number) in said
    assert [row["kind"] for row in found if row["error"]] == ["refused"]
    assert {row["door"] for row in found} == {"fyrehose"}


async def test_a_websocket_tube_is_recorded_and_decoded(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    with HubProcess.start(tmp_path / "hub", options=("--record", str(captures))) as hub:
        async with connect(f"ws://{hub.doors['tube_ws']}") as tube:
            peer = LinkPeer(tube)
            await peer.ask(op="hello", id=0, version=2)
            await peer.ask(rows(*[b"hello" * 1000] * 100), op="publish", id=1)
            await peer.ask(op="head", id=2)
        hub.terminate()
    found = frames(captures, "tube_ws")
    for outgoing in (False, True):
        kinds = [kind for each, kind in found if each is outgoing]
        assert kinds[:2] == ["Handshake", "FragmentSize"]
        assert kinds.count("Message") >= 3
        assert "Close" in kinds


def test_what_is_recorded_is_there_at_once(tmp_path: Path) -> None:
    """For whoever looks while a connection lasts, and whatever becomes of the hub."""
    recorder = Recorder(tmp_path, dict)
    with recorder.begin("spp", "somebody") or pytest.fail("no file") as file:
        (path,) = tmp_path.iterdir()
        (begun,) = CaptureDecoder().feed(path.read_bytes())
        assert isinstance(begun, Capture)
        recorder.write(file, b"hello", outgoing=False)
        assert [
            item.data for item in CaptureDecoder().feed(path.read_bytes()) if isinstance(item, Chunk)
        ] == [b"hello"]


def test_any_length_is_recorded_so_that_it_can_be_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, dict)
    sent = bytes(range(251)) * (2 * MAX_CHUNK // 251 + 1)
    with recorder.begin("spp", "somebody") or pytest.fail("no file") as file:
        recorder.write(file, memoryview(sent), outgoing=True)
        recorder.write(file, b"", outgoing=False)
    (path,) = tmp_path.iterdir()
    chunks = [item for item in CaptureDecoder().feed(path.read_bytes()) if isinstance(item, Chunk)]
    assert b"".join(chunk.data for chunk in chunks) == sent
    assert [chunk.outgoing for chunk in chunks] == [True, True, True, False]


def test_it_ends_when_enough_is_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path / "captures", dict, most=FILE_BYTES + 100)
    file = recorder.begin("spp", "somebody")
    assert file is not None
    with file, caplog.at_level(logging.WARNING):
        assert recorder.write(file, b"x" * 60, outgoing=False)
        assert recorder.write(file, b"x" * 60, outgoing=True)
        assert not recorder.write(file, b"x", outgoing=True)
    assert recorder.begin("spp", "another") is None
    assert caplog.text.count("recording ends") == 1


def test_a_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--record"):
        Recorder(tmp_path / "file" / "captures", dict)
