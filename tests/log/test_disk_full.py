"""A disk that is really full: what is written is partly there when the system says no.

A limit on the size of files (``RLIMIT_FSIZE``) gives real partial writes without a disk to fill, and can be raised
again. It holds for a whole process, so each story runs in one of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PRELUDE = """
import contextlib, os, resource, sys
from pathlib import Path
import numpy as np
import pytest
from headrace.errors import FullError
from headrace.log import Log
from tests.log.content import append, append_entries, batch, content_of, flat, operations, seal_all

directory = Path(sys.argv[1])

@contextlib.contextmanager
def full(size):
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))

def reopened():
    log = Log.open(directory)
    assert log.torn is None
    return log
"""


def story(script: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), directory],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_appending(tmp_path: Path) -> None:
    story(
        """
        log = Log.open(directory)
        append(log, b"before")
        size = log.segments[-1].size
        for room in (0, 1, 7, 8, 55, 56, 100, 4000, 4096, 70_000):
            before = content_of(directory)
            messages = flat(log.scan(1))
            with full(log.segments[-1].size + room):
                refused = [batch(log.tail + 1, b"x" * 40_000), batch(log.tail + 2, b"y" * 40_000)]
                for _ in range(2):
                    with pytest.raises(FullError, match="file too large; free space or lower log.retain_bytes"):
                        log.append(refused)
                assert content_of(directory) == before
                assert flat(log.scan(1)) == messages
                if room >= 100:
                    append(log, b"a small one still fits")
            append(log, b"and afterwards %d" % room)
        messages = flat(log.scan(1))
        assert len(messages) == 15
        log.close()
        assert flat(reopened().scan(1)) == messages
        """,
        tmp_path,
    )


def test_rotating(tmp_path: Path) -> None:
    story(
        """
        log = Log.open(directory, segment_bytes=100)
        append(log, b"x" * 100)
        with full(20):
            for _ in range(2):
                with pytest.raises(FullError):
                    append(log, b"refused")
                with pytest.raises(FullError):
                    log.rotate()
            assert len(log.segments) == 1
            assert sorted(path.name for path in directory.iterdir()) == [f"{1:016d}.open", "lock", "synced"]
        append(log, b"next")
        assert len(log.segments) == 2
        log.close()
        assert len(flat(reopened().scan(1))) == 2
        """,
        tmp_path,
    )


def test_sealing(tmp_path: Path) -> None:
    story(
        """
        log = Log.open(directory)
        noise = np.random.default_rng(1)
        for _ in range(50):
            append(log, noise.bytes(1000))
            append_entries(log, noise.bytes(1200))
        log.rotate()
        messages = flat(log.scan(1))
        known = operations(log.scan_ops(1))
        before = content_of(directory)
        for room in (0, 3, 500, 2000, 20_000, 50_000, 62_000):
            with full(room):
                with pytest.raises(FullError):
                    log.seal_next()
                assert content_of(directory) == before
                assert flat(log.scan(1)) == messages
                assert operations(log.scan_ops(1)) == known
        sealed = log.seal_next()
        # The last limit let the Arrow file through, and stopped the entries beside it.
        assert sealed.path.stat().st_size < 62_000 < sealed.entries_path.stat().st_size
        assert flat(log.scan(1)) == messages
        assert operations(log.scan_ops(1)) == known
        log.close()
        again = reopened()
        assert flat(again.scan(1)) == messages
        assert operations(again.scan_ops(1)) == known
        """,
        tmp_path,
    )


def test_snapshots(tmp_path: Path) -> None:
    story(
        """
        log = Log.open(directory)
        append(log, b"x")
        log.write_snapshot(1, 1, {"state": b"old"})
        append(log, b"y")
        before = content_of(directory)
        for room in (0, 10, 999):
            with full(room), pytest.raises(FullError):
                log.write_snapshot(2, 2, {"state": b"new" * 1000})
            assert content_of(directory) == before
            assert log.snapshot.seq == 1
        log.write_snapshot(2, 2, {"state": b"new" * 1000})
        log.close()
        assert reopened().snapshot.sections == {"state": b"new" * 1000}
        """,
        tmp_path,
    )


def test_opening(tmp_path: Path) -> None:
    """A full disk does not keep a log from being read and recovered, only from being written to."""
    story(
        """
        log = Log.open(directory)
        append(log, b"x")
        log.close()
        with (directory / f"{1:016d}.open").open("ab") as file:
            file.write(b"torn")
        with full(0):
            log = Log.open(directory)
            assert log.torn is not None
            assert len(flat(log.scan(1))) == 1
            with pytest.raises(FullError):
                append(log, b"y")
            log.close()
        with full(0), pytest.raises(FullError):
            Log.open(directory / "another")
        log = reopened()
        append(log, b"y")
        log.close()
        Log.open(directory / "another").close()
        """,
        tmp_path,
    )


def test_a_whole_disk(tmp_path: Path) -> None:
    """A file system of 256 KiB, mounted where only this story sees it. Where that is not allowed, the limits above
    have to do."""
    story(
        """
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        new_user, new_mounts, private = 0x10000000, 0x00020000, 0x00044000
        mounted = (
            libc.unshare(new_mounts | (new_user if os.getuid() else 0)) == 0
            and libc.mount(None, b"/", None, private, None) == 0
            and libc.mount(b"none", bytes(directory), b"tmpfs", 0, b"size=256k") == 0
        )
        if not mounted:
            sys.exit()
        ballast = directory / "ballast"
        ballast.write_bytes(bytes(100_000))
        log = Log.open(directory, segment_bytes=20_000)
        noise = np.random.default_rng(1)
        while True:
            try:
                append(log, noise.bytes(1000))
            except FullError as error:
                assert "no space left on device" in str(error)
                break
        messages = flat(log.scan(1))
        assert 100 < len(messages) < 200
        with pytest.raises(FullError):
            seal_all(log)
        with pytest.raises(FullError):
            log.write_snapshot(log.head_op, log.head, {"state": bytes(100_000)})
        assert flat(log.scan(1)) == messages
        assert not list(directory.glob("*.making"))
        log.close()
        # It opens again, and serves again, and goes on when there is room.
        log = Log.open(directory, segment_bytes=20_000)
        assert log.torn is None
        assert flat(log.scan(1)) == messages
        with pytest.raises(FullError):
            append(log, bytes(100_000))
        ballast.unlink()
        append(log, b"at last")
        seal_all(log)
        messages = flat(log.scan(1))
        assert messages[-1].payload == b"at last"
        log.close()
        assert flat(reopened().scan(1)) == messages
        """,
        tmp_path,
    )
