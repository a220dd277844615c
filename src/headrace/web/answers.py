"""Questions and answers of the JSON API: a body in JSON, a number in the address."""

from __future__ import annotations

import msgspec
from aiohttp import web

from headrace.web.refusals import refusal


def as_json(content: object, status: int = 200) -> web.Response:
    """Make an answer in JSON, which is not cached."""
    return web.Response(
        body=msgspec.json.encode(content),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def number_in(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """Return a number that a request's address has; refuse one that is none, or out of its range."""
    given = request.query.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 20 and low <= int(given) <= high):
        raise refusal(web.HTTPBadRequest, f"{name}={given}: expected a number from {low} to {high}")
    return int(given)
