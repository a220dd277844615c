"""Reloads settings without a restart: who the principals are, and what they may do.

Settings are loaded from their source again, on request or when the settings file or a principal's key file changes. If
they are wrong, the error is reported and nothing changes. Changed settings that need a restart are named and not
applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.config import Settings, load_again
from headrace.config.key_files import key_files, keys_of
from headrace.errors import ConfigError
from headrace.hub.access.access import AccessControl
from headrace.hub.access.principals import Principals

LOOK_SECONDS: Final = 1.0

logger = logging.getLogger("headrace")


class Reloaded(NamedTuple):
    """The result of loading settings again."""

    changed: list[str]
    """Settings that are in force now."""
    restart: list[str]
    """Settings that differ and are not in force before a restart."""
    closed: int
    """Connections that were closed because their rights were withdrawn."""

    def facts(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return self._asdict()

    def __str__(self) -> str:
        words = [f"changed {', '.join(self.changed)}" if self.changed else "nothing has changed"]
        if self.restart:
            words.append(f"{', '.join(self.restart)}: restart the hub for that")
        if self.closed:
            words.append(f"{self.closed} connections were closed")
        return "; ".join(words)


class Reloading:
    """Reloads a hub's settings. ``check`` may refuse new ones by raising; ``take`` gets those that are in force."""

    def __init__(
        self,
        settings: Settings,
        access: AccessControl,
        take: Callable[[Settings], None],
        check: Callable[[Settings], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._access = access
        self._take = take
        self._check = check
        self._seen = self._look()

    def reload(self) -> Reloaded:
        """Reload the settings, and apply those that need no restart; raise an error if they are wrong."""
        self._seen = self._look()
        found = load_again(self._settings)
        before, after = self._settings.as_dict(reveal=True), found.as_dict(reveal=True)
        differing = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        changed = [key for key in differing if _is_live(key)]
        restart = [key for key in differing if not _is_live(key)]
        auth = replace(self._settings.auth, clients=found.auth.clients)
        settings = replace(found, **_sections(self._settings), auth=auth, access=found.access)
        self._check(settings)
        principals = Principals(settings, keys_of(settings))
        # A key file may have changed even if no setting has.
        closed = self._access.reload(principals)
        self._settings = settings
        self._take(settings)
        self._seen = self._look()
        told = Reloaded(changed, restart, closed)
        if changed:
            self._access.settings_changed(", ".join(changed))
        logger.info("settings were loaded again: %s", told)
        return told

    async def watch(self) -> None:
        """Reload the settings whenever one of their files changes."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._look() != self._seen:
                self.try_reload()

    def try_reload(self) -> None:
        """Reload the settings; if they are wrong, log why."""
        try:
            self.reload()
        except ConfigError as error:
            logger.error("settings stay as they were: %s", error)

    def _look(self) -> dict[Path, tuple[int, int, int] | None]:
        """Return what changes when a file does."""
        loaded = self._settings.loaded
        paths = key_files(self._settings)
        if loaded is not None and loaded.path is not None:
            paths.append(loaded.path)
        return {path: _mark(path) for path in paths}


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _is_live(key: str) -> bool:
    """Whether a setting needs no restart."""
    return key.startswith("access.") or key == "auth.clients"


def _sections(settings: Settings) -> dict[str, Any]:
    """Return the sections that stay as they are."""
    names = {key.partition(".")[0] for key in settings.as_dict()} - {"access", "auth"}
    return {name: getattr(settings, name) for name in names}
