"""Files with secrets: made whole, never over another one, and for their owner's eyes only."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import UsageError, system_reason


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter; one that is there stays as it is."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}") from None


def write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that must not be there yet."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(file)
    except FileExistsError:
        raise UsageError(
            f"{path} is there already: it is not replaced; revoke it, or choose another name"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}") from None


def replace_content(path: Path, content: str) -> None:
    """Replace a file's content at once; it keeps its mode."""
    making = path.with_name(path.name + ".making")
    try:
        mode = path.stat().st_mode & 0o777
        making.unlink(missing_ok=True)
        write_new(making, content.encode(), mode)
        making.chmod(mode)
        making.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}") from None
