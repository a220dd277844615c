"""The tables ``[access.NAME]`` in a configuration file, changed as text, so that comments stay where they are.

Every change is checked before it is written: what the file says afterwards is what it said before, and the change.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.operate.keys.secret_files import replace_content
from headrace.errors import UsageError, system_reason


def principal_table(name: str, members: Mapping[str, str | Sequence[str]]) -> str:
    """Write a principal's table as TOML.

    >>> print(principal_table("gateway-7", {"client_id": "0123", "allow": ["read **"]}))
    [access.gateway-7]
    client_id = "0123"
    allow = ["read **"]
    """
    # Strings and arrays of strings are the same in JSON and TOML.
    lines = [f"{member} = {json.dumps(value, ensure_ascii=False)}" for member, value in members.items()]
    return "\n".join([f"[access.{name}]", *lines])


def append_table(path: Path, name: str, table: str) -> None:
    """Add a principal's table at the end of a configuration file."""
    text, before = _read(path)
    if name in before.get("access", {}):
        raise UsageError(f"{path} has access.{name} already")
    text = f"{text.rstrip()}\n\n{table}\n" if text.strip() else f"{table}\n"
    expected = {**before, "access": {**before.get("access", {}), **tomllib.loads(table)["access"]}}
    _write(path, text, expected, f"access.{name}")


def remove_table(path: Path, name: str) -> bool:
    """Remove a principal's table from a configuration file; return whether it had one."""
    text, before = _read(path)
    if name not in before.get("access", {}):
        return False
    header = rf"""\[\s*access\s*\.\s*(?:{name}|"{name}"|'{name}')\s*\]"""
    found = re.search(rf"(?m)^[ \t]*{header}[^\n]*(?:\n(?![ \t]*\[)[^\n]*)*\n?", text)
    expected = {**before, "access": {each: what for each, what in before["access"].items() if each != name}}
    changed = text if found is None else text[: found.start()] + text[found.end() :]
    _write(path, changed, expected, f"access.{name}")
    return True


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_bytes().decode()
        return text, tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{path} is no TOML in UTF-8: {error}") from None


def _write(path: Path, text: str, expected: dict[str, Any], key: str) -> None:
    try:
        found: dict[str, Any] | None = tomllib.loads(text)
    except ValueError:
        found = None
    if found is None or _without_empty(found) != _without_empty(expected):
        raise UsageError(f"{path}: {key} is not written as a table of its own: change it by hand")
    replace_content(path, text)


def _without_empty(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "access" or value}
