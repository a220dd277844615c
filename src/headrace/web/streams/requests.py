"""Parses the address and headers of requests for streams; invalid ones are refused with status 400."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import web

from headrace.hub.streams.stream import MAX_SAFE, MAX_TEXT, ForkOrigin, ProducerAppend, Shape
from headrace.web.refusals import refusal
from headrace.web.streams.offsets import parse_offset

PREFIX: Final = "/v1/stream/"
DEFAULT_TYPE: Final = "application/octet-stream"
MAX_TOPIC: Final = 1024

_WHOLE: Final = re.compile(r"0|[1-9]\d{0,15}", re.ASCII)
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


_PROBLEMS: Final[dict[int, type[web.HTTPError]]] = {
    403: web.HTTPForbidden,
    404: web.HTTPNotFound,
    409: web.HTTPConflict,
    410: web.HTTPGone,
    503: web.HTTPServiceUnavailable,
    507: web.HTTPInsufficientStorage,
}


def bad(why: str) -> web.HTTPError:
    """Make the refusal of an invalid request."""
    return refusal(web.HTTPBadRequest, why)


def topic_of(path: str) -> str:
    """Return the topic that a stream's path names."""
    topic = path.removeprefix(PREFIX)
    # Printable text can always be encoded.
    if not topic or "*" in topic or not topic.isprintable() or len(topic.encode()) > MAX_TOPIC:
        raise bad(f"a stream is named by a topic of up to {MAX_TOPIC} bytes without *")
    return topic


def shape_of(request: web.Request, fork: ForkOrigin | None, source: Shape | None) -> Shape:
    """Parse the shape of a stream to create; a fork takes what is not given from its ``source``."""
    headers = request.headers
    ttl, expires = headers.get("Stream-TTL"), headers.get("Stream-Expires-At")
    if ttl is not None and expires is not None:
        raise bad("Stream-TTL and Stream-Expires-At: give one of them")
    own = headers.get("Content-Type")
    content_type = own or (DEFAULT_TYPE if source is None else source.content_type)
    if len(content_type) > MAX_TEXT:
        raise bad(f"Content-Type has at most {MAX_TEXT} characters")
    seconds = None if ttl is None else whole("Stream-TTL", ttl)
    moment = None if expires is None else _moment(expires)
    if source is not None and seconds is None and moment is None:
        seconds, moment = source.ttl, source.expires
    return Shape(content_type, seconds, moment, closes(request), fork)


def closes(request: web.Request) -> bool:
    """Whether a request closes its stream."""
    return request.headers.get("Stream-Closed", "").lower() == "true"


def producer_of(request: web.Request) -> ProducerAppend | None:
    """Parse a producer's number of its append, if it gives one."""
    names = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
    given = [request.headers.get(name) for name in names]
    if all(each is None for each in given):
        return None
    who, epoch, seq = given
    if who is None or epoch is None or seq is None:
        raise bad("Producer-Id, Producer-Epoch and Producer-Seq go together")
    if not 0 < len(who) <= MAX_TEXT:
        raise bad(f"Producer-Id has 1 to {MAX_TEXT} characters")
    return ProducerAppend(who, whole("Producer-Epoch", epoch), whole("Producer-Seq", seq))


def writer_of(request: web.Request) -> str | None:
    """Return the writer's own sequence, if the request gives one."""
    writer = request.headers.get("Stream-Seq")
    if writer is not None and len(writer) > MAX_TEXT:
        raise bad(f"Stream-Seq has at most {MAX_TEXT} characters")
    return writer


class ForkRequest(msgspec.Struct, frozen=True):
    """A request for a fork: the source's topic, and where to leave it."""

    topic: str
    upto: int | None
    part: int


def fork_of(request: web.Request) -> ForkRequest | None:
    """Parse where a new stream is forked from."""
    headers = request.headers
    source, offset, part = (
        headers.get(name) for name in ("Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset")
    )
    if source is None:
        if offset is not None or part is not None:
            raise bad("Stream-Forked-From must name the stream to fork")
        return None
    try:
        path = unquote(urlsplit(source).path)
    except ValueError:
        path = ""
    if not path.startswith(PREFIX):
        raise bad(f"Stream-Forked-From: {source}: expected the path of a stream, {PREFIX}TOPIC")
    upto = None
    if offset is not None and (upto := parse_offset(offset)) is None:
        raise bad(f"Stream-Fork-Offset: {offset}: expected an offset that a stream gave")
    return ForkRequest(topic_of(path), upto, 0 if part is None else whole("Stream-Fork-Sub-Offset", part))


def whole(name: str, text: str) -> int:
    """Parse a whole number without sign, leading zeros or exponent."""
    if not _WHOLE.fullmatch(text) or int(text) > MAX_SAFE:
        raise bad(f"{name}: {text}: expected a whole number")
    return int(text)


class ReadRequest(msgspec.Struct, frozen=True):
    """A request to read."""

    after: int | None
    """The message to begin after; ``None`` for the stream's beginning."""
    now: bool
    """Whether to begin at the end instead."""
    live: str
    cursor: str | None


def read_of(request: web.Request) -> ReadRequest:
    """Parse where a read begins, and whether it waits."""
    offsets, live = request.query.getall("offset", []), request.query.get("live", "")
    if len(offsets) > 1:
        raise bad("give one offset")
    if live not in ("", "long-poll", "sse"):
        raise bad(f"live={live}: expected long-poll or sse")
    if live and not offsets:
        raise bad(
            f"live={live} needs an offset: -1 for the beginning, now for the end, or one that a stream gave"
        )
    text = offsets[0] if offsets else "-1"
    after = None if text in ("-1", "now") else parse_offset(text)
    if after is None and text not in ("-1", "now"):
        raise bad(f"offset={text}: expected -1, now, or one that a stream gave")
    return ReadRequest(after, text == "now", live, request.query.get("cursor"))


def _moment(text: str) -> int:
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError(text)
        # Convert it to UTC, in which it will be shown: its year may be another there.
        return max(0, int(datetime.fromisoformat(text.upper()).astimezone(UTC).timestamp() * 1_000_000))
    except (ValueError, OverflowError):
        raise bad(f"Stream-Expires-At: {text}: expected a time as in RFC 3339") from None


def problem(status: int, why: str, headers: Mapping[str, str] | None = None) -> web.HTTPError:
    """Make an error answer of one of the statuses that the protocol names."""
    return refusal(_PROBLEMS[status], why, headers)
