"""Which web pages may use ``/v1/`` from another origin: those that ``auth.origins`` names (CORS).

A browser asks before it sends such a request (a preflight), without a token or any other proof: it is answered whatever
``auth.required`` says. The request itself is checked like any other.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from aiohttp import hdrs, web

from headrace.web.refusals import refusal

ATTRIBUTE: Final = "headrace-attr-"
"""The beginning of headers that are attributes of a message."""

_METHODS: Final = "GET, HEAD, PUT, POST, DELETE"
_ALLOWED: Final = (
    "authorization, content-type, if-none-match, stream-seq, stream-ttl, stream-expires-at, stream-closed,"
    " stream-forked-from, stream-fork-offset, stream-fork-sub-offset, producer-id, producer-epoch, producer-seq"
)
_EXPOSED: Final = (
    "etag, location, stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, stream-ttl,"
    " stream-expires-at, stream-sse-data-encoding, producer-epoch, producer-seq, producer-expected-seq,"
    " producer-received-seq"
)
_ANY_ATTRIBUTE: Final = re.compile(rf"\b{ATTRIBUTE}[\w.~!#$%&'*+^`|-]+", re.ASCII | re.IGNORECASE)


def check_origin(request: web.Request, origins: Collection[str]) -> None:
    """Refuse a request from a page whose origin is neither the hub's own nor configured."""
    # Whoever is no browser sends no origin.
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and origin != f"{request.scheme}://{request.host}" and origin not in origins:
        raise refusal(web.HTTPForbidden, f"{origin} is not among auth.origins: its pages may not write here")


def answer_preflight(request: web.Request) -> web.Response:
    """Answer a preflight; the browser sends the request only if :func:`answer_headers` allows its origin."""
    attributes = _ANY_ATTRIBUTE.findall(request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""))
    headers = {
        hdrs.ALLOW: _METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: ", ".join([_ALLOWED, *attributes]),
        hdrs.ACCESS_CONTROL_MAX_AGE: "600",
    }
    return web.Response(status=204, headers=headers)


def answer_headers(origin: str | None, origins: Collection[str]) -> dict[str, str]:
    """Return the headers by which a browser lets pages of configured origins read an answer, errors included."""
    headers = {"Cross-Origin-Resource-Policy": "cross-origin"}
    if origins:
        headers[hdrs.VARY] = hdrs.ORIGIN
    if origin is not None and origin in origins:
        headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED
    return headers
