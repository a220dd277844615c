"""Reports: what programs beside the hub say of themselves, for its status.

They are not messages: they have no number, are in no log and move nothing. A report is replaced by the next of the same
name, and forgotten with the process. That is what keeps a pipeline that reports each second from being its own traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.errors import LimitError, MalformedError

MAX_REPORTS: Final = 16
MAX_BYTES: Final = 64 << 10
"""Of one report as JSON: a status must stay a small answer."""


class Reports:
    """The newest report of each name."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def take(self, name: str, facts: Mapping[str, Any], now: float) -> None:
        """Keep a report that came at ``now``."""
        if name not in self._newest and len(self._newest) >= MAX_REPORTS:
            raise LimitError("link", "reports", len(self._newest) + 1, MAX_REPORTS)
        try:
            content = msgspec.json.encode(facts)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise MalformedError("link", "facts", facts, "a map that JSON can say") from None
        if len(content) > MAX_BYTES:
            raise LimitError("link", "facts", len(content), MAX_BYTES)
        self._newest[name] = (now, msgspec.json.decode(content))

    def facts(self, now: float) -> dict[str, object]:
        """Every report, each with its ``age`` in seconds."""
        return {name: {**facts, "age": round(now - then, 3)} for name, (then, facts) in self._newest.items()}
