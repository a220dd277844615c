"""Filters: which rows a reader wants by topic, origin and attributes, decided for a whole record batch at a time.

- A **topic pattern** has ``*`` for any characters but ``/`` and ``**`` for any characters; the whole topic must match.
  A pattern is compiled to an automaton that reads each topic once, and what it may cost is bounded: one that is longer
  or has more wildcards than anybody needs is refused (:func:`check_topic_pattern`).
- An **origin** is one name or several.
- **Attribute predicates** are the SDK's (:mod:`headrace.wire.sdk.predicate`); all of them must hold. They look at the
  message's own attributes and numbers (:mod:`headrace.matching.row_filter`).

Columns are compared whole, never message by message in Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import LimitError
from headrace.message import Batch
from headrace.wire.sdk.predicate import Predicate

if TYPE_CHECKING:
    from headrace.matching.row_filter import RowFilter

Mask = npt.NDArray[np.bool_]

MAX_WILDCARDS: Final = 16
"""Wildcards that a topic pattern may have."""

MAX_SEARCHED: Final = 256
"""Characters that a topic pattern may have from its first wildcard on.

What stands before is compared once; the rest is searched for, by an automaton that has a state for each character. Past
some thousand states it no longer fits its memory, and is run so slowly that one long topic takes seconds.
"""

_SEEN: Final = 1000
"""Topics whose result a filter remembers."""

_SEEN_LENGTH: Final = 200
"""Longest topic that is remembered, in characters."""


class Filter:
    """A reader's conditions; :meth:`apply` selects the rows."""

    def __init__(
        self,
        topic: str | None = None,
        origins: Sequence[str] | None = None,
        where: Mapping[str, Predicate] | None = None,
    ) -> None:
        if topic is not None:
            check_topic_pattern(topic)
        self._topic = None if topic is None or topic == "**" else topic_pattern(topic)
        # Arrow's RE2 takes time linear in the topic's length, and the pattern's cost is bounded.
        self._literal = topic if topic is not None and "*" not in topic else None
        self._names = None if origins is None else frozenset(origins)
        self._origins = None if origins is None else pa.array(sorted(set(origins)), pa.string())
        self._where = dict(where or {})
        self._row_filter: RowFilter | None = None
        self._seen: dict[str, bool] = {}
        """Whether recent topics match the pattern."""

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
        if self._topic is not None and not self._is_topic(batch.topic):
            return False
        return None if self._where else True

    def mask(self, rows: pa.RecordBatch) -> Mask:
        """Which rows pass."""
        if self._origins is None:
            passing = np.ones(rows.num_rows, np.bool_)
        else:
            passing = _truth(pc.is_in(rows.column("origin"), value_set=self._origins))
        if self._topic is not None and passing.any():
            passing &= self._topics(rows.column("topic"))
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

    def _is_topic(self, topic: str) -> bool:
        if self._literal is not None:
            return topic == self._literal
        passes = self._seen.get(topic)
        if passes is None:
            passes = bool(self._topics(pa.array([topic], pa.string()))[0])
            if len(topic) <= _SEEN_LENGTH:
                if len(self._seen) >= _SEEN:
                    self._seen.clear()
                self._seen[topic] = passes
        return passes

    def _topics(self, topics: pa.Array) -> Mask:
        if self._literal is not None:
            return _truth(pc.equal(topics, self._literal))
        return _truth(pc.match_substring_regex(topics, self._topic))


def check_topic_pattern(pattern: str) -> None:
    """Refuse a topic pattern that would be costly to match.

    >>> check_topic_pattern("orders/*/**")
    >>> check_topic_pattern("a*" * 2048)
    Traceback (most recent call last):
    headrace.errors.LimitError: link: wildcards of a topic pattern 2048 is over the limit: 16
    """
    if (begin := pattern.find("*")) < 0:
        return
    wildcards = pattern.count("*") - pattern.count("**")
    if wildcards > MAX_WILDCARDS:
        raise LimitError("link", "wildcards of a topic pattern", wildcards, MAX_WILDCARDS)
    if len(pattern) - begin > MAX_SEARCHED:
        field = "length of a topic pattern from its first wildcard on"
        raise LimitError("link", field, len(pattern) - begin, MAX_SEARCHED)


def topic_pattern(pattern: str) -> str:
    r"""A topic pattern as a regular expression for the whole topic.

    >>> topic_pattern("a/*/c.**")
    '(?s)\\A(?:a/[^/]*/c\\..*)\\z'
    """
    words = {"**": ".*", "*": "[^/]*"}
    parts = re.split(r"(\*\*|\*)", pattern)
    body = "".join(words.get(part) or re.escape(part) for part in parts)
    return rf"(?s)\A(?:{body})\z"


def _truth(values: pa.Array) -> Mask:
    """A column of booleans as a mask; null is false."""
    mask: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    # Arrow's own memory is read-only.
    return mask if mask.flags.writeable else mask.copy()
