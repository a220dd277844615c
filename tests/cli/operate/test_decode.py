"""``headrace decode``: what is in captures, on one line each."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command, Run
from tests.hubprocess import HubProcess

import headrace
from headrace.wire.capture import Capture, Chunk, serialize
from headrace.wire.fyrehose.stream import Push
from headrace.wire.fyrehose.stream import serialize as frame


def capture(path: Path, *chunks: bytes) -> None:
    content = serialize(Capture("fyrehose", "127.0.0.1:40000", datagrams=False))
    content += b"".join(serialize(Chunk(False, 1_700_000_000_000_000, chunk)) for chunk in chunks)
    path.write_bytes(content)


def test_frames_as_json_in_a_pipe(tmp_path: Path, command: Command) -> None:
    whole = frame(Push(b"hello"))
    capture(tmp_path / "a.capture", whole[:3], whole[3:] + frame(Push(b"\xff")) + b"\xee")
    (tmp_path / "notes.txt").write_text("no capture")
    done = command("decode", tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert first["capture"] == str(tmp_path / "a.capture")
    assert (first["door"], first["peer"], first["outgoing"]) == ("fyrehose", "127.0.0.1:40000", False)
    assert (first["time"], first["kind"], first["payload"]) == (
        "2023-11-14T22:13:20.000000Z",
        "Push",
        "hello",
    )
    assert (second["payload_base64"], second["error"]) == ("/w==", None)
    assert third["kind"] == "refused"
    assert third["error"]


def test_for_people(tmp_path: Path, run: Run) -> None:
    capture(tmp_path / "a.capture", frame(Push(b"hello")) + b"\xee")
    one, two = run("decode", tmp_path / "a.capture", "--text").stdout.splitlines()
    assert one.split() == [
        "2023-11-14T22:13:20.000000Z",
        "fyrehose",
        "->",
        "127.0.0.1:40000",
        "Push",
        "hello",
    ]
    assert two.split()[4] == "refused"


def test_what_a_hub_recorded(tmp_path: Path, command: Command) -> None:
    recording = ("--record", str(tmp_path / "captures"))
    with (
        HubProcess.start(tmp_path / "hub", options=recording) as hub,
        headrace.connect_sync(f"fyrehose://{hub.doors['fyrehose']}", from_seq=1) as backbone,
    ):
        backbone.publish(b"hello")
        assert next(iter(backbone)).payload == b"hello"
        hub.terminate()
    done = command("decode", tmp_path / "captures")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    said = {(row["kind"], row["outgoing"]) for row in found if row.get("payload") == "hello"}
    assert said == {("Push", False), ("Deliver", True)}


def test_asked_wrongly(tmp_path: Path, run: Run) -> None:
    for wrong, why in (
        ([tmp_path], "has no captures"),
        ([tmp_path / "x.txt"], "does not have the name of a capture"),
        ([tmp_path / "x.pcap"], "no such capture"),
        ([tmp_path, "--ports", "x"], "expected PORT=DOOR"),
    ):
        result = run("decode", *wrong)
        assert (result.exit_code, why in result.output) == (2, True), result.output
