"""One stream: a topic with a content type, an end and an age.

The messages of a stream are those of its topic, after the message at which it was created. A **fork** has those of its
source up to some place, and then its own; nothing is copied. An append over HTTP is a message; an entry after it keeps
what the protocol needs to remember: the producer's number, the writer's sequence, whether it was the last.

Appends that depend on earlier appends may arrive at two nodes at once. Each node judges its own by the appends that it
knows, and marks it as the next after those (:func:`mark_of`). The hub that numbers messages takes the first; the other
node judges again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from headrace.message import MAX_SEQUENCE
from headrace.protocols import HUBS_OWN_NAMES

MAX_PRODUCERS: Final = 1024
"""Most producers of one stream. These limits are not settings, since the state must depend on the log alone."""

MAX_INHERITED: Final = 64
"""Most ranges of other topics that a fork of forks may have: each is kept with the fork, and read one by one."""

MAX_TEXT: Final = 255
"""Most characters of a content type, of a producer's id and of a writer's sequence."""

MAX_SAFE: Final = (1 << 53) - 1
"""The largest number that every client of the protocol can hold."""

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Micros = Annotated[int, Meta(ge=0, le=1 << 62)]
Count = Annotated[int, Meta(ge=0, le=MAX_SAFE)]
Seq = Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)]


class Range(NamedTuple):
    """Messages of a topic: those after ``after``, up to ``upto``."""

    topic: str
    after: int
    upto: int


class ForkOrigin(msgspec.Struct, frozen=True, array_like=True):
    """The place where a fork leaves its source, as requested."""

    topic: str
    upto: Seq
    part: Count = 0
    """Bytes, or JSON values, of the message after ``upto`` that the fork has, too."""


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream's configuration; creating the stream again with the same configuration is not an error."""

    content_type: Text
    ttl: Count | None = None
    """Seconds without a read or an append after which it expires."""
    expires: Micros | None = None
    """Time at which it expires in any case, in µs since 1970."""
    closed: bool = False
    """Whether it has only its first content; an append right after it closes the stream."""
    fork: ForkOrigin | None = None

    @property
    def media_type(self) -> str:
        """The content type without its parameters."""
        return media_type(self.content_type)

    @property
    def is_json(self) -> bool:
        """Whether the stream is a sequence of JSON values."""
        return self.media_type == "application/json"

    def agrees(self, other: Shape) -> bool:
        """Return whether ``other`` is the same configuration."""
        mine, theirs = (msgspec.structs.replace(each, content_type=each.media_type) for each in (self, other))
        return mine == theirs


class Producer(NamedTuple):
    """The newest append of one producer."""

    epoch: int
    seq: int


class ProducerAppend(msgspec.Struct, frozen=True, array_like=True):
    """A producer's own number of an append."""

    id: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    epoch: Count
    seq: Count


class Stream(msgspec.Struct):
    """One stream, as the state keeps it."""

    topic: str
    id: int
    """The log's position of the entry that created it: no other stream ever has the same."""
    shape: Shape
    start: int
    """Its own messages come after this one."""
    tail: int
    """Its newest message, or where it started."""
    touched: int
    """Time of the last read or append that extended its life, in µs."""
    closed: bool = False
    closer: ProducerAppend | None = None
    """The producer's append that closed it."""
    writer: str | None = None
    """The newest sequence of its writers."""
    producers: dict[str, Producer] = {}
    inherited: list[Range] = []
    source: int = 0
    """The id of the stream that it was forked from."""
    forks: int = 0
    deleted: bool = False
    """Whether it is only kept for its forks."""

    def is_expired(self, now: int) -> bool:
        """Return whether the stream has expired."""
        shape = self.shape
        if shape.expires is not None and now >= shape.expires:
            return True
        return shape.ttl is not None and now >= self.touched + shape.ttl * 1_000_000

    def ranges(self) -> list[Range]:
        """Return where its messages are, in order."""
        return [*self.inherited, Range(self.topic, self.start, self.tail)]

    def ranges_until(self, upto: int) -> list[Range]:
        """Return where its messages up to ``upto`` are."""
        return [
            Range(topic, after, min(last, upto))
            for topic, after, last in self.ranges()
            if min(last, upto) > after
        ]


def mark_of(topic: str, stream: int) -> str:
    """Return the name under which changes of a stream are marked in the log, one after the other.

    Every node makes the same name for a stream, and another name for any other stream of the same topic. Before the
    creation the id is 0, and the mark is that of the creation.
    """
    digest = blake2b(topic.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{HUBS_OWN_NAMES}stream/{stream}/{digest}"


def media_type(content_type: str) -> str:
    """Return a content type without its parameters.

    >>> media_type("Application/JSON; charset=utf-8")
    'application/json'
    """
    return content_type.partition(";")[0].strip().lower()
