"""``headrace verify`` and ``headrace log head``: equal copies, signed heads, and the first difference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.archive.tables import add, ledger
from tests.cli.conftest import Run
from tests.log.content import seal_all
from tests.log.proof.copies import LOG, changes, history, rows, write_log

from headrace.log import Log
from headrace.log.proof import chain as module
from headrace.log.proof.chain import Chain
from headrace.message import Message

WHOLE = history(50)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_log(tmp_path / "original", WHOLE, each=7, sealed=3)


@pytest.fixture
def key(run: Run, tmp_path: Path) -> Path:
    made = json.loads(run("keys", "signing", "auditor", "--dir", tmp_path / "keys").stdout)
    assert Path(made["key"]).stat().st_mode & 0o777 == 0o600
    return Path(made["key"])


@pytest.fixture
def checkpoint(run: Run, tmp_path: Path, key: Path) -> Path:
    """A checkpoint of the first 45 messages."""
    data = write_log(tmp_path / "signed", WHOLE[:45], each=2, sealed=4)
    file = tmp_path / "monday.checkpoint"
    file.write_text(run("log", "head", "--sign", key, "--data", data).stdout)
    return file


def facts(run: Run, *arguments: object, code: int = 0) -> dict[str, Any]:
    result = run("verify", *arguments)
    assert result.exit_code == code, (result.stdout, result.stderr)
    told: dict[str, Any] = json.loads(result.stdout)
    assert told["ok"] is (code == 0)
    return told


def test_the_head_is_the_same_whatever_the_files(
    run: Run, shown: Run, tmp_path: Path, original: Path
) -> None:
    other = write_log(tmp_path / "other", WHOLE, each=4, sealed=100)
    expected = Chain(LOG).extended([rows(WHOLE)], 50)
    told = json.loads(run("log", "head", "--data", original).stdout)
    assert told == json.loads(run("log", "head", "--data", other).stdout)
    assert told == {
        "log": str(LOG),
        "head": 50,
        "blocks": 6,
        "chain": (expected.value or b"").hex(),
        "open_first": 49,
        "open": (expected.open_digest or b"").hex(),
    }
    text = shown("log", "head", "--data", original).stdout
    assert f"chain      {told['chain']}\n" in text


def test_a_log_extends_what_was_signed(
    run: Run, shown: Run, original: Path, checkpoint: Path, key: Path
) -> None:
    for how in ((), ("--full",), ("--digests",)):
        told = facts(run, original, "--checkpoint", checkpoint, "--key", key.with_suffix(".pub"), *how)
        assert (told["checkpoint"]["head"], told["checkpoint"]["trusted"]) == (45, True)
        assert (told["findings"], told["unchecked"]) == ([], [])
        assert told["copies"][0]["full"] is (how != ("--digests",))
    result = shown("verify", "--data", original, "--checkpoint", checkpoint)
    assert "extends the checkpoint of " in result.stdout
    assert "name the key you trust with --key" in result.stderr


@pytest.mark.parametrize("at", [3, 30, 43])
@pytest.mark.parametrize("what", changes(WHOLE, 30))
def test_a_log_that_does_not_is_found_out(
    run: Run, tmp_path: Path, original: Path, checkpoint: Path, what: str, at: int
) -> None:
    other = write_log(tmp_path / "other", changes(WHOLE, at)[what], each=5, sealed=2)
    (alone,) = facts(run, other, "--checkpoint", checkpoint, code=1)["findings"]
    assert alone["first"] <= at <= alone["last"] <= alone["first"] + 7
    assert alone["message"] is None
    # With a copy that has what was signed, the message is named; the copies differ there, too.
    found = facts(run, other, original, "--checkpoint", checkpoint, code=1)["findings"]
    assert [(each["message"], each["block"]) for each in found] == [(at, (at - 1) // 8)] * 2
    assert Path(found[0]["copy"]).parent == other


@pytest.mark.parametrize("what", changes(WHOLE, 30))
def test_equal_or_the_first_difference(run: Run, tmp_path: Path, original: Path, what: str) -> None:
    same = write_log(tmp_path / "same", WHOLE, each=9, sealed=2)
    assert facts(run, original, same)["findings"] == []
    for at in (1, 30, 49):
        other = write_log(tmp_path / f"other-{at}", changes(WHOLE, at)[what], each=5, sealed=2)
        for how in ("--full", "--digests"):
            (found,) = facts(run, original, same, other, how, code=1)["findings"]
            assert (found["copy"], found["message"]) == (str(other / "log"), at)


def test_messages_that_are_not_those_that_were_digested(run: Run, tmp_path: Path, original: Path) -> None:
    """Whoever changes a log's files and their checksums does not change what it has digested."""
    changed = write_log(tmp_path / "changed", changes(WHOLE, 30)["a changed bit"], each=7, sealed=3)
    (changed / "log" / "chain").write_bytes((original / "log" / "chain").read_bytes())
    (found,) = facts(run, changed, code=1)["findings"]
    assert (found["first"], found["last"]) == (25, 32)
    assert "than it recorded" in found["reason"]
    (found,) = facts(run, changed, original, "--full", code=1)["findings"][1:]
    assert found["message"] == 30


def test_a_damaged_file_is_a_finding(run: Run, original: Path) -> None:
    segment = original / "log" / "0000000000000022.arrow"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    (found,) = facts(run, original, code=1)["findings"]
    assert found["first"] >= 22


def test_a_log_that_ends_before_what_was_signed(run: Run, tmp_path: Path, checkpoint: Path) -> None:
    short = write_log(tmp_path / "short", WHOLE[:41], each=5, sealed=2)
    (found,) = facts(run, short, "--checkpoint", checkpoint, code=1)["findings"]
    assert (found["message"], "ends with message 41" in found["reason"]) == (42, True)


def test_another_log(run: Run, tmp_path: Path, original: Path, checkpoint: Path) -> None:
    uuid = LOG.__class__(int=5)
    other = write_log(tmp_path / "other", WHOLE, each=5, sealed=2, uuid=uuid)
    found = facts(run, other, original, "--checkpoint", checkpoint, code=1)["findings"]
    assert all(str(uuid) in each["reason"] and str(LOG) in each["reason"] for each in found)
    assert len(found) == 2


def test_a_trimmed_log_still_extends_what_was_signed(
    run: Run, shown: Run, tmp_path: Path, original: Path, checkpoint: Path
) -> None:
    log = Log.open(original / "log", fsync="never")
    seal_all(log)
    log.write_snapshot(log.head_op, log.head, {})
    log.retain(0, retain_bytes=1, retain_us=None, holds={})
    log.close()
    told = facts(run, original, "--checkpoint", checkpoint)
    # Blocks by their digests; the end of what was signed is in the middle of one.
    assert told["unchecked"] == [{"copy": str(original / "log"), "first": 41, "last": 45}]
    (original / "log" / "chain").unlink()
    whole = write_log(tmp_path / "whole", WHOLE, each=4, sealed=3)
    assert "nothing was compared" in shown("verify", original, whole).stdout
    result = run("log", "head", "--data", original)
    assert json.loads(result.stdout)["chain"] is None


def test_a_forged_checkpoint_fails(
    run: Run, tmp_path: Path, original: Path, checkpoint: Path, key: Path
) -> None:
    file = json.loads(checkpoint.read_text())
    forged = tmp_path / "forged"
    forged.write_text(json.dumps({**file, "head": 44}))
    result = run("verify", original, "--checkpoint", forged)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "signature" in result.stderr
    made = json.loads(run("keys", "signing", "stranger", "--dir", tmp_path / "keys").stdout)
    result = run("verify", original, "--checkpoint", checkpoint, "--key", made["public"])
    assert result.exit_code == 1
    assert "it is signed by the key" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--key", "x"), ("--full", "--digests"), ("--data", "a", "b"), ("--checkpoint", "/dev/null")],
)
def test_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("verify", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


class TestArchive:
    def archive(self, place: Path, messages: Sequence[Message], each: int = 11, kind: str = "delta") -> Path:
        to = ledger(kind, place, str(LOG))
        for begin in range(0, len(messages), each):
            add(to, pa.Table.from_batches([rows(messages[begin : begin + each])]))
        return place

    @pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
    def test_it_has_the_chain_of_its_log(
        self, run: Run, tmp_path: Path, original: Path, checkpoint: Path, kind: str
    ) -> None:
        archive = self.archive(tmp_path / "archive", WHOLE, kind=kind)
        told = facts(run, archive, original, "--checkpoint", checkpoint)
        assert (told["findings"], told["unchecked"]) == ([], [])
        one, other = told["copies"]
        assert (one["chain"], one["open"]) == (other["chain"], other["open"])

    @pytest.mark.parametrize("what", changes(WHOLE, 30))
    def test_the_first_message_that_differs(
        self, run: Run, tmp_path: Path, original: Path, what: str
    ) -> None:
        archive = self.archive(tmp_path / "archive", changes(WHOLE, 30)[what])
        (found,) = facts(run, original, archive, code=1)["findings"]
        assert (found["copy"], found["message"]) == (str(archive), 30)

    def test_a_message_that_is_missing(
        self, run: Run, tmp_path: Path, original: Path, checkpoint: Path
    ) -> None:
        kept = [message for message in WHOLE if message.seq != 30]
        archive = self.archive(tmp_path / "archive", kept)
        found = facts(run, archive, original, "--checkpoint", checkpoint, code=1)["findings"]
        assert {(each["copy"], each["message"]) for each in found} >= {(str(archive), 30)}

    def test_one_that_has_only_the_past(self, run: Run, tmp_path: Path, original: Path) -> None:
        archive = self.archive(tmp_path / "archive", WHOLE[:33])
        assert facts(run, original, archive)["findings"] == []
        # And one that begins later.
        later = self.archive(tmp_path / "later", WHOLE[12:])
        told = facts(run, original, later)
        assert told["findings"] == []
        assert told["unchecked"] == [{"copy": str(later), "first": 1, "last": 12}]
        changed = self.archive(tmp_path / "changed", changes(WHOLE, 14)["a changed time"][12:])
        (found,) = facts(run, original, changed, code=1)["findings"]
        assert found["message"] == 14

    def test_nothing_in_common_proves_nothing(
        self, run: Run, shown: Run, tmp_path: Path, checkpoint: Path
    ) -> None:
        past = self.archive(tmp_path / "past", WHOLE[:20])
        later = self.archive(tmp_path / "later", WHOLE[30:])
        (found,) = facts(run, past, later, code=1)["findings"]
        assert (found["copy"], found["first"], found["last"]) == (str(later), 1, 20)
        assert "nothing was compared" in found["reason"]
        latest = self.archive(tmp_path / "latest", WHOLE[46:])
        (found,) = facts(run, latest, "--checkpoint", checkpoint, code=1)["findings"]
        assert (found["first"], found["last"]) == (1, 45)
        assert "nothing of what was signed" in found["reason"]
        # Some of it is something.
        assert facts(run, later, "--checkpoint", checkpoint)["unchecked"][0]["last"] == 32
        text = shown("verify", later, "--checkpoint", checkpoint).stdout
        assert "(every message read, except for what could not be checked)" in text

    def test_none_at_all(self, run: Run, tmp_path: Path) -> None:
        result = run("verify", tmp_path / "nothing")
        assert result.exit_code == 1
        assert "there is no archive" in result.stderr
