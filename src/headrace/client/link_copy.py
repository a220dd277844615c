"""A hub's log as a copy of a history, to be compared with others (:mod:`headrace.log.proof.comparison`)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pyarrow as pa

from headrace.client.sync import SyncLinkClient
from headrace.log.proof.chain import Chain


class HubCopy:
    """A hub's log, over the link."""

    def __init__(self, name: str, link: SyncLinkClient) -> None:
        extent = link.head()
        self.name = name
        self.at_hand = False
        self.log, self.first, self.head = UUID(extent.log), extent.first, extent.head
        self._link = link

    def recorded(self) -> Chain:
        """Return the digests that the hub reports."""
        chain: Chain = self._link.chain()
        self.head = chain.through
        return chain

    def rows(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield messages as record batches."""
        with self._link.read(first, last) as stream:
            yield from stream
