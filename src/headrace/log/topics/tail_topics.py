"""The topics of a tail's frames, in memory: a reader of few topics skips the frames of others.

Topics are numbered as they come. A frame whose messages share one topic has that topic's number; one with several has a
number for that set. A frame is :data:`UNKNOWN` if it is from before a restart or its messages differ, until somebody
reads it, and if there is no room for its topics. An unknown frame is read, and judged by its rows.

One thread appends, any thread reads. Numbers are given under a lock, and never change.
"""

from __future__ import annotations

import threading
from array import array
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.topics.segment_topics import TopicChoice
from headrace.message import Batch

UNKNOWN: Final = 0
"""The number of a frame whose topics are not known."""

MAX_NUMBERS: Final = 1 << 16
MAX_TEXT: Final = 4 << 20
"""Limits of a tail's numbers and of the bytes of their topics: some MiB of memory."""

_MOST_TOGETHER: Final = 64
"""Most topics of one frame that are worth a number."""

_BESIDE: Final = 16
"""Bytes that a topic takes besides its characters."""

_CHOICES: Final = 32
"""Readers' choices whose results are cached."""

Numbers = npt.NDArray[np.int64]


class TailTopics:
    """The numbered topics of one tail."""

    __slots__ = ("_chosen", "_giving", "_sets", "_text", "numbers")

    def __init__(self) -> None:
        self._sets: list[tuple[str, ...]] = [()]
        """The topics that each number stands for."""
        self.numbers: dict[str | tuple[str, ...], int] = {}
        """The numbers given so far; 0 is not among them."""
        self._text = 0
        self._chosen: dict[TopicChoice, npt.NDArray[np.bool_]] = {}
        """For each choice, whether it may want frames with each number, as far as computed."""
        self._giving = threading.Lock()

    def number(self, topic: str) -> int:
        """Return the number of a topic, or :data:`UNKNOWN` if there is no room for it."""
        found = self.numbers.get(topic)
        return self._give(topic, (topic,)) if found is None else found

    def learn(self, batch: Batch) -> int:
        """Return the number of a batch's topics, or :data:`UNKNOWN` if there are too many."""
        topic = shared_topic(batch)
        if topic is not None or batch.columns is None:
            return self.number(topic or "")
        distinct = batch.columns.column("topic").unique()
        if len(distinct) > _MOST_TOGETHER:
            return UNKNOWN
        topics = tuple(sorted(distinct.to_pylist()))
        if len(topics) == 1:
            return self.number(topics[0])
        found = self.numbers.get(topics)
        return self._give(topics, topics) if found is None else found

    def chosen(self, choice: TopicChoice, numbers: array[int]) -> Numbers:
        """Return the places of frames that a choice may want; ``numbers`` are the frames' numbers."""
        wanted = self._wanted(choice)
        return np.flatnonzero(wanted[np.frombuffer(numbers, np.uint32)])

    def _wanted(self, choice: TopicChoice) -> npt.NDArray[np.bool_]:
        """For each number given so far, whether a choice may want frames with it."""
        before = self._chosen.get(choice)
        count = len(self._sets)
        begin = 0 if before is None else len(before)
        if before is not None and begin == count:
            return before
        sets = self._sets[begin:count]
        counts = np.array([len(topics) for topics in sets])
        topics = [topic for topics in sets for topic in topics]
        passing = np.concatenate([[0], np.cumsum(choice.mask(pa.array(topics, pa.string())))])
        ends = np.cumsum(counts)
        fresh = passing[ends] > passing[ends - counts]
        if not begin:
            fresh[UNKNOWN] = True
        found = fresh if before is None else np.concatenate([before, fresh])
        if len(self._chosen) >= _CHOICES:
            self._chosen.clear()
        self._chosen[choice] = found
        return found

    def _give(self, key: str | tuple[str, ...], topics: tuple[str, ...]) -> int:
        with self._giving:
            number = self.numbers.get(key)
            if number is not None:
                return number
            size = sum(len(topic) + _BESIDE for topic in topics)
            number = len(self._sets)
            if number >= MAX_NUMBERS or self._text + size > MAX_TEXT:
                return UNKNOWN
            self._text += size
            self._sets.append(topics)
            self.numbers[key] = number
            return number


def shared_topic(batch: Batch) -> str | None:
    """The topic that all messages of a batch have; ``None`` if they have their own."""
    columns = batch.columns
    return batch.topic if columns is None or "topic" not in columns.schema.names else None
