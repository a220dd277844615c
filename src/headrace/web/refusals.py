"""Error answers of the http door."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web


def refusal(kind: type[web.HTTPError], why: str, headers: Mapping[str, str] | None = None) -> web.HTTPError:
    """Make an error answer with its reason, in JSON like every other answer."""
    # A reason may quote what came, which need not be text.
    said = why.encode(errors="replace").decode()
    text = msgspec.json.encode({"error": said}).decode()
    return kind(text=text, content_type="application/json", headers=headers)
