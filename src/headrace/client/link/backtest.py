"""Backtests: what a subscription would have delivered, by the matcher's own engine over messages of the log."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

import numpy as np
import pyarrow as pa

from headrace.matching import Matcher
from headrace.matching.matches import CLIENT_BYTES
from headrace.wire.sdk.predicate import Alternatives


def matcher_of(wanted: Alternatives, *, json_attributes: bool) -> Matcher:
    """Make a matcher of one subscription: each of its alternatives is a client."""
    matcher = Matcher(json_attributes=json_attributes)
    for place, predicates in enumerate(wanted):
        matcher.subscribe(place.to_bytes(CLIENT_BYTES), predicates)
    return matcher


async def matching_rows(
    batches: AsyncIterable[pa.RecordBatch], wanted: Alternatives, *, json_attributes: bool
) -> AsyncIterator[pa.RecordBatch]:
    """Yield the messages of record batches that satisfy a subscription; batches without any are left out."""
    matcher = matcher_of(wanted, json_attributes=json_attributes)
    async for rows in batches:
        found = np.diff(matcher.match_rows(rows).offsets) > 0
        if found.any():
            yield rows.filter(pa.array(found))
