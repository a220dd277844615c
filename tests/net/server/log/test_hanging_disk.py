"""A lone hub whose disk does not answer: it says so, to whoever asks, and goes on when the disk does."""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority

from headrace.config import Address
from headrace.net.server.machine import log_disk
from headrace.testing import Hub

Asked = tuple[int, dict[str, Any]]


class HangingDisk:
    """Writes and syncs of the log's tail wait until the disk answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: set[str] = set()
        self.caught = threading.Semaphore(0)
        self.only: Path | None = None
        """The directory whose files hang, if not all do."""
        self._answers = threading.Event()
        for name in ("pwritev", "fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._waiting(name, getattr(os, name)))

    def hang(self, *calls: str) -> None:
        self._answers.clear()
        self.calls = set(calls)

    def answer(self) -> None:
        self.calls = set()
        self._answers.set()

    def _waiting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(fd: int, *arguments: Any) -> Any:
            file = Path(f"/proc/self/fd/{fd}").readlink() if name in self.calls else Path()
            if file.suffix == ".open" and (self.only is None or self.only in file.parents):
                self.caught.release()
                self._answers.wait(60)
            return call(fd, *arguments)

        return wait


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingDisk]:
    monkeypatch.setattr(log_disk, "PATIENCE", 0.02)
    hanging = HangingDisk(monkeypatch)
    yield hanging
    hanging.answer()


def ask(hub: Hub, path: str, context: ssl.SSLContext | None = None) -> Asked:
    address = Address.parse(hub.doors["http"])
    connection = (
        HTTPConnection(address.host, address.port, timeout=20)
        if context is None
        else HTTPSConnection(address.host, address.port, timeout=20, context=context)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def ask_until(
    hub: Hub, path: str, wanted: Callable[[Asked], bool], context: ssl.SSLContext | None = None
) -> Asked:
    for _ in range(1000):
        try:
            found = ask(hub, path, context)
        except (OSError, HTTPException):
            continue
        if wanted(found):
            return found
        threading.Event().wait(0.02)
    raise AssertionError(f"{path} never said so: {found}")


def is_told(answer: Asked) -> bool:
    return answer[0] == 503 and "the disk has not answered for" in answer[1]["reason"]


@pytest.mark.parametrize(
    ("fsync", "size", "calls"),
    [
        ("never", 10, ("pwritev",)),
        ("never", log_disk.SMALL_BYTES, ("pwritev",)),
        ("interval", 10, ("fsync", "fdatasync")),
        ("always", 10, ("fsync", "fdatasync")),
    ],
    ids=["a small append", "a large append", "a sync", "a sync that commits"],
)
def test_health_checks_go_on_and_tell(
    disk: HangingDisk, fsync: str, size: int, calls: tuple[str, ...]
) -> None:
    with Hub({"log.fsync": fsync}) as hub, hub.connect_sync() as link:
        assert link.publish(b"before").last == 1
        disk.hang(*calls)
        waits = threading.Thread(target=link.publish, args=(bytes(size),))
        waits.start()
        assert disk.caught.acquire(timeout=20)
        ask_until(hub, "/readyz", is_told)
        for _ in range(3):
            status, facts = ask(hub, "/healthz")
            assert (status, facts["status"]) == (200, "ok")
        disk.answer()
        waits.join(20)
        assert ask_until(hub, "/readyz", lambda answer: answer[0] == 200)[1]["ready"]
        # The link goes on as it was, and each message is there once.
        assert link.publish(b"after").last == 3
        assert [len(message.payload) for message in hub.messages()] == [6, size, 5]


def test_it_is_told_over_tls(disk: HangingDisk, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.sign("hub.example")
    settings = {
        "tls.cert": str(certificate.cert),
        "tls.key": str(certificate.key),
        "tls.doors": "http",
        "log.fsync": "never",
    }
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.check_hostname = False
    with Hub(settings) as hub, hub.connect_sync("tube://") as link:
        disk.hang("pwritev")
        waits = threading.Thread(target=link.publish, args=(b"waits",))
        waits.start()
        assert disk.caught.acquire(timeout=20)
        assert ask(hub, "/healthz", context)[0] == 200
        assert is_told(ask(hub, "/readyz", context))
        disk.answer()
        waits.join(20)
        assert ask_until(hub, "/readyz", lambda answer: answer[0] == 200, context)[1]["ready"]


def test_publishers_wait_for_a_slow_append_and_the_doors_go_on(disk: HangingDisk) -> None:
    """An append that is handed over holds nobody up: what is read, and what other clients ask, is answered."""
    with Hub({"log.fsync": "never"}) as hub, hub.connect_sync() as link, hub.connect_sync() as other:
        link.publish(b"before")
        disk.hang("pwritev")
        large = threading.Thread(target=link.publish, args=(bytes(log_disk.SMALL_BYTES),))
        large.start()
        assert disk.caught.acquire(timeout=20)
        small = threading.Thread(target=other.publish, args=(b"small",))
        small.start()
        assert other.head().head == 1
        disk.answer()
        large.join(20)
        small.join(20)
        assert sorted(len(message.payload) for message in hub.messages()) == [5, 6, log_disk.SMALL_BYTES]


def test_a_frontend_goes_on_while_its_append_waits(disk: HangingDisk, tmp_path: Path) -> None:
    with Hub({"log.fsync": "never"}) as above, above.connect_sync() as link:
        copy = {"log.fsync": "never", "node.upstream": f"tube://{above.doors['tube_tcp']}"}
        with Hub(copy, data=tmp_path) as front, front.connect_sync() as reader:
            link.publish(b"before")
            ask_until(front, "/api/status", lambda answer: answer[1]["head"] == 1)
            disk.only = tmp_path
            disk.hang("pwritev")
            assert link.publish(bytes(log_disk.SMALL_BYTES)).last == 2
            assert disk.caught.acquire(timeout=20)
            # Its own loop answers, not the one that stands in for it.
            assert [rows.num_rows for rows in reader.read(1, 1)] == [1]
            ask_until(front, "/readyz", is_told)
            disk.answer()
            ask_until(front, "/readyz", lambda answer: answer[0] == 200)
            assert [len(message.payload) for message in front.messages()] == [6, log_disk.SMALL_BYTES]
