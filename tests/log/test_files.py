from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import FullError, StorageError
from headrace.log.files import Descriptor, making, translated, translating, write_whole
from headrace.platforms import sync_path


class TestDescriptor:
    def test_it_lives_as_long_as_its_last_reader(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"content")
        one = Descriptor(path, os.O_RDONLY)
        other = one
        path.unlink()
        del one
        assert os.pread(other.fd, 100, 0) == b"content"
        number = other.fd
        del other
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pread(number, 1, 0)

    def test_children_do_not_inherit_it(self, tmp_path: Path) -> None:
        descriptor = Descriptor(tmp_path, os.O_RDONLY)
        assert not os.get_inheritable(descriptor.fd)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            Descriptor(tmp_path / "none", os.O_RDONLY)


class TestWriteWhole:
    @pytest.mark.parametrize("sync", [True, False])
    def test_it_replaces(self, tmp_path: Path, sync: bool) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")
        write_whole(path, b"new", sync=sync)
        sync_path(tmp_path)
        assert path.read_bytes() == b"new"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_failure_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            write_whole(path, b"new", sync=True)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_it_is_in_the_making_until_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "1.arrow"
        with making(path) as unfinished:
            assert unfinished == tmp_path / "1.arrow.making"
            unfinished.write_bytes(b"x")
            unfinished.rename(path)

        def interrupted() -> None:
            with making(path) as unfinished:
                unfinished.write_bytes(b"y")
                raise KeyError

        with pytest.raises(KeyError):
            interrupted()
        assert [p.name for p in tmp_path.iterdir()] == ["1.arrow"]
        assert path.read_bytes() == b"x"


class TestTranslation:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
    def test_no_room(self, number: int) -> None:
        error = translated(OSError(number, ""), Path("dir/file"))
        assert type(error) is FullError
        assert error.path == "dir/file"
        assert "free space" in str(error)

    def test_anything_else(self) -> None:
        with (
            pytest.raises(StorageError, match=r"^dir: input/output error$") as caught,
            translating(Path("dir")),
        ):
            raise OSError(errno.EIO, "whatever")
        assert type(caught.value) is StorageError

    def test_our_own_pass(self) -> None:
        with pytest.raises(KeyError), translating(Path("dir")):
            raise KeyError
