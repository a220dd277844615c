"""``pub`` over the link."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import SECONDS, Command
from tests.cli.pseudo_terminal import Terminal
from tests.forking import piped
from tests.hubprocess import HubProcess

from headrace import Acknowledged, Kept
from headrace.cli.use.pub import Told
from headrace.log import Log
from headrace.message import Message


def url(hub: HubProcess) -> str:
    return f"tube://{hub.doors['tube_tcp']}"


def kept(hub: HubProcess, first: int, last: int) -> list[Message]:
    log = Log.open(hub.data / "log", read_only=True)
    try:
        return [message for batch in log.scan(first, last) for message in batch]
    finally:
        log.close()


def facts(done: subprocess.CompletedProcess[bytes]) -> Any:
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def test_it_is_committed_when_it_ends(hub: HubProcess, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_bytes(b"\xfftwo\nlines\n")
    told = facts(
        command(
            *("pub", "hello", "grüße", "--file", file, "--count", 2, "--url", url(hub)),
            *("--topic", "a/b", "--attr", "celsius=-21.5", "--attr", "place=Bern", "--attr", 'zip="3011"'),
        )
    )
    messages = kept(hub, told["first"], told["last"])
    assert [message.payload for message in messages] == [
        b"hello",
        "grüße".encode(),
        b"\xfftwo\nlines\n",
    ] * 2
    assert {message.origin for message in messages} == {"tube"}
    assert {message.topic for message in messages} == {"a/b"}
    assert all(dict(each.attributes) == {"place": "Bern", "zip": "3011"} for each in messages)
    assert all(dict(each.numbers) == {"celsius": -21.5} for each in messages)


def test_lines_of_stdin(hub: HubProcess, command: Command) -> None:
    told = facts(command("pub", "--url", url(hub), stdin=b"one\n\nthree"))
    assert [each.payload for each in kept(hub, told["first"], told["last"])] == [b"one", b"", b"three"]


def test_no_lines_at_all(hub: HubProcess, command: Command) -> None:
    assert facts(command("pub", "--url", url(hub))) == {"first": None, "last": None}


def test_more_than_a_request_has_room_for(hub: HubProcess, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_bytes(b"x" * (3 << 20))
    told = facts(command("pub", "--file", file, "--file", file, "--file", file, "--url", url(hub)))
    assert [len(each.payload) for each in kept(hub, told["first"], told["last"])] == [3 << 20] * 3


def test_many(hub: HubProcess, command: Command) -> None:
    told = facts(command("pub", "a", "b", "c", "--count", 5_001, "--url", url(hub)))
    payloads = [each.payload for each in kept(hub, told["first"], told["last"]) if each.origin == "tube"]
    assert payloads == [b"a", b"b", b"c"] * 5_001


def test_people_get_numbers(hub: HubProcess) -> None:
    with Terminal("pub", "one", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    seq = int(terminal.shown)
    with Terminal("pub", "two", "three", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    hint = "(2 messages without a topic; --topic names one)"
    assert terminal.shown == f"{seq + 1}-{seq + 2}  {hint}\n"
    assert [each.payload for each in kept(hub, seq, seq + 2)] == [b"one", b"two", b"three"]


def test_where_there_is_no_hub(hub: HubProcess, command: Command) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = command("pub", "hello", "--url", "tube://{}:{}".format(*unused.getsockname()))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"nobody listens there; is the hub running? `headrace serve` starts one" in done.stderr
    # SPP's first word is an offer, which is no tube's.
    assert command("services", "put", "here", "{}", "--url", hub.url("spp")).returncode == 0
    done = command("pub", "hello", "--url", f"tube://{hub.doors['spp']}")
    assert (done.returncode, done.stdout) == (1, b"")
    assert (
        b"what answers there is not the link: that is the door listen.tube_tcp, by default on port 8081"
        in done.stderr
    )


def test_the_settings_say_where_the_hub_is(
    hub: HubProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_LISTEN__TUBE_TCP", hub.doors["tube_tcp"])
    monkeypatch.setenv("HEADRACE_LISTEN__FYREHOSE", hub.doors["fyrehose"])
    assert facts(command("pub", "hello"))["first"] is not None
    done = command("pub", "hello", "--door", "fyrehose")
    assert facts(done) == {"url": hub.url("fyrehose"), "sent": 1, "bytes": 5}


def test_every_way_to_the_link_acknowledges(hub: HubProcess, command: Command) -> None:
    websocket = f"ws://{hub.doors['tube_ws']}"
    first = facts(command("pub", "over tcp", "--topic", "ways", "--url", url(hub)))["first"]
    second = facts(command("pub", "over a websocket", "--topic", "ways", "--url", websocket))["first"]
    third = facts(command("pub", "named", "--topic", "ways", "--door", "tube", "--url", websocket))["first"]
    assert (second, third) == (first + 1, first + 2)
    read = command("tail", "--from", first, "--topic", "ways", "--count", 3, "--url", websocket)
    assert [json.loads(line)["payload"] for line in read.stdout.splitlines()] == [
        "over tcp",
        "over a websocket",
        "named",
    ]
    assert command("services", "list", "--url", websocket).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["x", "--url", "spp://127.0.0.1:1"], "use headrace services put"),
        (["x", "--url", "sdk://127.0.0.1:1"], "use publisher://host:port"),
        (["x", "--url", "ws://127.0.0.1:1", "--door", "publisher"], "different doors"),
        (["x", "--attr", "novalue"], "expected NAME=VALUE"),
        (["x", "--attr", "a=1", "--attr", "a=b"], "given twice"),
        (["x", "--transport", "udp"], "--transport is fyrehose's"),
        (["x", "--door", "fyrehose"], "different doors"),
        (["x", "--url", "fyrehose://127.0.0.1:1", "--topic", "t"], "fyrehose carries no --topic"),
        (["--file", "/dev/zero"], "/dev/zero has more than 7340032 bytes"),
        (
            ["x", "--url", "pigeon://roof"],
            "expected tube://host:port, ws://host:port, fyrehose://host:port or publisher://host:port",
        ),
    ],
)
def test_what_cannot_be_published(
    hub: HubProcess, command: Command, arguments: list[str], complaint: str
) -> None:
    done = command("pub", "--url", url(hub), *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("headrace: ")
    assert complaint in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_hub_that_restarts_gets_everything_once(tmp_path: Path, command: Command) -> None:
    with HubProcess.start(tmp_path) as hub:
        with piped("pub", "--url", url(hub)) as publisher:
            publisher.stdin.write(b"before\n")
            publisher.stdin.flush()
            assert command("tail", "--from", 1, "--count", 1, "--url", url(hub)).returncode == 0
            hub.kill9()
            hub.restart()
            stdout, _ = publisher.communicate(b"after\n", timeout=SECONDS)
        assert publisher.returncode == 0
        told = json.loads(stdout)
        payloads = [each.payload for each in kept(hub, 1, told["last"])]
        assert payloads == [b"before", b"after"]
        hub.terminate()


def test_what_a_frontend_keeps_is_told_apart_from_numbers() -> None:
    told = Told()
    assert told.sentence() == "there was nothing to publish"
    told.note(Kept(None, None), 2)
    assert told.facts() == {"first": None, "last": None, "kept": 2}
    assert told.sentence() == "kept 2 messages at the frontend until its upstream hub is back"
    # The upstream hub is back meanwhile.
    told.note(Acknowledged(7, 9), 3)
    assert told.facts() == {"first": 7, "last": 9, "kept": 2}
    assert told.sentence().startswith("7-9, and kept 2 messages")
