"""Every door of a hub serves from message 1 on what only the archive has, in the log's own order and bytes."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from tests.archive.logs import BEGIN, STEP, archive, message_batches, rows_of, same, write_log
from tests.forking import completed
from tests.hubprocess import HubProcess

import headrace
from headrace.archive.appending import append, ledger_for
from headrace.archive.ledger import Writer
from headrace.errors import RefusedError, TrimmedError

SECONDS = 60.0
COUNT = 20_000
ARCHIVED = 18_500


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Scene:
    """A hub whose log begins long after message 1, and what all of its messages were."""

    def __init__(self, hub: HubProcess, rows: pa.Table, place: Path) -> None:
        self.hub = hub
        self.rows = rows
        self.place = place
        self.payloads: list[bytes] = rows["payload"].to_pylist()

    def url(self, door: str = "tube_tcp", scheme: str = "tube") -> str:
        host, port = self.hub.address(door)
        return f"{scheme}://{host}:{port}"

    def get(self, path: str) -> Any:
        with urlopen(self.url("http", "http") + path, timeout=30) as answer:
            return json.load(answer)

    def status(self) -> Any:
        return self.get("/api/status")

    def served(self) -> int:
        return int(self.status()["counters"].get("from_archive", 0))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("scene")
    place = directory / "archive"
    log = write_log(directory / "data" / "log", COUNT)
    rows = rows_of(log.scan(1))
    archive(log, place, ARCHIVED)
    log.close()
    with HubProcess.start(directory, f"log.archive={place}", "log.retain_bytes=1") as hub:
        scene = Scene(hub, rows, place)
        wait_for(lambda: scene.status()["first_here"] > 18_000, "the log to be trimmed")
        yield scene


def test_only_what_the_archive_has_is_gone_from_the_disk(scene: Scene) -> None:
    status = scene.status()
    assert (status["first"], status["first_here"], status["head"]) == (1, 18_001, COUNT)
    assert status["archive"]["place"] == str(scene.place)
    assert (status["archive"]["first"], status["archive"]["last"]) == (1, ARCHIVED)
    # It wants to remove more than it may.
    wait_for(lambda: "archive" in scene.status()["problems"], "the archive to be too short")
    assert f"ends at message {ARCHIVED}" in scene.status()["problems"]["archive"]
    assert "archive" in scene.get("/readyz")["problems"]


def test_a_read_gives_every_column(scene: Scene) -> None:
    before = scene.served()
    with headrace.connect_sync(scene.url()) as link:
        found = link.read(1).to_arrow()
        assert same(found.combine_chunks(), scene.rows)
        part = link.read(17_990, 18_010, topic="rows/*").to_arrow()
        assert part["seq"].to_pylist() == [
            seq
            for seq, topic in zip(
                range(17_990, 18_011), scene.rows["topic"].to_pylist()[17_989:18_010], strict=True
            )
            if topic.startswith("rows/")
        ]
        assert link.head().first == 1
        assert link.first_at(BEGIN + 877 * STEP) == 877
    assert scene.served() >= before + 18_000


def test_a_follow_passes_from_the_archive_to_the_log_and_on_to_what_comes(scene: Scene) -> None:
    with headrace.connect_sync(scene.url()) as link:
        follow = link.follow(from_seq=1)
        seen = [next(follow) for _ in range(COUNT)]
        assert [message.seq for message in seen] == list(range(1, COUNT + 1))
        assert [message.payload for message in seen] == scene.payloads


def test_a_durable_consumer_begins_at_1(scene: Scene) -> None:
    wanted = [seq for seq, topic in enumerate(scene.rows["topic"].to_pylist(), 1) if topic == "topics/3"]
    with headrace.connect_sync(scene.url()) as link:
        consumer = link.consumer("from the beginning", from_seq=1, topic="topics/3")
        found = []
        for message in consumer:
            consumer.ack(message)
            found.append(message.seq)
            if len(found) == len(wanted):
                break
        assert found == wanted


@pytest.mark.parametrize("scheme", ["fyrehose", "fyrehose+udp"])
def test_the_backbone_repairs_from_message_1(scene: Scene, scheme: str) -> None:
    last = COUNT if scheme == "fyrehose" else 3_000
    with headrace.connect_sync(scene.url("fyrehose", scheme), from_seq=1) as backbone:
        found = [next(backbone) for _ in range(last)]
    assert [message.seq for message in found] == list(range(1, last + 1))
    assert [message.payload for message in found] == scene.payloads[:last]


def test_a_request_of_raw_bytes_is_answered(scene: Scene) -> None:
    with socket.create_connection(scene.hub.address("fyrehose"), timeout=30) as peer:
        peer.sendall(bytes([4]) + bytes(6) + (5).to_bytes(6) + (7).to_bytes(6))
        data = peer.makefile("rb")
        for seq in (5, 6, 7):
            header = data.read(9)
            assert header[0] == 1
            assert int.from_bytes(header[3:]) == seq
            assert data.read(int.from_bytes(header[1:3])) == scene.payloads[seq - 1]


def test_the_dashboard_finds_the_oldest_messages(scene: Scene) -> None:
    found = scene.get("/api/messages?from=1&count=3")["messages"]
    assert [(each["seq"], each["payload"]) for each in found] == [
        (seq, scene.payloads[seq - 1].decode()) for seq in (1, 2, 3)
    ]
    assert scene.get("/api/messages?before=500&count=2")["messages"][-1]["seq"] == 499
    assert scene.get(f"/api/messages?time={BEGIN + 90 * STEP}&count=1")["messages"][0]["seq"] == 90
    assert scene.get("/api/messages/4")["topic"] == "rows/4"


def test_an_http_stream_begins_at_its_first_message(scene: Scene) -> None:
    with urlopen(scene.url("http", "http") + "/v1/stream/topics/1?offset=-1", timeout=30) as answer:
        body = answer.read()
    wanted = [
        payload
        for payload, topic in zip(scene.payloads, scene.rows["topic"].to_pylist(), strict=True)
        if topic == "topics/1"
    ]
    assert body == b"".join(wanted)


def test_sql_counts_all_messages_over_the_link_and_in_the_files(scene: Scene) -> None:
    query = (
        "select count(*) as n, min(seq) as a, max(seq) as z, sum(octet_length(payload)) as b from messages"
    )
    wanted = [{"n": COUNT, "a": 1, "z": COUNT, "b": sum(map(len, scene.payloads))}]
    assert headrace.sql(query, url=scene.url()).to_pylist() == wanted
    assert headrace.sql(query, data=scene.hub.data).to_pylist() == wanted
    few = headrace.sql(
        "select seq from messages where seq in (1, 18000, 18001)", data=scene.hub.data, as_of=18_000
    )
    assert sorted(few["seq"].to_pylist()) == [1, 18_000]


def command(*arguments: object) -> str:
    found = completed([str(argument) for argument in arguments], stdin=b"", seconds=SECONDS)
    assert found.returncode == 0, found.stderr.decode()
    return found.stdout.decode()


def test_commands_read_the_files_and_the_archive(scene: Scene) -> None:
    info = json.loads(command("log", "info", "--data", scene.hub.data, "--json"))
    assert (info["first"], info["first_here"]) == (1, 18_001)
    assert info["archive"]["last"] == ARCHIVED
    dumped = command("log", "dump", "--data", scene.hub.data, "--from", 3, "--to", 5).splitlines()
    assert [json.loads(line)["seq"] for line in dumped] == [3, 4, 5]
    tail = command("tail", "--url", scene.url(), "--from", 1, "--count", 2, "--json").splitlines()
    assert [json.loads(line)["seq"] for line in tail] == [1, 2]


def test_a_frontend_serves_all_once_the_archive_reaches_to_its_log(scene: Scene, tmp_path: Path) -> None:
    place = shutil.copytree(scene.place, tmp_path / "archive")
    sets = f"node.upstream={scene.url()}", f"log.archive={place}", "log.retain_bytes=1"
    with (
        HubProcess.start(tmp_path, *sets) as frontend,
        headrace.connect_sync(f"tube://{frontend.doors['tube_tcp']}") as link,
    ):
        begin = link.head().first
        assert begin > ARCHIVED + 1  # Its log begins after a snapshot, and nobody here has what lies between.
        with pytest.raises(TrimmedError):
            link.read(ARCHIVED).to_arrow()
        append(ledger_for(str(place), link.log), scene.rows.to_batches(), Writer("tests", 1))
        wait_for(lambda: link.head().first == 1, "the frontend to see the rest of the archive")
        assert same(link.read(1, COUNT).to_arrow().combine_chunks(), scene.rows)


def test_what_cannot_be_reached_is_an_error_at_every_door_and_comes_back(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    log = write_log(tmp_path / "data" / "log", 3_000)
    archive(log, place, 3_000)
    log.close()
    sets = (f"log.archive={place}", "log.retain_bytes=1")
    with HubProcess.start(tmp_path, *sets) as hub:
        scene = Scene(hub, rows_of(message_batches(1, 3_000)), place)
        wait_for(lambda: scene.status()["first_here"] > 3_000, "the log to be trimmed")
        hub.terminate()
        away = place.rename(tmp_path / "away")
        hub.restart()
        status = scene.status()
        assert status["first"] == 1  # It knows that the messages are somewhere, and takes new ones.
        assert "there is none any more" in status["problems"]["archive"]
        assert "there is none any more" in scene.get("/readyz")["problems"]["archive"]
        with headrace.connect_sync(scene.url()) as link:
            assert link.publish(b"new").first == 3_001
            with pytest.raises(
                RefusedError, match="messages 1 to 3000 cannot be read from the archive"
            ) as error:
                link.read(1).to_arrow()
            assert error.value.code == "archive"
            consumer = link.consumer("patient", from_seq=1)
            with pytest.raises(RefusedError, match="cannot be read from the archive"):
                next(iter(consumer))
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(scene.url("http", "http") + "/api/messages/7"), timeout=30)
        assert refused.value.code == 503
        away.rename(place)
        with headrace.connect_sync(scene.url()) as link:
            wait_for(lambda: scene.status()["archive"]["problem"] is None, "the archive to be found again")
            consumer = link.consumer("patient", from_seq=1)
            assert next(iter(consumer)).seq == 1  # It was told, and lost nothing.
            assert same(link.read(1, 3_000).to_arrow().combine_chunks(), scene.rows)
