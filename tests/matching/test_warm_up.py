"""Having the kernels at hand: what is known of them without loading them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.matching import warm_up


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of kernels that nobody has loaded."""
    (tmp_path / "kernels_of_a_test.py").write_text("")
    (tmp_path / "__pycache__").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(warm_up, "_KERNELS", "kernels_of_a_test")
    return tmp_path


def test_without_a_cache_it_is_cold(package: Path) -> None:
    assert warm_up.is_cold()
    assert "kernels_of_a_test" not in sys.modules


def test_with_one_it_is_not_unless_the_source_is_newer(package: Path) -> None:
    cached = package / "__pycache__" / "kernels_of_a_test.match-1.py311.nbi"
    cached.touch()
    assert not warm_up.is_cold()
    os.utime(cached, (1, 1))
    assert warm_up.is_cold()


def test_what_is_loaded_is_not_cold(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "is_loaded", lambda name: name == "kernels_of_a_test")
    assert not warm_up.is_cold()


def test_what_was_warmed_is_not_cold() -> None:
    warm_up.warm()
    assert not warm_up.is_cold()


def test_caches_older_than_any_source_are_removed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_PACKAGE", package)
    monkeypatch.setattr(warm_up, "_SOURCES", ("kernels_of_a_test.py", "called.py", "ahead.py"))
    for name in ("called.py", "ahead.py"):
        (package / name).write_text("")
    os.utime(package / "kernels_of_a_test.py", (1, 1))
    os.utime(package / "called.py", (5, 5))
    os.utime(package / "ahead.py", (1 << 40, 1 << 40))
    caches = [package / "__pycache__" / f"kernels_of_a_test.{name}-1.py311.nbi" for name in ("old", "new")]
    for cache, when in zip(caches, (4, 6), strict=True):
        cache.touch()
        os.utime(cache, (when, when))
    warm_up.remove_stale_caches()
    assert [cache.exists() for cache in caches] == [False, True]
    assert not warm_up.is_cold()
