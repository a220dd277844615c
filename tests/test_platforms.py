"""What platforms lack: Headrace is imported without it, and a hub runs without what only Linux has.

A platform is simulated in a process of its own: ``LACKING`` removes what it does not have before Headrace is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from time import monotonic, sleep

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 60

WINDOWS = """
import builtins
import asyncio, multiprocessing, socket, subprocess, tempfile  # Python's own need what their platform has.

usual, lacking = builtins.__import__, {"uvloop", "fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "readline"}

def without(name, globals=None, *more):
    if name in lacking and str((globals or {}).get("__name__", "")).startswith("headrace"):
        raise ImportError(f"this platform has no {name}")
    return usual(name, globals, *more)

builtins.__import__ = without
"""

MACOS = """
import os, select, socket, sys
sys.modules["uvloop"] = None
for module, names in {
    os: "fdatasync posix_fallocate sched_getaffinity posix_fadvise sched_setaffinity copy_file_range eventfd",
    socket: "TCP_KEEPIDLE TCP_QUICKACK TCP_USER_TIMEOUT SO_BINDTODEVICE SOL_UDP AF_NETLINK AF_VSOCK",
    select: "epoll",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""


def test_everything_is_imported_without_what_a_platform_lacks() -> None:
    program = f"""
{WINDOWS}
import importlib, pkgutil, signal
del signal.SIGHUP, signal.SIGKILL
import headrace
for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in headrace.__all__:
    getattr(headrace, name)
print("imported", len([name for name in __import__("sys").modules if name.startswith("headrace.")]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS * 2, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 400


def test_a_hub_runs_on_asyncio_without_what_only_linux_has(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    start = f"{MACOS}\nfrom headrace.cli import main\nsys.argv = ['headrace', 'serve', *sys.argv[1:]]\nmain()"
    sets = [f"--set=listen.{door}=127.0.0.1:0" for door in ("fyrehose", "spp", "sdk", "publisher", "http")]
    sets += [f"--set=listen.{door}=off" for door in ("parcel", "router", "dispatcher", "status", "tube_ws")]
    sets += ["--set=listen.tube_tcp=127.0.0.1:0", "--set=log.fsync=always"]
    with (tmp_path / "said").open("wb") as said:
        command = [sys.executable, "-c", start, "--data", str(tmp_path / "data"), "--ready-file", str(ready)]
        hub = subprocess.Popen([*command, *sets], stderr=said)
    try:
        deadline = monotonic() + SECONDS
        while not ready.exists():
            assert hub.poll() is None, (tmp_path / "said").read_text()
            assert monotonic() < deadline
            sleep(0.05)
        doors = json.loads(ready.read_text())
        use = f"""
{MACOS}
import headrace
from headrace import where

with headrace.connect_sync("tube://{doors["tube_tcp"]}") as link:
    print(link.publish([b"one", b"two"], topic="t"))
for scheme in ("fyrehose", "fyrehose+udp"):
    with headrace.connect_sync(scheme + "://{doors["fyrehose"]}", from_seq=1) as backbone:
        print([next(backbone).payload for _ in range(2)])
with headrace.connect_sync("sdk://{doors["sdk"]}") as client:
    client.subscribe(where(city="Praha"))
    with headrace.connect_sync("publisher://{doors["publisher"]}") as publisher:
        publisher.publish(b"for us", attributes={{"city": "Praha"}})
    print(next(client).payload)
"""
        done = subprocess.run(
            [sys.executable, "-c", use], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.splitlines() == [
            "Acknowledged(first=1, last=2)",
            *["[b'one', b'two']"] * 2,
            "b'for us'",
        ]
        hub.terminate()
        assert hub.wait(SECONDS) == 0, (tmp_path / "said").read_text()
    finally:
        hub.kill()
        hub.wait()


@pytest.mark.slow
def test_the_wheel_installs_and_runs_in_a_clean_environment(tmp_path: Path) -> None:
    """The dependencies are this environment's, so that nothing is fetched; Headrace is the wheel alone."""
    made = _made_wheel(tmp_path)
    with zipfile.ZipFile(made) as wheel:
        names = set(wheel.namelist())
        assert {"headrace/py.typed", "headrace/web/dashboard/index.html"} <= names
        assert not any(name.startswith(("tests/", "src/")) for name in names)
    clean = tmp_path / "clean"
    venv.create(clean, symlinks=True)
    python = clean / "bin" / "python"
    packages = next((clean / "lib").glob("python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(made)], check=True)
    ours = {"headrace", "pyspark_headrace", "pyspark", "py4j", "duckdb", "uvloop"}
    for entry in Path(next(path for path in sys.path if path.endswith("site-packages"))).iterdir():
        name = entry.name.partition("-")[0].partition(".")[0]
        if (
            name not in ours
            and not entry.name.startswith("_editable")
            and not (packages / entry.name).exists()
        ):
            (packages / entry.name).symlink_to(entry)
    command = clean / "bin" / "headrace"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=SECONDS,
            check=False,
        )

    where = subprocess.run(
        [python, "-c", "import headrace; print(headrace.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert where.stdout.startswith(str(clean))
    assert said("--version").returncode == 0
    sql = said("sql", "select 1")
    assert sql.returncode
    assert "headrace[sql]" in sql.stderr or ".[sql]" in sql.stderr
    _up_says_what_to_install(command, tmp_path, environment)


def _made_wheel(folder: Path) -> Path:
    """Build the wheel as pip would, with what pyproject.toml names."""
    build = (
        "from hatchling.builders.wheel import WheelBuilder; import sys;"
        " print(next(WheelBuilder(sys.argv[1]).build(directory=sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", build, str(ROOT), str(folder)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1])


def _up_says_what_to_install(command: Path, folder: Path, environment: dict[str, str]) -> None:
    sets = [f"--set=listen.{door}=127.0.0.1:0" for door in ("fyrehose", "spp", "tube_tcp", "http", "sdk")]
    said = folder / "up.log"
    with said.open("wb") as output:
        up = subprocess.Popen([command, "up", *sets], stderr=output, cwd=folder, env=environment)
    try:
        deadline = monotonic() + SECONDS
        while not ("Spark" in said.read_text() and "pip install" in said.read_text()):
            assert up.poll() is None, said.read_text()
            assert monotonic() < deadline, said.read_text()
            sleep(0.1)
        up.terminate()
        assert up.wait(SECONDS) == 0, said.read_text()
    finally:
        up.kill()
        up.wait()
