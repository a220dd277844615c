from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO

import pytest
from tests.cli.conftest import SECONDS, Command, Run
from tests.cli.logs import write_trimmed_log
from tests.cli.pseudo_terminal import Terminal
from tests.forking import piped
from tests.hubprocess import HubProcess

from headrace import connect_sync
from headrace.log import Log
from headrace.wire.fyrehose.stream import MAX_DATA, Push, serialize


def head(hub: HubProcess) -> int:
    with urllib.request.urlopen(f"http://{hub.doors['http']}/api/status", timeout=SECONDS) as answer:
        seen: int = json.load(answer)["head"]
    return seen


def push(hub: HubProcess, *payloads: bytes) -> int:
    """Publish, and wait until the hub has it; return the number of the first."""
    first = head(hub) + 1
    with socket.create_connection(hub.address("fyrehose")) as publisher:
        publisher.sendall(b"".join(serialize(Push(payload)) for payload in payloads))
        publisher.shutdown(socket.SHUT_WR)
        assert publisher.recv(1) == b""
    return first


def kept(hub: HubProcess, first: int) -> list[str]:
    log = Log.open(hub.data / "log", read_only=True)
    try:
        return [message.payload.decode() for batch in log.scan(first) for message in batch]
    finally:
        log.close()


class Subscriber:
    """``headrace sub`` with its output in a pipe."""

    def __init__(self, *arguments: object) -> None:
        self._running = piped("sub", *arguments)
        self.process = self._running.__enter__()

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def line(self) -> dict[str, object]:
        parsed: dict[str, object] = json.loads(self.stdout.readline())
        return parsed

    def end(self) -> tuple[int, bytes]:
        """Wait for its end; return its exit code and what it wrote to stderr."""
        _, stderr = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, stderr

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *ending: object) -> None:
        self._running.__exit__(*ending)


def test_arguments_files_and_count(hub: HubProcess, command: Command, tmp_path: Path) -> None:
    before = head(hub)
    file = tmp_path / "message"
    file.write_bytes(b"two\nlines\n")
    url = hub.url("fyrehose")
    done = command("pub", "hello", "grüße", "--file", file, "--count", 2, "--url", url)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == {"url": url, "sent": 6, "bytes": 44}
    assert kept(hub, before + 1) == ["hello", "grüße", "two\nlines\n"] * 2


def test_lines_of_stdin(hub: HubProcess, command: Command) -> None:
    before = head(hub)
    done = command("pub", "--url", hub.url("fyrehose"), "--json", stdin=b"one\n\nthree")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"url": hub.url("fyrehose"), "sent": 3, "bytes": 8}
    assert kept(hub, before + 1) == ["one", "", "three"]
    assert command("pub", "-", "--url", hub.url("fyrehose"), stdin=b"four\n").returncode == 0
    assert kept(hub, before + 4) == ["four"]


def test_many(hub: HubProcess, command: Command) -> None:
    before = head(hub)
    assert command("pub", "a", "b", "c", "--count", 5_001, "--url", hub.url("fyrehose")).returncode == 0
    assert kept(hub, before + 1) == ["a", "b", "c"] * 5_001


def test_publishing_over_udp(hub: HubProcess, command: Command) -> None:
    before = head(hub)
    done = command("pub", "by", "datagram", "--url", hub.url("fyrehose").replace("://", "+udp://"))
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + SECONDS
    while (seen := kept(hub, before + 1)) != ["by", "datagram"]:
        assert time.monotonic() < deadline, seen


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (["x", "x" * (MAX_DATA + 1)], b"", "message 2 has more than 65526 bytes"),
        (["x" * 65505, "--transport", "udp"], b"", "message 1 has more than 65504 bytes"),
        (["--file", "/dev/zero"], b"", "/dev/zero has more than 65526 bytes"),
        ([], b"ok\n" + b"x" * (MAX_DATA + 1), "line 2 has more than 65526 bytes"),
        (["--count", "2"], b"ok\n", "--count"),
        (["--file", "/nonexistent/file"], b"", "/nonexistent/file: no such file or directory"),
        (["hello", "--url", "pigeon://roof"], b"", "pigeon"),
        (["hello", "--url", "fyrehose+udp://127.0.0.1", "--transport", "tcp"], b"", "says otherwise"),
    ],
)
def test_what_cannot_be_published(
    hub: HubProcess, command: Command, arguments: list[str], stdin: bytes, complaint: str
) -> None:
    done = command("pub", "--url", hub.url("fyrehose"), *arguments, stdin=stdin)
    assert done.returncode in (1, 2)
    assert done.stdout == b""
    assert done.stderr.decode().startswith("headrace: ")
    assert complaint in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("scheme", "arguments"),
    [
        ("fyrehose", ["pub", "hello"]),
        ("fyrehose", ["sub"]),
        ("tube", ["pub", "hello"]),
        ("tube", ["tail"]),
        ("tube", ["services", "list"]),
        ("spp", ["services", "watch", "x"]),
    ],
    ids=str,
)
def test_nobody_there(command: Command, scheme: str, arguments: list[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        done = command(*arguments, "--url", f"{scheme}://{address}")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("headrace: ")
    assert address in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("tube://127.0.0.1:1", "headrace tail reads from the link"),
        ("ws://127.0.0.1:1", "headrace tail reads from the link"),
        ("sdk://127.0.0.1:1", "the sdk door needs --where"),
        ("spp://127.0.0.1:1", "expected fyrehose://host:port"),
    ],
)
def test_doors_that_do_not_deliver_the_whole_sequence(run: Run, address: str, complaint: str) -> None:
    result = run("sub", "--url", address)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_subscribing_from_a_number(hub: HubProcess, command: Command, transport: str) -> None:
    first = push(hub, b"one", b"two", b"three", b"four")
    done = command(
        *("sub", "--from", first + 1, "--count", 2),
        *("--url", hub.url("fyrehose"), "--transport", transport),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"seq": first + 1, "payload": "two"},
        {"seq": first + 2, "payload": "three"},
    ]


def test_subscribing_live(hub: HubProcess) -> None:
    with Subscriber("--from", head(hub) + 1, "--count", 3, "--url", hub.url("fyrehose")) as subscriber:
        for payload in ("now", "and now", "and now again"):
            seq = push(hub, payload.encode())
            assert subscriber.line() == {"seq": seq, "payload": payload}
        assert subscriber.end() == (0, b"")


def publish_over_the_link(hub: HubProcess, *payloads: bytes) -> int:
    with connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        return link.publish(list(payloads)).first


def lines(done: subprocess.CompletedProcess[bytes]) -> list[tuple[int, str]]:
    return [(each["seq"], each["payload"]) for each in map(json.loads, done.stdout.splitlines())]


def test_messages_that_are_too_long_for_fyrehose_are_named(hub: HubProcess, command: Command) -> None:
    long = "x" * 70_000
    first = publish_over_the_link(hub, b"one", long.encode(), b"", b"four", b"five", long.encode())
    done = command("sub", "--from", first, "--count", 6, "--url", hub.url("fyrehose"))
    assert done.returncode == 0
    assert [payload for _, payload in lines(done)] == ["one", "", "", "four", "five", ""]
    named, *more = done.stderr.decode().splitlines()
    assert named == (
        f"headrace: messages {first + 1} to {first + 2}, {first + 5} came without data: empty, or too long for"
        f" fyrehose; headrace tail --from {first + 1} --count 1 --raw --url tube://127.0.0.1 prints it,"
        " and sub --fetch does so at once"
    )
    assert more == []


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_what_is_too_long_for_fyrehose_can_be_fetched(
    hub: HubProcess, command: Command, transport: str
) -> None:
    payloads = ["one", "x" * 70_000, "", "four", "y" * 100_000, "z" * 65_499, "seven"]
    first = publish_over_the_link(hub, *(payload.encode() for payload in payloads))
    done = command(
        *("sub", "--from", first, "--count", 7, "--fetch", f"tube://{hub.doors['tube_tcp']}"),
        *("--url", hub.url("fyrehose"), "--transport", transport),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done) == list(enumerate(payloads, first))


def test_what_cannot_be_fetched_is_printed_empty_and_said(hub: HubProcess, command: Command) -> None:
    first = publish_over_the_link(hub, b"one", bytes(70_000), b"three")
    done = command(
        *("sub", "--from", first, "--count", 3, "--fetch", "tube://127.0.0.1:1"),
        *("--url", hub.url("fyrehose")),
    )
    assert done.returncode == 0
    assert [payload for _, payload in lines(done)] == ["one", "", "three"]
    said = f"headrace: message {first + 1} came without data, and cannot be fetched: "
    assert done.stderr.decode().startswith(said)


def test_fetching_is_for_fyrehose(command: Command) -> None:
    done = command("sub", "--fetch", "tube://127.0.0.1", "--where", "city")
    assert done.returncode == 2
    assert b"--fetch are fyrehose's" in done.stderr
    done = command("sub", "--fetch", "spp://127.0.0.1")
    assert (done.returncode, done.stderr) == (2, b"headrace: 'spp://127.0.0.1': expected tube://host:port\n")


@pytest.mark.parametrize(
    ("form", "shown"),
    [("--text", "{}\tt\\tx\n"), ("--raw", "t\tx\n"), ("--json", '{{"seq":{},"payload":"t\\tx"}}\n')],
)
def test_forms(hub: HubProcess, command: Command, form: str, shown: str) -> None:
    seq = push(hub, b"t\tx")
    done = command("sub", "--from", seq, "-n", 1, form, "--url", hub.url("fyrehose"))
    assert done.stdout.decode() == shown.format(seq)


def test_one_form_at_a_time(command: Command) -> None:
    done = command("sub", "--json", "--raw")
    assert (done.returncode, done.stderr) == (2, b"headrace: --json, --text and --raw exclude one another\n")


def test_a_terminal_gets_text(hub: HubProcess) -> None:
    seq = push(hub, b"hello")
    with Terminal("sub", "--from", seq, "--count", 1, "--url", hub.url("fyrehose")) as terminal:
        assert terminal.wait() == 0
    assert terminal.shown == f"{seq:>8}  hello\n"
    assert terminal.raw.startswith("\x1b[2m")


def test_a_terminal_shows_a_long_payload_cut_or_whole(hub: HubProcess) -> None:
    seq = push(hub, b"long " * 1000, b"short")
    arguments = ("sub", "--from", seq, "--count", 2, "--url", hub.url("fyrehose"))
    with Terminal(*arguments, columns=80) as terminal:
        assert terminal.wait() == 0
    cut, short = terminal.shown.splitlines()
    assert 78 <= len(cut) <= 80
    assert cut.endswith("… 4.9 KiB")
    assert short.endswith("  short")
    with Terminal(*arguments, "--full", columns=80) as terminal:
        assert terminal.wait() == 0
    assert "long " * 1000 in terminal.shown


def test_publishing_from_a_keyboard(hub: HubProcess) -> None:
    before = head(hub)
    with Terminal("pub", "--url", hub.url("fyrehose")) as terminal:
        terminal.read_until("one message a line")
        terminal.write(b"typed\n\x04")
        assert terminal.wait() == 0
    assert "sent 1 message (5 bytes)" in terminal.shown
    assert kept(hub, before + 1) == ["typed"]


def test_an_interrupt_ends_quietly(hub: HubProcess) -> None:
    with Subscriber("--from", push(hub, b"hello"), "--url", hub.url("fyrehose")) as subscriber:
        subscriber.line()
        subscriber.process.send_signal(signal.SIGINT)
        assert subscriber.end() == (130, b"")


def test_publishing_is_interrupted_quietly(hub: HubProcess) -> None:
    with Terminal("pub", "--url", hub.url("fyrehose")) as terminal:
        terminal.read_until("one message a line")
        terminal.interrupt()
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.shown


def test_the_end_of_the_reader_ends_it_without_another_message(hub: HubProcess) -> None:
    with Subscriber("--from", push(hub, b"hello"), "--url", hub.url("fyrehose")) as subscriber:
        subscriber.line()
        subscriber.stdout.close()
        assert subscriber.process.wait(SECONDS) == 141
        assert subscriber.process.stderr is not None
        assert subscriber.process.stderr.read() == b""


def test_in_a_pipeline_of_the_shell(hub: HubProcess, tmp_path: Path) -> None:
    before, url, script = head(hub), hub.url("fyrehose"), tmp_path / "script.sh"
    headrace = f"{sys.executable} -m headrace"
    script.write_text(
        f"set -eu\nseq 1 20000 | {headrace} pub --url {url}\n"
        f"{headrace} sub --raw --from {before + 1} --url {url} | head -n 20000 | md5sum\nseq 1 20000 | md5sum\n"
    )
    done = subprocess.run(["sh", script], capture_output=True, timeout=SECONDS, check=False, env=os.environ)
    assert (done.returncode, done.stderr) == (0, b"")
    sent, seen, expected = done.stdout.decode().splitlines()
    assert json.loads(sent)["sent"] == 20_000
    assert seen == expected


def test_a_hub_that_restarts(tmp_path: Path) -> None:
    with HubProcess.start(tmp_path) as hub:
        with Subscriber("--from", 1, "--count", 2, "--url", hub.url("fyrehose")) as subscriber:
            push(hub, b"before")
            assert subscriber.line() == {"seq": 1, "payload": "before"}
            hub.kill9()
            hub.restart()
            push(hub, b"after")
            assert subscriber.line() == {"seq": 2, "payload": "after"}
            code, stderr = subscriber.end()
        assert code == 0
        assert stderr.decode().startswith(f"headrace: lost the hub at {hub.doors['fyrehose']}")
        assert stderr.count(b"\n") == 1
        hub.terminate()


@pytest.mark.slow
def test_what_nobody_has_any_more(tmp_path: Path, command: Command) -> None:
    write_trimmed_log(tmp_path / "data", 3, [b"one"], [b"two"], [b"three"])
    with HubProcess.start(tmp_path) as hub:
        done = command("sub", "--from", 1, "--count", 1, "--url", hub.url("fyrehose"))
        hub.terminate()
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"seq": 3, "payload": "three"}
    assert done.stderr.decode().startswith("headrace: messages 1 to 2 are lost: ")
