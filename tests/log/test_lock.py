from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.log.content import append

from headrace.errors import LockedError
from headrace.log import Log
from headrace.log.files import WriterLock, has_writer, holder

HOLD = """
import sys
from pathlib import Path
from headrace.log import Log
log = Log.open(Path(sys.argv[1]))
print(log.tail, flush=True)
sys.stdin.read()
log.close()
"""


def hold(directory: Path) -> subprocess.Popen[str]:
    """Another process that has the log open until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


class TestTwoProcesses:
    def test_the_second_is_told_who_is_first(self, tmp_path: Path) -> None:
        with hold(tmp_path) as process:
            with pytest.raises(
                LockedError, match=f"in use by process {process.pid}; stop it first"
            ) as caught:
                Log.open(tmp_path)
            assert caught.value.path == str(tmp_path)
            assert holder(tmp_path / "lock") == {"pid": process.pid}
            assert process.stdin is not None
            process.stdin.close()
        assert process.returncode == 0
        Log.open(tmp_path).close()

    def test_one_that_is_killed_lets_go(self, tmp_path: Path) -> None:
        with hold(tmp_path) as process:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            log = Log.open(tmp_path)
            append(log, b"x")
            assert holder(tmp_path / "lock") == {"pid": os.getpid()}
            log.close()

    def test_who_has_writer_is_seen_without_the_lock(self, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        assert not has_writer(lock)
        with hold(tmp_path) as process:
            assert has_writer(lock)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert holder(lock) == {"pid": process.pid}
            assert not has_writer(lock)
        for told in ('{"pid": -1}', '{"pid": "x"}', '{"pid": 99999999999999999999}', "{"):
            lock.write_text(told)
            assert not has_writer(lock)

    def test_reading_is_allowed_meanwhile(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"x")
        log.close()
        with hold(tmp_path) as process:
            log = Log.open(tmp_path, read_only=True)
            assert [bytes(p) for each in log.scan(1) for p in each.run] == [b"x"]
            log.close()
            assert process.stdin is not None
            process.stdin.close()

    def test_a_log_that_is_refused_is_not_locked(self, tmp_path: Path) -> None:
        (tmp_path / f"{1:016d}.open").write_bytes(b"something else." * 9)
        for _ in range(2):
            with pytest.raises(Exception, match="not Headrace's"):
                Log.open(tmp_path)


class TestLock:
    def test_facts_for_others(self, tmp_path: Path) -> None:
        lock = WriterLock(tmp_path / "lock")
        lock.tell(http="127.0.0.1:8470")
        assert holder(tmp_path / "lock") == {"pid": os.getpid(), "http": "127.0.0.1:8470"}
        lock.tell()
        assert holder(tmp_path / "lock") == {"pid": os.getpid()}
        lock.release()
        assert holder(tmp_path / "lock") == {}

    def test_once_at_a_time(self, tmp_path: Path) -> None:
        lock = WriterLock(tmp_path / "lock")
        with pytest.raises(LockedError):
            WriterLock(tmp_path / "lock")
        lock.release()
        WriterLock(tmp_path / "lock").release()

    @pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
    def test_a_holder_that_has_not_spoken(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "lock").write_bytes(content)
        assert holder(tmp_path / "lock") == {}
        assert holder(tmp_path / "none") == {}

    def test_no_room_to_say_who_we_are(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> int:
            raise OSError(28, "no space")

        monkeypatch.setattr(os, "pwrite", full)
        lock = WriterLock(tmp_path / "lock")
        with pytest.raises(LockedError, match=r"process \?"):
            WriterLock(tmp_path / "lock")
        lock.release()
