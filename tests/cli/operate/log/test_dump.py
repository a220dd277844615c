from __future__ import annotations

import json
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from tests.cli.conftest import Command, Run
from tests.cli.logs import write_log, write_trimmed_log

from headrace.message import SCHEMA

PAYLOADS = [b"one", b"two", b"\xff\x00", "vïer".encode(), b""]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_log(tmp_path, PAYLOADS[:2], PAYLOADS[2:])
    return tmp_path


def dumped(run: Run, *arguments: object) -> list[int]:
    result = run("log", "dump", *arguments)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["seq"] for line in result.stdout.splitlines()]


def test_json_lines_have_the_whole_envelope(run: Run, data: Path) -> None:
    lines = [json.loads(line) for line in run("log", "dump", "--data", data).stdout.splitlines()]
    assert lines[0] == {
        "seq": 1,
        "time": "1970-01-01T00:00:01.000000Z",
        "origin": "fyrehose",
        "node": 0,
        "publisher": "",
        "number": None,
        "topic": "t",
        "attributes": {},
        "numbers": {},
        "payload": "one",
    }
    assert lines[2]["payload_base64"] == "/wA="
    assert "payload" not in lines[2]
    assert lines[3]["payload"] == "vïer"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [1, 2, 3, 4, 5]),
        (["--from", 2, "--to", 4], [2, 3, 4]),
        (["--from", "earliest", "--until", 1], [1]),
        (["--from", 4, "--until", "now"], [4, 5]),
        (["--from", "1970-01-01", "--until", "now"], [1, 2, 3, 4, 5]),
        (["--from", 2, "--until", "1970-01-01"], []),
        (["--from", 5, "--to", 500], [5]),
        (["--from", 6], []),
    ],
)
def test_ranges(run: Run, data: Path, arguments: list[object], expected: list[int]) -> None:
    assert dumped(run, "--data", data, *arguments) == expected


def test_a_range_backwards(run: Run, data: Path) -> None:
    result = run("log", "dump", "--data", data, "--from", 3, "--to", 2)
    assert (result.exit_code, result.stderr) == (2, "headrace: --from 3 is after --until 2\n")


def test_a_range_that_is_trimmed(run: Run, tmp_path: Path) -> None:
    write_trimmed_log(tmp_path, 3, [b"one"], [b"two"], [b"three"])
    result = run("log", "dump", "--data", tmp_path, "--from", 1)
    assert result.exit_code == 1
    assert "the oldest is 3" in result.stderr
    assert dumped(run, "--data", tmp_path) == [3]


def test_to_a_file(run: Run, shown: Run, data: Path) -> None:
    output = data / "out.jsonl"
    result = shown("log", "dump", "--data", data, "--output", output)
    assert (result.stdout, result.stderr) == (f"5 messages in {output}\n", "")
    result = run("log", "dump", "--data", data, "--output", output)
    assert json.loads(result.stdout) == {"messages": 5, "file": str(output)}
    assert output.read_text() == run("log", "dump", "--data", data).stdout


def test_arrow_opens_anywhere(run: Run, data: Path) -> None:
    output = data / "out.arrow"
    result = run("log", "dump", "--data", data, "--from", 2, "--format", "arrow", "--output", output)
    assert result.exit_code == 0
    table = pa.ipc.open_file(str(output)).read_all()
    assert table.schema == SCHEMA
    assert table.column("payload").to_pylist() == PAYLOADS[1:]
    assert polars.read_ipc(output)["seq"].to_list() == [2, 3, 4, 5]
    assert not list(data.glob("*.making"))


def test_an_empty_arrow_file(run: Run, data: Path) -> None:
    output = data / "out.arrow"
    assert run("log", "dump", "--data", data, "--from", 9, "--format", "arrow", "-o", output).exit_code == 0
    assert pa.ipc.open_file(str(output)).read_all().num_rows == 0


def test_arrow_needs_a_file(run: Run, data: Path) -> None:
    result = run("log", "dump", "--data", data, "--format", "arrow")
    assert result.exit_code == 2
    assert "--output" in result.stderr


def test_a_file_that_cannot_be_written(run: Run, data: Path) -> None:
    result = run("log", "dump", "--data", data, "--output", data / "missing" / "out")
    assert result.exit_code == 2
    assert "cannot be written: no such file or directory" in result.stderr


def test_what_was_there_stays_when_the_log_is_damaged(run: Run, data: Path) -> None:
    output = data / "out.jsonl"
    output.write_text("precious")
    sealed = data / "log" / "0000000000000001.arrow"
    content = bytearray(sealed.read_bytes())
    content[len(content) // 2] ^= 0xFF
    sealed.write_bytes(content)
    result = run("log", "dump", "--data", data, "--output", output)
    assert result.exit_code == 1
    assert "messages 1 to 2 are in doubt" in result.stderr
    assert output.read_text() == "precious"
    assert [path.name for path in data.iterdir() if path.is_file()] == ["out.jsonl"]


def test_stdout_is_the_lines_and_nothing_else(command: Command, data: Path) -> None:
    done = command("log", "dump", "--data", data, "--to", 1)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["payload"] == "one"
