"""Comparing what comes again with the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import RefusedError
from headrace.hub.publishing.publisher_numbers import Span
from headrace.hub.publishing.same_rows import check_same
from headrace.log import Log
from headrace.message import Batch, Run


def test_a_place_past_the_end_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log", fsync="never")
    try:
        with pytest.raises(RefusedError, match="ends at message 0") as refused:
            check_same(log, Batch(Run.of([b"x"]), publisher="p", number=0), [Span(0, 1, 5)])
        assert refused.value.code == "unknown"
    finally:
        log.close()
