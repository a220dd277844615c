"""Libraries that stand between a process and the C library, as ``LD_PRELOAD`` has it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def compiled(source: Path) -> Path:
    """Compile a library, once per version of it; a test on a machine without a compiler is skipped and says so."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"there is no C compiler here, which {source.name} needs")
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    made = Path(tempfile.gettempdir(), f"headrace-{source.stem}-{os.getuid()}-{version}.so")
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as directory:
            making = Path(directory, made.name)
            words = [compiler, "-O1", "-shared", "-fPIC", "-o", making, source, "-ldl", "-lpthread"]
            subprocess.run(words, check=True, timeout=60)
            making.rename(made)
    return made
