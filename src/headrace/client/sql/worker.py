"""One query of the dashboard, in a process of its own: ``python -m headrace.client.sql.worker``, with stdin.

A query is somebody's program, so it gets little: memory, rows, cells and a low priority; whoever started the process
ends it after a while. It reads the log's files, opens nothing else, and answers in JSON on stdout.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import HeadraceError

ROWS: Final = 1000
"""Rows of an answer."""
CELL: Final = 1000
"""Maximum characters of a value."""
MEMORY: Final = 256 << 20
"""Bytes that DuckDB takes for a query."""
BESIDE: Final = 256 << 20
"""Bytes that Python and Arrow take for it besides."""
_NICE: Final = 10
_LIFE: Final = 60
"""Seconds after which the process ends by itself: a hub that was killed ends no query."""


class Question(msgspec.Struct, frozen=True):
    """The query, and the log to run it on."""

    query: str
    log: str
    head: int
    """The last message that counts: the hub's head."""
    as_of: int | None = None


def main() -> None:
    """Answer the question on stdin."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(_answer(question), enc_hook=str))
    sys.stdout.buffer.flush()


def _answer(question: Question) -> dict[str, Any]:
    from headrace.client.sql.query import load_duckdb, plain, query_files

    load_duckdb()
    _be_modest()
    try:
        found = query_files(
            question.query,
            Path(question.log),
            question.as_of,
            committed=question.head,
            rows=ROWS + 1,
            memory_limit=f"{MEMORY}B",
            threads="1",
            max_temp_directory_size="0B",
        )
    except (HeadraceError, MemoryError) as error:
        return {"error": str(error) or "the query takes too much memory"}
    about = {key.decode(): value.decode() for key, value in found.schema.metadata.items()}
    return {
        "log": about["headrace.log"],
        "head": int(about["headrace.head"]),
        "columns": [{"name": field.name, "type": str(field.type)} for field in found.schema],
        # Not by name: two columns may have the same.
        "rows": [
            [_shown(plain(column[place])) for column in found.columns]
            for place in range(min(found.num_rows, ROWS))
        ],
        "more": found.num_rows > ROWS,
    }


def _shown(value: object) -> object:
    """Return a value as JSON has it, cut to what a person reads."""
    match value:
        case None | bool():
            return value
        case int() if abs(value) < 1 << 53:
            return value
        case float() if value == value and abs(value) != float("inf"):
            return value
        case bytes():
            text = value[: 4 * CELL].decode(errors="replace")
        case _:
            text = str(value)
    return text if len(text) <= CELL else text[:CELL] + "…"


def _be_modest() -> None:
    with contextlib.suppress(AttributeError):
        signal.alarm(_LIFE)
    with contextlib.suppress(AttributeError, OSError):
        os.nice(_NICE)
    with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        # Not of the address space: a log's files are mapped, however large.
        [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line]
        most = int(line.split()[1]) * 1024 + MEMORY + BESIDE
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    main()
