"""Error answers of the http door."""

from __future__ import annotations

import msgspec
from aiohttp import web


def refusal(kind: type[web.HTTPError], why: str) -> web.HTTPError:
    """Make an error answer with its reason, in JSON like every other answer."""
    # A reason may quote what came, which need not be text.
    said = why.encode(errors="replace").decode()
    return kind(text=msgspec.json.encode({"error": said}).decode(), content_type="application/json")
