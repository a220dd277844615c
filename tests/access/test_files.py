"""The files of rights: keys that only their owner may read, and the audit log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.config import Settings
from headrace.config.key_files import keys_of
from headrace.errors import ConfigError
from headrace.hub.access.audit import AuditKind
from headrace.hub.counters import Counters
from headrace.net.server.access import audit_file
from headrace.net.server.access.audit_file import AuditFile, path_of, read_audit

CLIENT = "0123456789abcdef01234567"


class TestKeyFiles:
    def given(self, path: Path, **more: str) -> Settings:
        values = {"access.gw.client_id": CLIENT, "access.gw.key_file": str(path)}
        return Settings().override({**values, **more}, source="here")

    def test_a_line_is_the_key(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        path.touch(mode=0o600)
        path.write_text("hunter2\n")
        assert keys_of(self.given(path))["gw"].reveal() == "hunter2"

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610])
    def test_nobody_else_may_read_or_write_it(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "key"
        path.write_text("hunter2\n")
        path.chmod(mode)
        with pytest.raises(ConfigError, match=r"only its owner may read \(chmod 600\)") as caught:
            keys_of(self.given(path))
        assert caught.value.key == "access.gw.key_file"
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"a\0b", b"a\nb", b"x" * 5000])
    def test_anything_else_is_no_key(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "key"
        path.touch(mode=0o600)
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="one line of text"):
            keys_of(self.given(path))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no such file"):
            keys_of(self.given(tmp_path / "none"))

    def test_a_key_beside_it_is_one_too_many(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not both"):
            keys_of(self.given(tmp_path / "none", **{"access.gw.key": "k"}))


class TestAuditFile:
    @pytest.fixture
    def counters(self) -> Counters:
        return Counters()

    @pytest.fixture
    def file(self, tmp_path: Path, counters: Counters) -> AuditFile:
        return AuditFile(tmp_path, ThreadPoolExecutor(1), counters)

    def test_records_are_read_back_in_order(self, tmp_path: Path, file: AuditFile) -> None:
        file.write(AuditKind.REFUSED, {"time": 2.0, "what": "second"})
        file.write(AuditKind.LET_IN, {"time": 1.0, "what": "first"})
        file.tick()
        file.write(AuditKind.REFUSED, {"time": 3.0, "what": "third"})
        file.close()
        assert [record["what"] for record in read_audit(tmp_path)] == ["first", "second", "third"]
        assert path_of(tmp_path / "audit", AuditKind.REFUSED).stat().st_mode & 0o777 == 0o600

    def test_a_flood_of_one_kind_is_bounded_and_leaves_the_others(
        self, tmp_path: Path, file: AuditFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit_file, "FILE_BYTES", 10_000)
        file.write(AuditKind.CHANGED, {"time": 0.0, "what": "kept"})
        for number in range(5000):
            file.write(AuditKind.REFUSED, {"time": float(number), "what": "x" * 50})
            if number % 50 == 0:
                file.close()
        file.close()
        kept = list(read_audit(tmp_path))
        assert kept[0]["what"] == "kept"
        assert kept[-1]["time"] == 4999.0
        assert sum(path.stat().st_size for path in (tmp_path / "audit").iterdir()) < 40_000

    def test_what_the_disk_does_not_take_is_counted(
        self, tmp_path: Path, file: AuditFile, counters: Counters, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "audit").write_text("in the way")
        file.write(AuditKind.REFUSED, {"time": 1.0})
        file.close()
        assert counters.get("audit_dropped") == 1
        monkeypatch.setattr(audit_file, "WAITING", 1)
        for _ in range(3):
            file.write(AuditKind.REFUSED, {"time": 1.0})
        assert counters.get("audit_dropped") == 3

    def test_a_torn_line_is_left_out(self, tmp_path: Path, file: AuditFile) -> None:
        file.write(AuditKind.REFUSED, {"time": 1.0})
        file.close()
        path = path_of(tmp_path / "audit", AuditKind.REFUSED)
        path.write_bytes(path.read_bytes() + b'{"time": 2.0, "wh')
        assert [record["time"] for record in read_audit(tmp_path)] == [1.0]
