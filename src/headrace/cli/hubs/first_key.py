"""A hub's first client: made when nobody has a key yet, and shown once."""

from __future__ import annotations

import logging

from headrace.config import Settings, load_again
from headrace.config.first_key import KEY, make_first_key

logger = logging.getLogger("headrace")


def with_first_key(settings: Settings) -> Settings:
    """Make the client that ``auth.first_key`` asks for, unless there is one already; return the settings with it."""
    path = settings.auth.first_key
    if path is None or path.exists() or settings.auth.clients or settings.access:
        return settings
    client, key = make_first_key(path, settings.source(KEY))
    logger.warning(
        "a first client was made, which may do everything; its key is shown this once:"
        " HEADRACE_CLIENT_ID=%s HEADRACE_KEY=%s (kept in %s)",
        client,
        key.reveal(),
        path,
    )
    return load_again(settings)
