"""Filters: which rows a reader wants by topic, origin and attributes, decided for a whole record batch at a time.

- **Topics** are judged by a :class:`~headrace.hub.topic_test.TopicTest`: the pattern asked for, and what the reader may
  read.
- An **origin** is one name or several.
- **Attribute predicates** are the SDK's (:mod:`headrace.wire.sdk.predicate`); all of them must hold. They look at the
  message's own attributes and numbers (:mod:`headrace.matching.row_filter`).

Columns are compared as a whole, never message by message in Python. Filters that choose the same rows are equal, so
that readers with equal requests share the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.hub.topic_test import Mask, TopicTest, truth
from headrace.message import Batch
from headrace.wire.sdk.predicate import Predicate, weight

if TYPE_CHECKING:
    from headrace.matching.row_filter import RowFilter


class Filter:
    """A reader's conditions; :meth:`apply` selects the rows.

    ``text`` must occur in the payload, in upper or lower case.

    ``readable`` are patterns of the topics that the reader may read, by default every topic; it may not read those that
    match ``denied``.
    """

    def __init__(
        self,
        topic: str | None = None,
        origins: Sequence[str] | None = None,
        where: Mapping[str, Predicate] | None = None,
        *,
        text: str = "",
        readable: Collection[str] | None = None,
        denied: Collection[str] = (),
    ) -> None:
        self.topics = TopicTest(topic, readable, denied)
        self._names = None if origins is None else frozenset(origins)
        self._origins = None if origins is None else pa.array(sorted(set(origins)), pa.string())
        self._where = dict(where or {})
        self._row_filter: RowFilter | None = None
        self._text = text
        self._key = (self.topics, self._names, frozenset(self._where.items()), text)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @property
    def cost(self) -> int:
        """Approximate cost of applying it: one, and one more for each wildcard, predicate and vertex of a polygon."""
        return 1 + self.topics.wildcards + len(self._where) + weight(self._where)

    @property
    def compiled(self) -> bool:
        """Whether :meth:`apply` is quick enough for an event loop: the first look at attributes loads kernels."""
        return not self._where or self._row_filter is not None

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass, in their order; the same object if all do."""
        mask = self.mask(rows)
        return rows if mask.all() else rows.filter(pa.array(mask))

    def passes(self, batch: Batch) -> bool | None:
        """Whether all messages of a batch pass, or none; ``None`` if each has to be checked.

        This is quick for messages that come one by one, for which making rows would take longer.
        """
        names = () if batch.columns is None else batch.columns.schema.names
        if "origin" in names or "topic" in names:
            return None
        if self._names is not None and batch.origin not in self._names:
            return False
        if not (self.topics.everything or self.topics.allows(batch.topic)):
            return False
        return None if self._where or self._text else True

    def mask(self, rows: pa.RecordBatch) -> Mask:
        """Which rows pass."""
        if self._origins is None:
            passing = np.ones(rows.num_rows, np.bool_)
        else:
            passing = truth(pc.is_in(rows.column("origin"), value_set=self._origins))
        if not self.topics.everything and passing.any():
            passing &= self.topics.mask(rows.column("topic"))
        if self._text and passing.any():
            passing &= truth(pc.match_substring(rows.column("payload"), self._text, ignore_case=True))
        if self._where and passing.any():
            for mask in self._attributes().masks(rows):
                passing &= mask
                if not passing.any():
                    break
        return passing

    def _attributes(self) -> RowFilter:
        if self._row_filter is None:
            # Numba is loaded only where attributes are asked for.
            from headrace.matching.row_filter import RowFilter

            self._row_filter = RowFilter(self._where)
        return self._row_filter
