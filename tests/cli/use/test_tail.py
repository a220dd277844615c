from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.cli.conftest import SECONDS, Command
from tests.cli.logs import write_trimmed_log
from tests.cli.pseudo_terminal import Terminal
from tests.cli.use.test_pub_link import facts, url
from tests.forking import Process, piped
from tests.hubprocess import HubProcess


def publish(hub: HubProcess, command: Command, *arguments: object) -> int:
    """Publish, and return the number of the first."""
    first: int = facts(command("pub", *arguments, "--url", url(hub)))["first"]
    return first


def tail(hub: HubProcess, *arguments: object) -> AbstractContextManager[Process]:
    """``headrace tail`` with its output in a pipe."""
    return piped("tail", "--url", url(hub), *arguments)


def test_the_whole_envelope(hub: HubProcess, command: Command) -> None:
    seq = publish(hub, command, "hello", "--topic", "t", "--attr", "n=1", "--attr", "s=x")
    done = command("tail", "--from", seq, "--count", 1, "--url", url(hub))
    message = facts(done)
    assert message.pop("time").endswith("Z")
    assert message.pop("publisher")
    del message["node"]
    assert message == {
        "seq": seq,
        "origin": "tube",
        "number": 0,
        "topic": "t",
        "attributes": {"s": "x"},
        "numbers": {"n": 1.0},
        "payload": "hello",
    }


def test_the_hub_picks_by_topic_and_origin(hub: HubProcess, command: Command) -> None:
    publish(hub, command, "no", "--topic", "picked/one/deeper")
    publish(hub, command, "one", "two", "--topic", "picked/one")
    publish(hub, command, "three", "--topic", "picked/two")
    done = command(
        *("tail", "--from", "earliest", "--topic", "picked/*", "--origin", "tube", "--origin", "spp"),
        *("--count", 3, "--raw", "--url", url(hub)),
    )
    assert (done.stdout, done.stderr) == (b"one\ntwo\nthree\n", b"")


def test_from_a_time(hub: HubProcess, command: Command) -> None:
    before = publish(hub, command, "before")
    message = facts(command("tail", "--from", before, "--count", 1, "--url", url(hub)))
    publish(hub, command, "after")
    done = command("tail", "--from", message["time"], "--count", 2, "--raw", "--url", url(hub))
    assert done.stdout == b"before\nafter\n"
    assert command("tail", "--from", "-1h", "--count", 1, "--url", url(hub)).returncode == 0


def test_live(hub: HubProcess, command: Command) -> None:
    first = publish(hub, command, "then")
    with tail(hub, "--from", first, "--text") as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"\tthen\n")
        publish(hub, command, "now")
        assert process.stdout.readline().endswith(b"\tnow\n")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=SECONDS) == (b"", b"")
        assert process.returncode == 130


def test_the_end_of_the_reader_ends_it(hub: HubProcess, command: Command) -> None:
    with tail(hub, "--from", publish(hub, command, "hello")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(SECONDS) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_terminal_gets_columns(hub: HubProcess, command: Command) -> None:
    seq = publish(hub, command, "hello", "--topic", "t")
    with Terminal("tail", "--from", seq, "--count", 1, "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    shown = terminal.shown.split()
    assert [shown[0], *shown[2:]] == [str(seq), "tube", "t", "hello"]


def test_a_terminal_shows_a_long_payload_cut_or_whole(hub: HubProcess, command: Command) -> None:
    seq = publish(hub, command, "long " * 1000, "žluťoučký kůň " * 100, "short", "--topic", "cut")
    arguments = ("tail", "--from", seq, "--count", 3, "--url", url(hub))
    with Terminal(*arguments, columns=100) as terminal:
        assert terminal.wait() == 0
    lines = terminal.shown.splitlines()
    assert len(lines) == 3
    assert all(98 <= len(line) <= 100 for line in lines[:2])
    assert lines[0].endswith("… 4.9 KiB")
    assert lines[1].endswith("… 2.0 KiB")
    assert lines[2].endswith(" short")
    with Terminal(*arguments, "--full", columns=100) as terminal:
        assert terminal.wait() == 0
    assert "long " * 1000 in terminal.shown
    assert "…" not in terminal.shown
    piped = command(*arguments, "--text").stdout.decode()
    assert "long " * 1000 in piped


def test_a_hub_that_restarts(tmp_path: Path, command: Command) -> None:
    with HubProcess.start(tmp_path) as hub:
        publish(hub, command, "before")
        with tail(hub, "--from", 1, "--count", 2) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["payload"] == "before"
            hub.kill9()
            hub.restart()
            publish(hub, command, "after")
            assert json.loads(process.stdout.readline())["payload"] == "after"
            assert process.wait(SECONDS) == 0
        hub.terminate()


def test_what_retention_has_removed(tmp_path: Path, command: Command) -> None:
    write_trimmed_log(tmp_path / "data", 3, [b"one"], [b"two"], [b"three"])
    with HubProcess.start(tmp_path) as hub:
        done = command("tail", "--from", 1, "--count", 1, "--url", url(hub))
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"3" in done.stderr
        assert done.stderr.count(b"\n") == 1
        done = command("tail", "--from", "earliest", "--count", 1, "--raw", "--url", url(hub))
        assert done.stdout == b"three\n"
        hub.terminate()


@pytest.mark.parametrize("wrong", ["fyrehose://127.0.0.1:1", "127.0.0.1:8081"])
def test_only_the_link_can_be_followed(command: Command, wrong: str) -> None:
    done = command("tail", "--url", wrong)
    assert (done.returncode, done.stderr.decode()) == (2, f"headrace: {wrong!r}: expected tube://host:port\n")
