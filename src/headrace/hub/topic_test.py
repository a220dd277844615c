"""Topic tests: which topics a reader gets.

A **topic pattern** has ``*`` for any characters but ``/`` and ``**`` for any characters; the whole topic must match. A
pattern is compiled to an automaton that reads each topic once. Its cost is bounded: a pattern that is longer or has
more wildcards than anybody needs is refused (:func:`check_topic_pattern`).

A :class:`TopicTest` is the one place where a reader's topics are judged: for messages of the log, live commits,
searches and the log's index of topics. A reader gets the messages that it asks for and may read. So a right to read is
one more condition here, and holds wherever a reader's filter does.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import LimitError

Mask = npt.NDArray[np.bool_]

MAX_WILDCARDS: Final = 16
"""Most wildcards that a topic pattern may have."""

MAX_SEARCHED: Final = 256
"""Most characters that a topic pattern may have from its first wildcard on.

The text before the first wildcard is compared once; an automaton with a state for each character searches for the rest.
With more than some thousand states it does not fit its memory, and is so slow that one long topic takes seconds.
"""

_SEEN: Final = 1000
"""Most topics whose result a test remembers."""

_SEEN_LENGTH: Final = 200
"""Longest topic that is remembered, in characters."""


class TopicTest:
    """The topics that match the pattern ``asked`` for and one of the ``readable`` patterns; ``None`` is any topic.

    ``readable`` is for what a reader's principal may read, and ``denied`` for exceptions from that. Equal tests choose
    equal topics.

    >>> test = TopicTest("orders/*", readable=["orders/eu", "stock/**"])
    >>> [test.allows(topic) for topic in ("orders/eu", "orders/us", "stock/eu")]
    [True, False, False]
    """

    __slots__ = ("_conditions", "_denied", "_seen", "key", "names")

    def __init__(
        self,
        asked: str | None = None,
        readable: Collection[str] | None = None,
        denied: Collection[str] = (),
    ) -> None:
        if asked is not None:
            check_topic_pattern(asked)
        self.key: Final = (
            asked,
            None if readable is None else tuple(sorted(set(readable))),
            tuple(sorted(set(denied))),
        )
        """The test's arguments: tests with equal keys are equal."""
        conditions = [
            _Condition(patterns)
            for patterns in (None if asked is None else [asked], readable)
            if patterns is not None and "**" not in patterns
        ]
        # Exact topics come first, since they leave little for the patterns.
        self._conditions = sorted(conditions, key=lambda condition: condition.expression is not None)
        self._denied = _Condition(denied) if denied else None
        self._seen: dict[str, bool] = {}
        self.names: frozenset[str] | None = self._exact_names()
        """The topics that the test allows if they are few and known, else ``None``."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicTest) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def everything(self) -> bool:
        """Whether every topic is allowed."""
        return not self._conditions and self._denied is None

    @property
    def wildcards(self) -> int:
        """The number of wildcards in the pattern asked for."""
        asked = self.key[0] or ""
        return asked.count("*") - asked.count("**")

    def allows(self, topic: str) -> bool:
        """Whether one topic is allowed."""
        if self.names is not None:
            return topic in self.names
        allowed = self._seen.get(topic)
        if allowed is None:
            allowed = bool(self.mask(pa.array([topic], pa.string()))[0])
            if len(topic) <= _SEEN_LENGTH:
                if len(self._seen) >= _SEEN:
                    self._seen.clear()
                self._seen[topic] = allowed
        return allowed

    def knows(self, topic: str) -> bool:
        """Return whether :meth:`allows` need not match a pattern, which takes a hundred times as long."""
        return self.names is not None or self.everything or topic in self._seen

    def mask(self, topics: pa.Array) -> Mask:
        """Return for each topic whether it is allowed."""
        passing = self._conditions[0].mask(topics) if self._conditions else np.ones(len(topics), np.bool_)
        for condition in self._conditions[1:]:
            if not passing.any():
                break
            passing &= condition.mask(topics)
        if self._denied is not None and passing.any():
            passing &= ~self._denied.mask(topics)
        return passing

    def _exact_names(self) -> frozenset[str] | None:
        if not self._conditions or self._conditions[0].expression is not None:
            return None
        names = self._conditions[0].names
        if not names:
            return frozenset()
        passing = self.mask(pa.array(names, pa.string()))
        return frozenset(name for name, allowed in zip(names, passing.tolist(), strict=True) if allowed)


class _Condition:
    """Patterns, one of which a topic must match."""

    __slots__ = ("expression", "names")

    def __init__(self, patterns: Collection[str]) -> None:
        exact = sorted({pattern for pattern in patterns if "*" not in pattern})
        others = sorted({pattern for pattern in patterns if "*" in pattern})
        self.names: list[str] = exact
        self.expression = topic_pattern(*exact, *others) if others else None

    def mask(self, topics: pa.Array) -> Mask:
        # Arrow's RE2 takes time linear in the topic's length, and the pattern's cost is bounded.
        if self.expression is not None:
            return truth(pc.match_substring_regex(topics, self.expression))
        if len(self.names) == 1:
            return truth(pc.equal(topics, self.names[0]))
        return truth(pc.is_in(topics, value_set=pa.array(self.names, pa.string())))


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


def topic_pattern(*patterns: str) -> str:
    r"""Topic patterns as a regular expression for the whole topic, which must match one of them.

    >>> topic_pattern("a/*/c.**")
    '(?s)\\A(?:a/[^/]*/c\\..*)\\z'
    >>> topic_pattern("a", "b/*")
    '(?s)\\A(?:a|b/[^/]*)\\z'
    """
    words = {"**": ".*", "*": "[^/]*"}
    bodies = (
        "".join(words.get(part) or re.escape(part) for part in re.split(r"(\*\*|\*)", pattern))
        for pattern in patterns
    )
    return rf"(?s)\A(?:{'|'.join(bodies)})\z"


def truth(values: pa.Array) -> Mask:
    """A column of booleans as a mask; null is false."""
    mask: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    # Arrow's own memory is read-only.
    return mask if mask.flags.writeable else mask.copy()
