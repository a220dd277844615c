"""The readers of an archive that the page of the pipeline shows read an archive."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.archive.tables import add, ledger, rows

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_readers_of_the_page_see_every_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writing = ledger("delta", tmp_path)
    add(writing, rows(1, 600))
    add(writing, rows(601, 1000))
    [shown] = re.findall(r'```python title="Readers of /srv/archive"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    exec(shown.replace("/srv/archive", str(tmp_path)), {})
    printed = capsys.readouterr().out
    assert printed.startswith("1000\n")
    # Five topics of two hundred messages each, by DuckDB and by polars.
    assert len(re.findall(r"t[0-4]\s*[│┆]\s*200", printed)) == 10
