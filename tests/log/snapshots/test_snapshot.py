from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DamagedError
from headrace.log.checksum import crc32c
from headrace.log.snapshots.snapshot import KEPT, Snapshot, newest, parse, paths, read, serialize, write

UUID_ = UUID("00112233-4455-6677-8899-aabbccddeeff")
OTHER = UUID("99999999-4455-6677-8899-aabbccddeeff")


def taken(seq: int, uuid: UUID = UUID_) -> Snapshot:
    return Snapshot(uuid, seq + 5, seq, {"services": b"s%d" % seq, "holds": b""})


class TestBytes:
    @given(
        st.uuids(),
        st.integers(0, (1 << 48) - 1),
        st.integers(0, (1 << 48) - 1),
        st.dictionaries(st.text(max_size=9), st.binary(max_size=99)),
    )
    def test_round_trip(self, uuid: UUID, op: int, seq: int, sections: dict[str, bytes]) -> None:
        snapshot = Snapshot(uuid, op, seq, sections)
        assert parse(serialize(snapshot)) == snapshot

    def test_every_bit_and_every_length(self) -> None:
        whole = serialize(taken(7))
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedError, match="does not match its checksum") as caught:
                parse(bytes(flipped), "here")
            assert (caught.value.path, caught.value.first, caught.value.last) == ("here", 1, None)
        for size in range(len(whole)):
            with pytest.raises(DamagedError):
                parse(whole[:size])
        with pytest.raises(DamagedError):
            parse(whole + b"\0")

    @pytest.mark.parametrize(
        "body", [b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([b"x"])]
    )
    def test_a_checksum_does_not_make_it_a_snapshot(self, body: bytes) -> None:
        """Snapshots also come from other nodes, who may put any checksum to anything."""
        head = serialize(taken(7))[:40]
        whole = head + crc32c(body, crc32c(head)).to_bytes(4, "little") + body
        with pytest.raises(DamagedError, match="unknown form"):
            parse(whole)


class TestFiles:
    def test_the_newest_are_kept(self, tmp_path: Path) -> None:
        for seq in (3, 8, 20, 21):
            path = write(tmp_path, taken(seq), sync=True)
            assert read(path) == taken(seq)
        assert [int(path.stem) for path in paths(tmp_path)] == [26, 25]
        assert len(paths(tmp_path)) == KEPT
        assert newest(tmp_path, UUID_) == (taken(21), [])

    def test_none(self, tmp_path: Path) -> None:
        assert newest(tmp_path, UUID_) == (None, [])

    def test_foreign_files_are_none_of_ours(self, tmp_path: Path) -> None:
        for name in (
            "1.snapshot",
            "x.snapshot",
            "00000000000000011.snapshot",
            "backup-0000000000000001.snapshot",
        ):
            (tmp_path / name).write_bytes(b"")
        assert newest(tmp_path, UUID_) == (None, [])

    def test_a_damaged_one_is_passed_over(self, tmp_path: Path) -> None:
        write(tmp_path, taken(3), sync=False)
        path = write(tmp_path, taken(8), sync=False)
        path.write_bytes(path.read_bytes()[:-1])
        found, [passed] = newest(tmp_path, UUID_)
        assert found == taken(3)
        assert (passed.path, passed.first) == (str(path), 1)

    def test_one_of_another_log_is_passed_over(self, tmp_path: Path) -> None:
        write(tmp_path, taken(3), sync=False)
        write(tmp_path, taken(8, OTHER), sync=False)
        found, [passed] = newest(tmp_path, UUID_)
        assert found == taken(3)
        assert f"it belongs to log {OTHER}, not to log {UUID_}" in passed.reason

    def test_one_under_another_name_is_passed_over(self, tmp_path: Path) -> None:
        write(tmp_path, taken(3), sync=False).rename(tmp_path / f"{9:016d}.snapshot")
        found, [passed] = newest(tmp_path, UUID_)
        assert found is None
        assert "the snapshot at 8, not at 9" in passed.reason
