from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import SECONDS, Command, Run
from tests.cli.logs import write_log
from tests.cli.pseudo_terminal import Terminal
from tests.forking import piped
from tests.hubprocess import FREE_DOORS, HubProcess

from headrace.config import DOORS
from headrace.wire.fyrehose.stream import Keepalive, Push, serialize


def get(hub: HubProcess, path: str) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{hub.doors['http']}{path}", timeout=30) as answer:
        decoded: dict[str, object] = json.load(answer)
    return decoded


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on, TCP and UDP."""
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        port = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        yield port


def test_the_ready_file_names_the_process_and_its_doors(hub: HubProcess) -> None:
    ready = json.loads(hub.ready_file.read_bytes())
    assert ready == {"pid": hub.pid, **hub.doors}
    assert get(hub, "/api/status")["doors"] == hub.doors
    assert not list(hub.directory.glob("*.making"))


def test_stopped_killed_and_started_again(tmp_path: Path) -> None:
    with HubProcess.start(tmp_path) as hub:
        doors, log = hub.doors, get(hub, "/api/status")["log"]
        with socket.create_connection(hub.address("fyrehose")) as publisher:
            publisher.sendall(serialize(Push(b"kept")))
            publisher.shutdown(socket.SHUT_WR)
            assert publisher.recv(1) == b""
        hub.terminate(signum=signal.SIGTERM)
        assert not hub.ready_file.exists()
        hub.restart()
        assert get(hub, "/api/status")["head"] == 1
        hub.kill9()
        assert hub.ready_file.exists()
        hub.restart()
        assert json.loads(hub.ready_file.read_bytes()) == {"pid": hub.pid, **doors}
        status = get(hub, "/api/status")
        assert (status["log"], status["head"]) == (log, 1)
        hub.terminate(signum=signal.SIGINT)


def test_a_cluster_of_one_is_told_how_to_name_the_others(tmp_path: Path) -> None:
    with HubProcess.start(tmp_path, options=("--cluster", "mill")) as hub:
        hub.terminate()
        assert "cluster mill: this node is all of it; --peers a:7878,b:7878 names the others" in hub.stderr


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with HubProcess.start(tmp_path) as hub, socket.create_connection(hub.address("fyrehose")) as stuck:
        # A subscriber that takes nothing: draining would wait for it.
        stuck.sendall(serialize(Keepalive("0.0.0.0", 0)))
        with socket.create_connection(hub.address("fyrehose")) as publisher:
            publisher.sendall(serialize(Push(bytes(60_000))) * 400)
            publisher.shutdown(socket.SHUT_WR)
            assert publisher.recv(1) == b""
        deadline = time.monotonic() + SECONDS
        # What waits for a slow disk is not committed yet, and a second signal does not wait for it.
        while get(hub, "/api/status")["head"] < 400:
            assert time.monotonic() < deadline
        os.kill(hub.pid, signal.SIGTERM)
        while hub.ready_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        hub.terminate(expect=-signal.SIGTERM)
        hub.restart()
        assert get(hub, "/api/status")["head"] == 400
        hub.terminate()


def test_a_later_set_wins_over_an_earlier_and_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text('[node]\nname = "mill"\n[log]\nfsync = "always"\n')
    sets = ("listen.http=127.0.0.1:1", "listen.http=127.0.0.1:0", "log.fsync=never")
    with HubProcess.start(tmp_path, *sets, environ={"HEADRACE_CONFIG": str(config)}) as hub:
        status = get(hub, "/api/status")
        assert status["fsync"] == "never"
        assert isinstance(status["node"], dict)
        assert status["node"]["name"] == "mill"
        hub.terminate()


@pytest.mark.parametrize("door", ["fyrehose", "http"])
def test_serve_names_the_port_and_the_setting_when_it_is_taken(
    command: Command, tmp_path: Path, taken: int, door: str
) -> None:
    done = command(
        *("serve", "--data", tmp_path / "data", "--ready-file", tmp_path / "ready"),
        *(
            part
            for setting in (*FREE_DOORS, f"listen.{door}=127.0.0.1:{taken}")
            for part in ("--set", setting)
        ),
    )
    assert done.returncode == 2
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("headrace: ")
    assert f"listen.{door}" in last
    assert str(taken) in last
    assert b"Traceback" not in done.stderr
    assert not (tmp_path / "ready").exists()


def test_serve_says_that_another_hub_is_there(command: Command, tmp_path: Path, hub: HubProcess) -> None:
    host, port = hub.address("spp")
    done = command(
        *("serve", "--data", tmp_path / "data"),
        *(part for setting in (*FREE_DOORS, f"listen.spp={host}:{port}") for part in ("--set", setting)),
    )
    assert done.returncode == 2
    last = done.stderr.decode().splitlines()[-1]
    assert f"a Headrace hub runs there already, process {hub.pid} in {hub.data}" in last
    assert "`headrace up --data DIR` runs another beside it" in last


def test_up_takes_free_ports_and_says_so(tmp_path: Path, taken: int) -> None:
    sets = [*(f"listen.{door}=127.0.0.1:{taken}" for door in DOORS), "pipeline.jobs="]
    with HubProcess.start(tmp_path, *sets, command="up") as hub:
        for door, where in hub.doors.items():
            assert where != f"127.0.0.1:{taken}"
            assert f"{door} listens on {where}: 127.0.0.1:{taken} is taken" in hub.stderr
        assert get(hub, "/healthz") == {"status": "ok"}
        hub.terminate()


def test_two_hubs_do_not_share_a_log(hub: HubProcess, command: Command) -> None:
    done = command("serve", "--data", hub.data, "--set", "listen.http=off", "--set", "listen.fyrehose=off")
    assert done.returncode == 1
    assert f"is in use by process {hub.pid}" in done.stderr.decode()


def test_a_second_hub_leaves_the_ready_file_of_a_running_one_alone(
    hub: HubProcess, command: Command, tmp_path: Path
) -> None:
    before = hub.ready_file.read_bytes()
    done = command("serve", "--data", str(hub.data), "--ready-file", str(hub.ready_file))
    assert done.returncode != 0
    assert hub.ready_file.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": "x"}', b'{"pid": 4194304999}', b"[1]"])
def test_a_ready_file_that_nobody_stands_behind_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ready.json").write_bytes(content)
    with HubProcess.start(tmp_path) as hub:
        assert json.loads(hub.ready_file.read_bytes())["pid"] == hub.pid


def test_json_lines(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--log-format", "json"]
    arguments += [part for setting in FREE_DOORS for part in ("--set", setting)]
    with piped("serve", *arguments) as process:
        ready = json.loads(process.stderr.readline())
        process.terminate()
        rest = [json.loads(line) for line in process.stderr]
    assert process.returncode == 0
    assert ready["message"].startswith("ready: fyrehose 127.0.0.1:")
    assert ready["level"] == "info"
    assert all(line["logger"].startswith("headrace") for line in rest)


def test_an_unusable_ready_file(command: Command, tmp_path: Path) -> None:
    done = command(
        *("serve", "--data", tmp_path / "data", "--ready-file", tmp_path / "missing" / "ready"),
        *(part for setting in FREE_DOORS for part in ("--set", setting)),
    )
    assert done.returncode == 2
    assert "--ready-file" in done.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize("option", ["--set", "-s"])
def test_a_wrong_setting(run: Run, option: str) -> None:
    result = run("serve", option, "log.fsync=sometimes")
    assert result.exit_code == 2
    assert result.stderr == (
        "headrace: log.fsync = 'sometimes' (from --set): expected always, interval or never\n"
    )


def test_a_missing_config_file(run: Run, tmp_path: Path) -> None:
    result = run("serve", "--config", tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "none.toml" in result.stderr


def test_a_damaged_log_names_what_mends_it(command: Command, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one"], [b"two"])
    (directory / "0000000000000001.index").unlink()
    free = [part for setting in FREE_DOORS for part in ("--set", setting)]
    done = command("serve", "--data", tmp_path, *free)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"`headrace log repair --dry-run` shows what can be done" in done.stderr


def test_the_banner_on_a_terminal(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--set", "node.name=mill[1]"]
    arguments += [part for setting in FREE_DOORS for part in ("--set", setting)]
    with Terminal("serve", *arguments) as terminal:
        terminal.read_until("Ctrl-C stops it.")
        terminal.process.terminate()
        assert terminal.wait() == 0
    text = terminal.shown
    assert "on node mill[1]" in text
    assert re.search(r"fyrehose +fyrehose://127\.0\.0\.1:\d+", text)
    assert re.search(r"dashboard +http://127\.0\.0\.1:\d+/", text)
    # As commands and clients take them.
    assert re.search(r"tube_tcp +tube://127\.0\.0\.1:\d+", text)
    assert re.search(r"tube_ws +ws://127\.0\.0\.1:\d+", text)
    assert re.search(rf"data +{re.escape(str(tmp_path))}", text)
    assert re.search(r"fsync +interval: every 50 ms", text)


def test_a_hub_that_does_not_start_fails_its_test_with_its_stderr(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"exited with 2\n(.*\n)*headrace: log\.fsync = 'maybe'"):
        HubProcess.start(tmp_path, "log.fsync=maybe")


def test_a_hub_that_ends_by_itself_fails_its_test(tmp_path: Path) -> None:
    def use() -> None:
        with HubProcess.start(tmp_path) as hub:
            ended = os.pidfd_open(hub.pid)
            os.kill(hub.pid, signal.SIGKILL)
            select.select([ended], [], [])
            os.close(ended)

    with pytest.raises(pytest.fail.Exception, match="ended by itself with -9"):
        use()
