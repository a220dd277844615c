"""What may be left after a power failure, by the rules of a page cache and a journal."""

from __future__ import annotations

import struct
from random import Random

from tests.faults.power_cut import PAGE, Disk

TAIL = "/data/log/1.open"


def record(kind: str, inode: int = 0, offset: int = 0, data: bytes = b"") -> bytes:
    return struct.pack("<IIQQ", len(data), ord(kind), inode, offset) + data


def after(*records: bytes, files: dict[str, bytes] | None = None) -> Disk:
    files = {TAIL: b""} if files is None else files
    disk = Disk(files, dict(enumerate(files, 1)))
    disk.replay(b"".join(records))
    return disk


def outcomes(disk: Disk, seeds: int = 300) -> list[dict[str, bytes]]:
    return [disk.survivors(Random(seed)) for seed in range(seeds)]


def test_what_was_synced_is_there() -> None:
    disk = after(
        record("W", 1, 0, b"synced"), record("B", 1, 1), record("E", 1, 1), record("W", 1, 6, b", not synced")
    )
    assert disk.certain() == {TAIL: b"synced"}
    found = {files[TAIL] for files in outcomes(disk)}
    assert {b"synced", b"synced, not synced"} <= found
    assert all(each.startswith(b"synced") for each in found)


def test_a_sync_does_not_cover_what_is_written_while_it_runs() -> None:
    disk = after(record("W", 1, 0, b"a"), record("B", 1, 1), record("W", 1, 1, b"b"), record("E", 1, 1))
    assert disk.certain() == {TAIL: b"a"}


def test_syncs_that_overlap() -> None:
    begun = (record("W", 1, 0, b"a"), record("B", 1, 1), record("W", 1, 1, b"b"), record("B", 1, 2))
    assert after(*begun, record("E", 1, 1), record("W", 1, 2, b"c"), record("E", 1, 2)).certain() == {
        TAIL: b"ab"
    }
    assert after(*begun, record("E", 1, 2), record("E", 1, 1)).certain() == {TAIL: b"ab"}


def test_a_page_may_be_lost_before_one_that_is_kept() -> None:
    disk = after(record("W", 1, 0, b"a" * PAGE + b"b" * PAGE))
    assert bytes(PAGE) + b"b" * PAGE in {files[TAIL] for files in outcomes(disk)}


def test_a_page_is_never_newer_than_it_is_old() -> None:
    # Both writes are on one page: the later one is not there without the earlier.
    disk = after(record("W", 1, 0, b"a"), record("W", 1, 1, b"b"))
    found = {files[TAIL].rstrip(b"\0") for files in outcomes(disk)}
    assert found == {b"", b"a", b"ab"}


def test_a_failed_sync_is_not_made_up_for() -> None:
    failed = (record("W", 1, 0, b"a" * PAGE), record("B", 1, 1), record("F", 1, 1))
    disk = after(*failed, record("W", 1, PAGE, b"b"), record("B", 1, 2), record("E", 1, 2))
    assert disk.certain() == {TAIL: bytes(PAGE) + b"b"}


def test_cutting_back_may_be_undone() -> None:
    disk = after(record("T", 1, 2), record("W", 1, 2, b"xy"), files={TAIL: b"abcd"})
    assert disk.certain() == {TAIL: b"abcd"}
    assert {b"abcd", b"abxy", b"ab"} <= {files[TAIL] for files in outcomes(disk)}


def test_names_are_kept_in_order() -> None:
    making, made = "/data/log/1.making", "/data/log/1.arrow"
    renamed = (
        record("C", 7, 0, making.encode()),
        record("W", 7, 0, b"sealed"),
        record("B", 7, 1),
        record("E", 7, 1),
        record("R", 0, 0, f"{making}\0{made}".encode()),
        record("U", 0, 0, TAIL.encode()),
    )
    disk = after(*renamed)
    assert {frozenset(files) for files in outcomes(disk)} == {
        frozenset({TAIL}), frozenset({TAIL, making}), frozenset({TAIL, made}), frozenset({made}),
    }  # fmt: skip
    assert disk.certain() == {TAIL: b""}
    synced = after(*renamed, record("B", 99, 2), record("E", 99, 2))
    assert synced.certain() == {made: b"sealed"}
    assert {frozenset(files) for files in outcomes(synced)} == {frozenset({made})}


def test_a_new_file_with_the_number_of_an_old_one_is_another() -> None:
    disk = after(
        record("U", 0, 0, TAIL.encode()), record("C", 1, 0, b"/data/log/2.open"),
        record("B", 99, 1), record("E", 99, 1), files={TAIL: b"old"},
    )  # fmt: skip
    assert disk.certain() == {"/data/log/2.open": b""}


def test_a_record_that_was_being_written_counts_for_nothing() -> None:
    disk = after(record("W", 1, 0, b"a"), record("W", 1, 1, b"bcd")[:-1])
    assert {files[TAIL] for files in outcomes(disk)} == {b"", b"a", b"\0"}
