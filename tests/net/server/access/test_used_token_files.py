"""A token is good once, also over restarts, crashes, power cuts and full disks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time

import pytest

from headrace.hub.access.used_tokens import UsedToken
from headrace.hub.counters import Counters
from headrace.net.server.access import used_token_files
from headrace.net.server.access.used_token_files import GOOD_SECONDS, HEADER, NAMES, RECORD, UsedTokenFiles


@pytest.fixture
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as disk:
        yield disk


def token(number: int, expires: float | None = None) -> UsedToken:
    return UsedToken(time() + 300 if expires is None else expires, bytes(12), number.to_bytes(20))


def opened(tmp_path: Path, disk: ThreadPoolExecutor) -> UsedTokenFiles:
    files = UsedTokenFiles(tmp_path, disk, Counters())
    files.open()
    return files


async def test_files_are_made_when_there_is_something_to_write(
    tmp_path: Path, disk: ThreadPoolExecutor
) -> None:
    files = UsedTokenFiles(tmp_path / "data", disk, Counters())
    assert not (tmp_path / "data").exists()
    files.remember(token(1))
    files.close()
    again = opened(tmp_path / "data", disk)
    assert len(again.known) == 1
    again.close()


async def test_what_was_used_is_known_after_a_restart(tmp_path: Path, disk: ThreadPoolExecutor) -> None:
    first = opened(tmp_path, disk)
    used = [token(1), token(2)]
    for each in used:
        first.remember(each)
    first.close()
    again = opened(tmp_path, disk)
    assert (again.known, again.signed_after) == (used, 0.0)
    again.remember(token(3))
    again.close()
    last = opened(tmp_path, disk)
    assert [each.digest[-1] for each in last.known] == [1, 2, 3]
    last.close()
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in NAMES} == {0o600}


async def test_and_after_a_crash_that_cut_one_short(tmp_path: Path, disk: ThreadPoolExecutor) -> None:
    crashed = opened(tmp_path, disk)
    for number in (1, 2):
        crashed.remember(token(number))
    path = tmp_path / NAMES[0]
    os.truncate(path, path.stat().st_size - 1)
    again = opened(tmp_path, disk)
    assert [each.digest[-1] for each in again.known] == [1]
    again.remember(token(7))
    again.close()
    last = opened(tmp_path, disk)
    assert [each.digest[-1] for each in last.known] == [1, 7]
    last.close()
    crashed.close()


async def test_after_a_power_cut_older_tokens_are_refused(
    tmp_path: Path, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off = opened(tmp_path, disk)
    cut_off.remember(token(1))
    monkeypatch.setattr(used_token_files, "_boot_id", lambda: b"another".ljust(36))
    began = time()
    again = opened(tmp_path, disk)
    assert began <= again.signed_after <= time()
    again.close()
    cut_off._failed = True
    cut_off.close()


async def test_unless_all_that_could_be_missing_has_expired(
    tmp_path: Path, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off = opened(tmp_path, disk)
    monkeypatch.setattr(used_token_files, "_boot_id", lambda: b"another".ljust(36))
    for name in NAMES:
        os.utime(tmp_path / name, (0, time() - GOOD_SECONDS - 1))
    again = opened(tmp_path, disk)
    assert again.signed_after == 0.0
    again.close()
    cut_off._failed = True
    cut_off.close()


async def test_a_full_disk_locks_nobody_out_and_the_next_start_knows(
    tmp_path: Path, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path, disk)
    files.remember(token(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: 0)
        files.remember(token(2))
    files.remember(token(3))
    files.close()
    again = opened(tmp_path, disk)
    assert again.signed_after > 0
    again.close()


async def test_expired_ones_are_dropped_and_the_files_stay_small(
    tmp_path: Path, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path, disk)
    now = time()
    for turn in range(20):
        monkeypatch.setattr(used_token_files, "time", lambda turn=turn: now + turn * GOOD_SECONDS / 4)
        for _ in range(10):
            files.remember(token(turn, now + turn * GOOD_SECONDS / 4 + 300))
    sizes = [((tmp_path / name).stat().st_size - HEADER.size) // RECORD.size for name in NAMES]
    assert sum(sizes) <= 100
    files.close()
    again = opened(tmp_path, disk)
    assert {each.digest[-1] for each in again.known} >= {18, 19}
    assert all(each.expires >= now + 19 * GOOD_SECONDS / 4 for each in again.known)
    again.close()
