from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.cli.logs import write_log
from tests.hubprocess import HubProcess

from headrace.log.files import WriterLock
from headrace.wire.fyrehose.stream import Push, serialize


class Answering(threading.Thread):
    """Somebody at a port, who takes one request and gives one answer."""

    def __init__(self, listener: socket.socket, answer: bytes) -> None:
        super().__init__()
        self.asked = b""
        self._listener = listener
        self._answer = answer

    def run(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while b"\r\n\r\n" not in self.asked:
                self.asked += connection.recv(4096)
            connection.sendall(self._answer)


def test_without_a_hub(run: Run, shown: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one", b"two"])
    assert shown("log", "seal", "--data", tmp_path).stdout == "sealed 1 segment\n"
    assert (directory / "0000000000000001.arrow").exists()
    assert not (directory / "0000000000000001.open").exists()
    assert shown("log", "seal", "--data", tmp_path).stdout == "nothing to seal\n"
    assert json.loads(run("log", "seal", "--data", tmp_path).stdout) == {"sealed": 0}


def test_the_hub_is_asked(run: Run, hub: HubProcess) -> None:
    with socket.create_connection(hub.address("fyrehose")) as publisher:
        publisher.sendall(serialize(Push(b"sealed by the hub")))
        publisher.shutdown(socket.SHUT_WR)
        assert publisher.recv(1) == b""
    result = run("log", "seal", "--data", hub.data, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"sealed": 1}
    assert list((hub.data / "log").glob("*.arrow"))
    assert hub.running


def test_a_holder_without_an_http_door(run: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one"])
    lock = WriterLock(directory / "lock")
    try:
        lock.tell(doors={"fyrehose": "127.0.0.1:1"})
        result = run("log", "seal", "--data", tmp_path)
    finally:
        lock.release()
    assert result.exit_code == 2
    assert "no http door" in result.stderr


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nhello", "not a hub"),
        (b"HTTP/1.0 503 Busy\r\n\r\n{}", "Busy (503)"),
        (b'HTTP/1.0 403 Forbidden\r\n\r\n{"error": "not you"}', "not you (403)"),
        (b"HTTP/1.0 401 Unauthorized\r\n\r\n{}", "auth.required is on: add --client-id"),
        (b"\x00\x01\x02\r\n\r\n", "http://127.0.0.1:"),
        (b"", "http://127.0.0.1:"),
    ],
)
def test_a_door_that_answers_otherwise(run: Run, tmp_path: Path, answer: bytes, complaint: str) -> None:
    directory = write_log(tmp_path, [b"one"])
    lock = WriterLock(directory / "lock")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        lock.tell(doors={"http": f"127.0.0.1:{listener.getsockname()[1]}"})
        answering = Answering(listener, answer)
        answering.start()
        try:
            result = run("log", "seal", "--data", tmp_path)
        finally:
            lock.release()
            answering.join()
    assert result.exit_code == 1
    assert result.stderr.startswith("headrace: ")
    assert complaint in result.stderr
    assert b"X-Headrace: 1" in answering.asked
