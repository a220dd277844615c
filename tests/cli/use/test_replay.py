from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Command, Run
from tests.cli.logs import write_log, write_trimmed_log
from tests.cli.pseudo_terminal import Terminal
from tests.cli.use.test_pub_link import facts, kept, url
from tests.hubprocess import HubProcess

from headrace.client.link import replay as tube_replay
from headrace.client.link.rows import plain_rows
from headrace.message import SCHEMA, Batch
from headrace.message import Run as Payloads


@pytest.fixture
def other(tmp_path: Path) -> Iterator[HubProcess]:
    """The hub that gets the messages."""
    with HubProcess.start(tmp_path / "other") as running:
        yield running
        running.terminate()


def payloads(hub: HubProcess, first: int, last: int) -> list[bytes]:
    return [message.payload for message in kept(hub, first, last)]


@pytest.mark.slow
def test_between_hubs_and_again(hub: HubProcess, other: HubProcess, command: Command) -> None:
    told = facts(
        command("pub", "one", "two", "--topic", "t", "--attr", "n=1", "--attr", "s=x", "--url", url(hub))
    )
    # What makes a service is a log entry and no message: a number that is left out.
    assert command("services", "put", "replayed", "{}", "--url", hub.url("spp")).returncode == 0
    assert command("services", "watch", "replayed", "-n", 1, "--url", hub.url("spp")).returncode == 0
    assert command("pub", "last", "--url", url(hub)).returncode == 0
    replay = ("replay", "--from", told["first"], "--url", url(hub), "--to", url(other))

    done = facts(command(*replay, "--until", told["last"]))
    assert (done["messages"], done["first"], done["last"], done["skipped"]) == (2, 1, 2, None)
    first = kept(other, 1, 1)[0]
    assert (first.payload, first.topic, first.origin) == (b"one", "t", "replay")
    assert (dict(first.attributes), dict(first.numbers)) == ({"s": "x"}, {"n": 1.0})

    done = command(*replay)
    assert b"messages up to" in done.stderr
    assert done.returncode == 0
    assert payloads(other, 3, 4) == [b"{}", b"last"]
    assert command(*replay).returncode == 0
    assert facts(command("tail", "--from", "earliest", "--count", 1, "--url", url(other)))["seq"] == 1
    assert len(payloads(other, 1, 1000)) == 4
    assert facts(command(*replay, "--until", told["first"], "--as", "once more"))["first"] == 5


def test_from_files(other: HubProcess, command: Command, tmp_path: Path) -> None:
    write_log(tmp_path / "old", [b"1", b"2"], [b"3", b"4"], [b"5"])
    replay = ("replay", "--data", tmp_path / "old", "--to", url(other))
    done = facts(command(*replay, "--from", 2, "--until", "1970-01-01T00:00:05Z"))
    assert (done["from"], done["until"], done["messages"]) == (2, 4, 3)
    assert payloads(other, 1, 9) == [b"2", b"3", b"4"]
    with Terminal(*replay) as terminal:
        assert terminal.wait() == 0
    assert "messages up to 4 were left out" in terminal.shown
    assert "replayed 1 message; it is 4 there" in terminal.shown
    with Terminal(*replay) as terminal:
        assert terminal.wait() == 0
    assert "there was nothing to replay" in terminal.shown
    assert payloads(other, 1, 9) == [b"2", b"3", b"4", b"5"]


def test_a_message_no_publish_has_room_for_is_named(
    other: HubProcess, command: Command, tmp_path: Path
) -> None:
    longest = b"x" * (8_388_608 - 13)  # What a PUBLISH of the spp door can bring.
    write_log(tmp_path / "old", [b"before", longest, b"behind"])
    replay = ("replay", "--data", tmp_path / "old", "--to", url(other))
    done = command(*replay)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"message 2, with its envelope" in done.stderr
    assert b"--from 3 leaves it out" in done.stderr
    assert facts(command(*replay, "--from", 3))["messages"] == 1
    assert payloads(other, 1, 9) == [b"before", b"behind"]


def test_what_retention_has_removed(other: HubProcess, command: Command, tmp_path: Path) -> None:
    write_trimmed_log(tmp_path / "old", 3, [b"one"], [b"two"], [b"three"])
    replay = ("replay", "--data", tmp_path / "old", "--to", url(other))
    assert command(*replay, "--from", 1).returncode == 1
    assert facts(command(*replay))["messages"] == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--from", "now"], "nothing is there yet"),
        (["--until", "earliest"], "--until"),
        (["--from", "5", "--until", "4"], "--from 5 is after --until 4"),
        (["--to", "fyrehose://127.0.0.1"], "expected tube://host:port"),
        (["--data", "/nonexistent"], "--url and --data"),
        (["--as", ""], "--as"),
    ],
)
def test_asked_wrongly(run: Run, arguments: list[str], complaint: str) -> None:
    result = run("replay", "--url", "tube://127.0.0.1:1", "--to", "tube://127.0.0.1:2", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_log_is_not_replayed_to_itself(hub: HubProcess, command: Command) -> None:
    done = command("replay", "--url", url(hub), "--to", url(hub))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"both hubs have the log" in done.stderr


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=30),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_runs_have_no_gap_and_lose_nothing(rows: list[tuple[int, int]], room: int, most: int) -> None:
    steps, sizes = zip(*rows, strict=True)
    seqs = np.cumsum(steps).tolist()
    batch = Batch(
        Payloads.of([bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]), first=1
    ).to_arrow()
    batch = batch.set_column(0, SCHEMA.field("seq"), pa.array(seqs, pa.int64()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tube_replay, "_REQUEST_BYTES", room)
        patch.setattr(tube_replay, "_REQUEST_ROWS", most)
        runs = list(tube_replay.runs(batch))
    numbers = [number + place for number, run in runs for place in range(run.num_rows)]
    assert numbers == seqs
    assert [each for _, run in runs for each in run["payload"].to_pylist()] == batch["payload"].to_pylist()
    for _, run in runs:
        assert run.num_rows == 1 or (
            run.num_rows <= most and sum(map(len, run["payload"].to_pylist())) <= room
        )


def test_large_attributes_make_small_requests() -> None:
    count = 4
    rows = plain_rows([b""] * count, "t", {"a": "x" * (3 << 20)})
    batch = Batch(Payloads.of([b""] * count), first=1, columns=rows.select(["attributes"])).to_arrow()
    assert [number for number, _ in tube_replay.runs(batch)] == [1, 3]
