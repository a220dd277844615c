"""The dashboard's own files: read once, served from memory, and cached by browsers until they change."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import Final

from aiohttp import hdrs, web

from headrace.web.access.check import Handler

TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

PAGES: Final = {"index.html": "/", "login.html": "/login"}
"""Files that are pages of their own."""


def routes() -> list[web.RouteDef]:
    """Return the routes of ``/`` and of everything that it loads."""
    found: list[web.RouteDef] = []
    folder = files("headrace.web") / "dashboard"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in TYPES:
            path = PAGES.get(entry.name, f"/dashboard/{entry.name}")
            found.append(web.get(path, _serving(entry.read_bytes(), TYPES[suffix])))
    return found


def _serving(content: bytes, kind: str) -> Handler:
    tag = f'"{sha256(content).hexdigest()[:16]}"'
    headers = {hdrs.ETAG: tag, hdrs.CACHE_CONTROL: "no-cache"}

    async def serve(request: web.Request) -> web.Response:
        if request.headers.get(hdrs.IF_NONE_MATCH) == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    return serve
