from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.log.content import restore
from tests.log.written import Written, write


@pytest.fixture(scope="session", params=["messages", "mixed"])
def original(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Written:
    return write(tmp_path_factory.mktemp("original"), mixed=request.param == "mixed")


@pytest.fixture
def written(tmp_path: Path, original: Written) -> Written:
    """A log of one's own to damage."""
    restore(tmp_path, original.content)
    return replace(original, directory=tmp_path)
