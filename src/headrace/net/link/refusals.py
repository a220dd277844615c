"""Refusals, as a client of the link gets them: a code, a sentence and facts."""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import (
    ArchiveError,
    ClosedError,
    DamagedError,
    HeadraceError,
    LimitError,
    RefusedError,
    StorageError,
    TrimmedError,
    UnavailableError,
    UsageError,
    WireError,
)

_MAX_REASON: Final = 1000


class ExplainedError(RefusedError):
    """A refusal with further members that programs can use."""

    def __init__(self, code: str, reason: str, **facts: Any) -> None:
        super().__init__(code, reason)
        self.facts = facts


def refusal_of(request_id: int, error: HeadraceError) -> dict[str, Any]:
    """Return the head of the answer that reports an error."""
    head: dict[str, Any] = {"id": request_id, "error": "storage", "reason": str(error)[:_MAX_REASON]}
    match error:
        case RefusedError(code=code, reason=reason):
            head |= {"error": code, "reason": reason[:_MAX_REASON]}
            if isinstance(error, ExplainedError):
                head |= error.facts
        case LimitError(limit=limit):
            head |= {"error": "limit", "limit": limit}
        case WireError(field=field):
            head |= {"error": "malformed", "field": field}
        case TrimmedError():
            head |= {"error": "trimmed", "first": error.first, "last": error.last, "oldest": error.oldest}
        case DamagedError():
            head |= {"error": "damaged", "first": error.first, "last": error.last}
        case ArchiveError():
            head |= {"error": "archive", "first": error.first, "last": error.last}
        case UnavailableError():
            head["error"] = "unavailable"
        case StorageError():
            pass
        case UsageError() if not isinstance(error, ClosedError):
            head["error"] = "malformed"
        case _:
            head["error"] = "stopping"
    return head
