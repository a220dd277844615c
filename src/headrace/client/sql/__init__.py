"""SQL over a log, by DuckDB."""

from __future__ import annotations

from typing import Final

STATE_TABLES: Final = ("services", "consumers", "subscriptions")


def asks_for_state(query: str) -> bool:
    """Whether a query may be about the state's tables; the others do not exist for one that is not.

    >>> asks_for_state("SELECT * FROM Services"), asks_for_state("select * from query_table('serv' || 'ices')")
    (True, False)
    """
    words = query.lower()
    return any(table in words for table in STATE_TABLES)
